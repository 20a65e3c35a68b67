// What documents are in prepared tokens: their texts, BOS and EOS, and what attends to what.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/data/token_file.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/must.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/prepare.hpp"
#include "tools/prepare/token_split.hpp"

using namespace simplescale;
using test::all_tokens;
using Folder = test::TempFolder;
using Tokens = std::vector<int32_t>;

namespace {

const std::vector<std::string> kTexts = {"    def f():\n", "\n\nreturn 1\n\n", "\tx\t=\t1 \r\n",
                                         " \n \n",         "plain words",      "  two  blanks  "};

std::string json_lines(const std::vector<std::string>& texts) {
  std::string lines;
  for (const std::string& text : texts) lines += nlohmann::json{{"text", text}}.dump() + "\n";
  return lines;
}

std::string many_words() {
  std::string text;
  for (uint32_t i = 0, random = 1; i < 3000; ++i) {
    random = random * 1664525 + 1013904223;
    for (uint32_t word = random >> 22; word > 0; word /= 7) text += "aeinrst"[word % 7];
    text += i % 9 == 8 ? "\n" : " ";
  }
  return text;
}

/// The files that a split makes of documents with these lengths; ids count up from 10 in each.
struct Split {
  Tokens train, validation;
};
Split split(const std::vector<int32_t>& lengths, const TokenSplit::Options& options) {
  const Folder folder;
  TokenSplit out(folder.path, options);
  for (const int32_t length : lengths) {
    Tokens ids(static_cast<size_t>(length));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = 10 + static_cast<int32_t>(i);
    ids.front() = options.bos;
    if (options.eos >= 0) ids.back() = options.eos;
    REQUIRE(out.write(ids, true, {}).ok());
  }
  Manifest made;
  REQUIRE(out.finish(made).ok());
  const auto tokens = [&](const char* name) {
    const std::string bytes = test::contents(folder.path + "/" + name);
    REQUIRE(bytes.size() >= 1024);
    Tokens ids;
    for (size_t at = 1024; at < bytes.size(); at += 2)
      ids.push_back(static_cast<uint8_t>(bytes[at]) + 256 * static_cast<uint8_t>(bytes[at + 1]));
    return ids;
  };
  return {tokens("train.bin"), tokens("validation.bin")};
}

}  // namespace

TEST_SUITE("prepare") {
  TEST_CASE("prepare: parts of a document that do not follow each other begin with BOS") {
    // Parts of 5 tokens; one of four is held back.
    const TokenSplit::Options options{.fraction = 0.25, .text_bytes = 80, .bos = 1};
    const Split made = split({23, 3, 12}, options);
    for (const Tokens* file : {&made.train, &made.validation}) {
      CHECK(file->front() == 1);
      for (size_t i = 1; i < file->size(); ++i) {
        CAPTURE(i);
        // Within what has no BOS every token follows the one before it in its document.
        if ((*file)[i] != 1) CHECK(((*file)[i] == (*file)[i - 1] + 1 || (*file)[i - 1] == 1));
      }
    }
    CHECK(made.validation.size() > 8);
    const auto tokens = made.train.size() + made.validation.size();
    const auto parts = std::ranges::count(made.train, 1) + std::ranges::count(made.validation, 1);
    CHECK(parts > 5);
    CHECK(tokens == 23 + 3 + 12 + static_cast<size_t>(parts) - 3);
  }

  TEST_CASE("prepare: EOS is in the part of the document that it ends") {
    for (int32_t length = 4; length < 24; ++length) {
      const Split made =
          split({7, length, 11}, {.fraction = 0.25, .text_bytes = 80, .bos = 1, .eos = 2});
      size_t ends = 0;
      for (const Tokens* file : {&made.train, &made.validation})
        for (size_t i = 0; i < file->size(); ++i) {
          if ((*file)[i] != 2) continue;
          ++ends;
          CHECK((*file)[i - 1] >= 10);
          if (i + 1 < file->size()) CHECK((*file)[i + 1] == 1);
        }
      CHECK(ends == 3);
    }
  }

  TEST_CASE("prepare: with data.document_mask no validation token attends to another document") {
    const Folder folder;
    std::string text;  // long documents, each with words of its own
    for (char name = 'a'; name < 'i'; ++name) {
      for (int i = 0; i < 2000; ++i) text += std::string(3, name) + (i % 9 == 8 ? "\n" : " ");
      text += "\n<|endoftext|>\n";
    }
    const PrepareOptions options{.source = folder.write("text.txt", text),
                                 .folder = folder.path + "/prepared",
                                 .vocab = 300,
                                 .validation_fraction = 0.2};
    const auto made = must(prepare(options));
    Config config;
    config.run.name = "r";
    config.model.preset = "micro";
    config.model.block_size = 10;
    config.train.max_steps = 1;
    config.data.source = options.folder;
    config.data.document_mask = true;
    config.data.document_boundary_loss = false;
    const auto data = must(open_tokens(config, *model_shape(config)));
    const Dataset& dataset = data->sources.front().data;
    const Tokenizer tokenizer = Tokenizer::load(dataset.tokenizer).take();
    for (const TokenSource* source : {&dataset.train, &dataset.validation}) {
      char document = 0;  // of the tokens that this one attends to
      size_t documents = 0, parts = 0;
      for (const int32_t token : all_tokens(*source)) {
        if ((token & kBeginsDocument) != 0) {
          CHECK((token & kNotTrained) != 0);
          document = 0;
          ++parts;
        }
        for (const char c : tokenizer.decode(std::vector{token_id(token)})) {
          if (c < 'a' || c > 'h') continue;
          documents += document == 0;
          if (document != 0) REQUIRE(c == document);
          document = c;
        }
      }
      CHECK(documents >= 7);
      CHECK(parts >= documents - 1);
    }
  }

  TEST_CASE("prepare: rows become BOS, the ids of their exact text, and EOS") {
    const Folder folder;
    const std::string words = folder.write("words.txt", many_words());
    for (const bool byte_level : {false, true}) {
      CAPTURE(byte_level);
      std::string expected_bytes;
      for (const int jobs : {1, 3}) {
        const PrepareOptions options{
            .source = folder.write("text.jsonl", json_lines(kTexts)),
            .folder = folder.path + (byte_level ? "/byte" : "/bpe") + std::to_string(jobs),
            .byte_level = byte_level,
            .train_tokenizer_on = words,
            .vocab = 330,
            .validation_fraction = 0,
            .jobs = jobs};
        const auto made = must(prepare(options));
        const Dataset data = open_dataset(options.folder, "prepared", 330, 0).take();
        const Tokenizer tokenizer = Tokenizer::load(data.tokenizer).take();
        Tokens expected;
        for (const std::string& text : kTexts) {
          const Tokens ids = tokenizer.encode(text);
          expected.push_back(tokenizer.bos());
          expected.insert(expected.end(), ids.begin(), ids.end());
          if (!byte_level) expected.push_back(2);  // byte_bpe has one token for BOS and EOS
          CHECK(tokenizer.decode(ids) == text);
        }
        CHECK(all_tokens(data.train) == expected);
        CHECK(made->appended_eos == (byte_level ? -1 : 2));
        CHECK(made->row_texts == Manifest::exact);
        CHECK(made->documents == kTexts.size());
        CHECK(*read_manifest(options.folder) == *made);
      }
    }
    PrepareOptions options{.source = folder.path + "/text.jsonl",
                           .folder = folder.path + "/byte1",
                           .append_eos = Choice::yes,
                           .byte_level = true,
                           .train_tokenizer_on = words,
                           .vocab = 330,
                           .validation_fraction = 0};
    CHECK(prepare(options).status().code() == Code::bad_config);
    CHECK(read_manifest(options.folder)->complete());  // it was not touched
    options.folder = folder.path + "/new";
    CHECK(has(prepare(options).status(), "one token for EOS and BOS"));
    options.append_eos = Choice::no;
    options.byte_level = false;
    options.folder = folder.path + "/without";
    const auto without = must(prepare(options));
    CHECK(without->appended_eos == -1);
    CHECK(without->train_tokens + kTexts.size() ==
          read_manifest(folder.path + "/bpe1")->train_tokens);
  }

  TEST_CASE("prepare: byte-level BPE is trained on whole texts, with the newlines inside them") {
    const Folder folder;
    std::vector<std::string> texts;
    for (int i = 0; i < 300; ++i)
      texts.push_back("def f" + std::to_string(i) + "():\n\n    return\n\n    x");
    const auto made = must(prepare({.source = folder.write("text.jsonl", json_lines(texts)),
                                    .folder = folder.path + "/prepared",
                                    .byte_level = true,
                                    .vocab = 320,
                                    .validation_fraction = 0}));
    CHECK(test::contents(folder.path + "/prepared/tokenizer.json") == *train_byte_bpe(texts, 320));
  }

  TEST_CASE("prepare: the manifest names the files of the text") {
    const Folder folder;
    const std::string one = json_lines({"one", "two"}), three = "three\n<|endoftext|>\nfour";
    folder.write("text/sub/a.jsonl", one);
    folder.write("text/b.txt", three);
    folder.write("text/c.txt", three);
    folder.write("text/empty.txt", "");
    const auto made = must(prepare({.source = folder.path + "/text",
                                    .folder = folder.path + "/prepared",
                                    .train_tokenizer_on = folder.write("words.txt", many_words()),
                                    .vocab = 330}));
    REQUIRE(made->sources.size() == 4);
    const auto check = [&](size_t i, const std::string& path, uint64_t bytes, uint64_t documents) {
      CHECK(made->sources[i].path == path);
      CHECK(made->sources[i].bytes == bytes);
      CHECK(made->sources[i].documents == documents);
      CHECK(made->sources[i].hash.size() == 32);
    };
    check(0, "b.txt", three.size(), 2);
    check(1, "c.txt", three.size(), 2);
    check(2, "empty.txt", 0, 0);
    check(3, "sub/a.jsonl", one.size(), 2);
    CHECK(made->sources[0].hash == made->sources[1].hash);
    CHECK(Corpus::open(folder.path + "/text/b.txt")->name(0) == folder.path + "/text/b.txt");
    CHECK(made->sources[0].hash != made->sources[3].hash);
    CHECK(read_manifest(folder.path + "/prepared")->sources == made->sources);
  }

  TEST_CASE("prepare: a folder without bad lines is not kept where they may not be left out") {
    const Folder folder;
    PrepareOptions options{
        .source = folder.write("text.jsonl", json_lines({"one", "two"}) + "{\n[\n"),
        .corpus = {.skip_bad = 5},
        .folder = folder.path + "/prepared",
        .train_tokenizer_on = folder.write("words.txt", many_words()),
        .vocab = 330};
    const auto made = must(prepare(options));
    CHECK(made->bad_lines == 2);
    options.corpus.skip_bad = 2;
    CHECK(prepare(options).ok());
    options.corpus.skip_bad = 1;
    CHECK(says(prepare(options).status(), Code::bad_data, "was prepared without 2 bad lines"));
    CHECK(read_manifest(options.folder)->complete());
    std::filesystem::remove(options.source);
    CHECK(prepare(options).status().code() == Code::bad_data);
    options.corpus.skip_bad = 2;
    CHECK(prepare(options).ok());
  }
}
