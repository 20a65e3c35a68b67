// Loss masks: files of ranges, the marks of samples, and what prepare() makes of masked text.
#include "runtime/data/loss_mask.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "runtime/feed/run_data.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/must.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/prepare.hpp"

using namespace simplescale;
namespace fs = std::filesystem;
using test::all_tokens;
using test::bytes_of;
using test::TempFolder;

namespace {

using Numbers = std::vector<uint64_t>;

constexpr uint64_t kMagic = 0x314b53414d4c5353;

std::string mask_file(uint64_t tokens, const Numbers& bounds) {
  return bytes_of(Numbers{kMagic, tokens, bounds.size() / 2}) + bytes_of(bounds);
}

std::string counting(uint16_t count) {
  return bytes_of(test::counting<uint16_t>(count));
}

Numbers numbers_of(const IndexRanges& ranges) {
  Numbers out;
  for (const IndexRange& range : ranges)
    for (uint64_t i = range.begin; i < range.end; ++i) out.push_back(i);
  return out;
}

/// The targets of all samples that do not count, by their index in the source.
Numbers untrained(const TokenSource& source, int64_t block) {
  Numbers found;
  std::vector<int32_t> row(static_cast<size_t>(block) + 1);
  for (uint64_t i = 0; i < source.samples(block); ++i) {
    must(source.read_sample(i, block, row.data()));
    CHECK(row[0] == token_id(row[0]));
    for (size_t k = 1; k < row.size(); ++k)
      if ((row[k] & kNotTrained) != 0) found.push_back(i * static_cast<uint64_t>(block) + k);
  }
  return found;
}

}  // namespace

TEST_SUITE("loss mask") {
  TEST_CASE("loss mask: what is written is read, in any window") {
    const TempFolder folder;
    std::mt19937 random(2);
    for (int round = 0; round < 200; ++round) {
      const std::string path = folder.path + "/a.mask";
      LossMaskWriter writer(path);
      Numbers masked;
      uint64_t at = 0;
      for (uint64_t i = random() % 20; i > 0; --i) {
        IndexRanges some;
        for (uint64_t k = random() % 3; k > 0; --k) {
          const uint64_t begin = at + random() % 3, end = begin + 1 + random() % 4;
          append_range(some, {begin, end});
          at = end;
        }
        for (const uint64_t n : numbers_of(some)) masked.push_back(n);
        REQUIRE(writer.add(some).ok());
      }
      const uint64_t tokens = at + random() % 3;
      REQUIRE(writer.finish(tokens).ok());
      CHECK(writer.masked() == masked.size());
      const auto mask = must(LossMask::open(path, tokens));
      CHECK(works(mask->validate()));
      for (uint64_t begin = 0; begin <= tokens; ++begin)
        for (const uint64_t end : {begin + 1, begin + 5, tokens}) {
          Numbers window;
          for (const uint64_t n : masked)
            if (n >= begin && n < end) window.push_back(n);
          const IndexRanges found = mask->masked(begin, end).take();
          REQUIRE(numbers_of(found) == window);
          for (const IndexRange& range : found) REQUIRE(range.begin < range.end);
        }
    }
  }

  TEST_CASE("loss mask: a damaged file is named with the byte") {
    const TempFolder folder;
    const auto error = [&](const std::string& bytes) {
      const std::string path = folder.write("a.mask", bytes);
      const auto mask = LossMask::open(path, 100);
      const Status status = mask.ok() ? mask->validate() : mask.status();
      CHECK(status.code() == Code::bad_data);
      REQUIRE(status.message().starts_with(path + ": byte "));
      return status.message().substr(path.size() + 2);
    };
    CHECK(error("").starts_with("byte 0: the header ends here"));
    CHECK(error(std::string(40, 'x')).starts_with("byte 0: this is no loss mask"));
    CHECK(error(mask_file(99, {})) == "byte 8: it was made for 99 tokens, the token file has 100");
    CHECK(error(mask_file(100, {1, 2}) + "x").starts_with("byte 16: it says that it has 1 ranges"));
    CHECK(error(bytes_of(Numbers{kMagic, 100, uint64_t{1} << 60})).starts_with("byte 16: "));
    CHECK(error(mask_file(100, {1, 2, 5, 5})).starts_with("byte 40: range 1, [5, 5), is wrong"));
    CHECK(error(mask_file(100, {5, 4})).starts_with("byte 24: range 0, [5, 4), is wrong"));
    CHECK(error(mask_file(100, {1, 4, 4, 5})).starts_with("byte 40: range 1, [4, 5), is wrong"));
    CHECK(error(mask_file(100, {1, 101})).starts_with("byte 24: range 0, [1, 101), is wrong"));
    // Also without validate(), a sample does not get marks elsewhere.
    const std::string wrong = folder.write("b.mask", mask_file(100, {1, UINT64_MAX}));
    CHECK(LossMask::open(wrong, 100)->masked(0, 50).status().code() == Code::bad_data);
  }

  TEST_CASE("loss mask: it lies beside token files; files, slices and samples get their marks") {
    const TempFolder folder;
    folder.write("a.bin", counting(60));
    folder.write("a.mask", mask_file(60, {0, 3, 10, 20, 59, 60}));
    folder.write("b.bin", counting(30));
    folder.write("c.bin", counting(10));
    folder.write("c.mask", mask_file(10, {0, 1, 9, 10}));
    Dataset data = open_dataset(folder.path, "auto", 4096, 0).take();
    REQUIRE(data.train.validate().ok());
    Numbers masked = {1, 2};  // token 0 is the first one of its sample
    for (uint64_t i = 10; i < 20; ++i) masked.push_back(i);
    for (const uint64_t i : {59, 90, 99}) masked.push_back(i);
    for (const int64_t block : {1, 3, 9, 11, 33, 99}) CHECK(untrained(data.train, block) == masked);
    CHECK((all_tokens(data.train)[0] & kNotTrained) == 0);
    for (uint64_t first = 0; first < 98; ++first) {
      CAPTURE(first);
      Numbers later;
      for (const uint64_t token : masked)
        if (token > first) later.push_back(token - first);
      CHECK(untrained(data.train.slice(first, 100 - first), 1) == later);
      CHECK(untrained(data.train.slice(first, 100 - first).slice(1, 99 - first), 1).size() ==
            later.size() - (!later.empty() && later.front() == 1 ? 1 : 0));
    }
    // The marks of documents come on top.
    Config config;
    config.data.source = folder.path;
    config.data.document_begin = 5;
    config.data.document_boundary_loss = false;
    REQUIRE(use_documents(config, data).ok());
    CHECK(untrained(data.train, 1).size() == masked.size() + 3);

    // A failed read is tried again with the files that are there then.
    folder.write("a.mask", mask_file(60, {40, 50}));
    REQUIRE(data.train.reopen().ok());
    CHECK(untrained(data.train, 1).size() == 10 + 2 + 3);
    folder.write("a.mask", mask_file(61, {40, 50}));
    CHECK(data.train.reopen().message().starts_with(folder.path + "/a.mask: byte 8: "));
    CHECK(open_dataset(folder.path, "auto", 4096, 0).status().code() == Code::bad_data);
    folder.write("a.mask", mask_file(60, {40, 30}));
    CHECK(open_dataset(folder.path, "auto", 4096, 0)
              ->train.validate()
              .message()
              .starts_with(folder.path + "/a.mask: byte 24: "));
  }

  TEST_CASE("loss mask: tokens of masked characters do not count, in both prepared files") {
    const TempFolder folder;
    // Only masked characters are Q, or the smallest and the largest that need several bytes.
    std::mt19937 random(3);
    std::string text;
    for (int row = 0; row < 300; ++row) {
      std::string body;
      std::string ranges;
      uint64_t characters = 0;
      const auto add = [&](const std::string& more, uint64_t count) {
        body += more;
        characters += count;
      };
      for (uint64_t parts = row == 7 ? 9000 : random() % 8; parts > 0; --parts) {
        if (random() % 4 > 0) {
          const char* plain[] = {"the ", "river\\n", "caf\xC3\xA9 ", "ships and ",
                                 "\xE2\x82\xAC 7 "};
          const uint64_t length[] = {4, 6, 5, 10, 4};
          const auto which = random() % 5;
          add(plain[which], length[which]);
          continue;
        }
        const uint64_t begin = characters;
        const char* masked[] = {"Q", "QQ QQQ", "QQ\\nQ Q", "Q \xF0\x9F\xA6\x8AQ"};
        const uint64_t length[] = {1, 6, 6, 4};
        const auto which = random() % 4;
        add(masked[which], length[which]);
        ranges = "[" + std::to_string(begin) + "," + std::to_string(characters) + "]" +
                 (ranges.empty() ? "" : ",") + ranges;  // in any order
        add(" ", 1);
      }
      text += R"({"text":"  )" + body + R"(","mask":[)";
      // Blanks at the front of a document do not count.
      std::string shifted;
      for (size_t at = 0; at < ranges.size();) {
        if (!std::isdigit(static_cast<unsigned char>(ranges[at]))) {
          shifted += ranges[at++];
          continue;
        }
        size_t digits = 0;
        shifted += std::to_string(2 + std::stoull(ranges.substr(at), &digits));
        at += digits;
      }
      text += shifted + "]}\n";
    }
    const std::string source = folder.write("text.jsonl", text);
    std::string many =
        "the river ships and caf\xC3\xA9 \xE2\x82\xAC 7 QQ QQQ QQ Q \xF0\x9F\xA6\x8A\n";
    for (int i = 0; i < 3000; ++i) {
      for (uint64_t k = 2 + random() % 5; k > 0; --k)
        many += static_cast<char>('a' + random() % 26);
      many += i % 9 == 8 ? "\n" : i % 5 == 4 ? " QQ " : " ";
    }
    const std::string words = folder.write("words.txt", many);
    for (const bool byte_level : {false, true}) {
      std::string expected;
      for (const int jobs : {1, 4}) {
        INFO("byte_level = ", byte_level, ", jobs = ", jobs);
        const PrepareOptions options{
            .source = source,
            .corpus = {.mask_key = "mask"},
            .folder = folder.path + (byte_level ? "/byte" : "/bpe") + std::to_string(jobs),
            .byte_level = byte_level,
            .train_tokenizer_on = words,
            .vocab = 400,
            .validation_fraction = 0.2,
            .jobs = jobs};
        const auto made = must(prepare(options));
        const Dataset data = open_dataset(options.folder, "prepared", 400, 0).take();
        const Tokenizer tokenizer = Tokenizer::load(data.tokenizer).take();
        uint64_t count = 0;
        for (const TokenSource* source : {&data.train, &data.validation}) {
          REQUIRE(source->validate().ok());
          const std::string path = loss_mask_of(source->path());
          const auto mask = must(LossMask::open(path, source->tokens()));
          std::vector<bool> masked(source->tokens());
          for (const uint64_t n : numbers_of(mask->masked(0, source->tokens()).take()))
            masked[n] = true;
          const std::vector<int32_t> tokens = all_tokens(*source);
          for (size_t i = 0; i < tokens.size(); ++i) {
            const std::string token = tokenizer.decode(std::vector{token_id(tokens[i])});
            count += masked[i];
            if (i > 0) REQUIRE(masked[i] == ((tokens[i] & kNotTrained) != 0));
            // A token of plain characters alone counts, one with a masked letter does not.
            if (token.find('Q') != token.npos) REQUIRE(masked[i]);
            if (token.find_first_of("abcdefghijklmnopqrstuvwxyz7") != token.npos &&
                token.find('Q') == token.npos)
              REQUIRE_FALSE(masked[i]);
          }
          CHECK(count > 100);
        }
        CHECK(made->masked_tokens == count);
        const std::string hashes = made->train.hash + made->train_mask.hash +
                                   made->validation_mask.hash + made->source_hash;
        if (jobs == 1) expected = hashes;
        CHECK(hashes == expected);
        CHECK(prepare(options)->train_mask == made->train_mask);
      }
    }
  }

  TEST_CASE("loss mask: of a row that is masked as a whole no token counts, BOS and EOS included") {
    const TempFolder folder;
    std::string rows, all, words;
    for (int i = 0; i < 3000; ++i) words += "word " + std::to_string(i * i) + " of the text\n";
    const std::string vocabulary = folder.write("words.txt", words);
    for (int row = 0; row < 60; ++row) {
      const std::string text = "row " + std::to_string(row) + " of the text";
      const std::string size = std::to_string(text.size());
      all += R"({"text":")" + text + R"(","mask":[[0,)" + size + "]]}\n";
      rows += R"({"text":")" + text + R"(","mask":[)" + (row % 2 ? "[0," + size + "]" : "[0,3]") +
              "]}\n";
    }
    for (const bool byte_level : {false, true})
      for (const bool half : {false, true}) {
        INFO("byte_level = ", byte_level, ", half = ", half);
        const std::string name = std::to_string(byte_level) + std::to_string(half);
        const PrepareOptions options{.source = folder.write(name + ".jsonl", half ? rows : all),
                                     .corpus = {.mask_key = "mask"},
                                     .folder = folder.path + "/" + name,
                                     .byte_level = byte_level,
                                     .train_tokenizer_on = vocabulary,
                                     .vocab = 300,
                                     .validation_fraction = 0};
        const auto made = must(prepare(options));
        CHECK((made->masked_tokens == made->train_tokens) == !half);
        const Dataset data = open_dataset(options.folder, "prepared", 300, 0).take();
        const Tokenizer tokenizer = Tokenizer::load(data.tokenizer).take();
        const std::vector<int32_t> tokens = all_tokens(data.train);
        uint64_t begins = 0, counting = 0;
        for (size_t i = 1; i < tokens.size(); ++i) {
          const bool special =
              token_id(tokens[i]) == tokenizer.bos() || token_id(tokens[i]) == tokenizer.eos();
          begins += special;
          counting += special && (tokens[i] & kNotTrained) == 0;
        }
        CHECK(begins >= 59);
        CHECK(counting == (half ? (begins + 1) / 2 - (byte_level ? 0 : 1) : 0));
      }
  }

  TEST_CASE("loss mask: a prepared folder has the masks that its manifest records, and no others") {
    const TempFolder folder;
    std::string text;
    for (int row = 0; row < 100; ++row)
      text += R"({"text":"question )" + std::to_string(row * row) +
              R"( and its answer","mask":[[0,9]]})" + "\n";
    PrepareOptions options{.source = folder.write("text.jsonl", text),
                           .corpus = {.mask_key = "mask"},
                           .folder = folder.path + "/prepared",
                           .vocab = 300,
                           .validation_fraction = 0};
    const auto made = must(prepare(options));
    CHECK(made->validation_mask.hash.empty());
    const std::string mask = options.folder + "/train.mask";
    const auto opened = [&] { return open_dataset(options.folder, "auto", 300, 0).status(); };
    CHECK(opened().ok());
    CHECK(*read_manifest(options.folder) == *made);
    fs::rename(mask, mask + ".away");
    CHECK(opened().message().find("train.mask") != std::string::npos);
    CHECK(prepare(options)->train_mask.hash == made->train_mask.hash);  // made again
    CHECK(opened().ok());
    // The key is an input: without it the same text has other tokens files, none of them masked.
    CHECK(free_folder(options) == options.folder);
    options.corpus.mask_key.clear();
    CHECK(free_folder(options) != options.folder);
    CHECK(prepare(options).status().code() == Code::bad_config);
    fs::remove(options.folder + "/manifest.json");
    CHECK(prepare(options)->masked_tokens == 0);
    CHECK_FALSE(fs::exists(mask));
    CHECK(opened().ok());
    fs::rename(mask + ".away", mask);
    CHECK(has(opened(), "train.mask is not in the folder's manifest.json"));
  }
}
