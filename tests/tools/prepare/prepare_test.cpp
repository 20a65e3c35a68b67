#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/data/token_file.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/must.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/temp_folder.hpp"
#include "tests/tools/prepare/prose.hpp"
#include "tools/prepare/corpus.hpp"
#include "tools/prepare/prepare.hpp"

using namespace simplescale;
using test::all_tokens;
using test::contents;
using test::prose;
namespace fs = std::filesystem;
using Folder = test::TempFolder;

namespace {

struct Read {
  std::vector<std::string> documents;
  size_t chunks = 0;
};
Read read_all(const std::string& source) {
  Read read;
  const auto corpus = must(Corpus::open(source));
  const Status status = corpus
                            ->read([&](TextChunk chunk, double fraction) {
                              CHECK(fraction <= 1);
                              if (chunk.begins_document) read.documents.emplace_back();
                              CHECK((chunk.begins_document || chunk.text[0] == '\n'));
                              read.documents.back() += chunk.text;
                              ++read.chunks;
                              return Status();
                            })
                            .status();
  REQUIRE_MESSAGE(status.ok(), status.message());
  return read;
}

}  // namespace

TEST_SUITE("prepare") {
  TEST_CASE("corpus: a file is split at separators into documents and at newlines into chunks") {
    const Folder folder;
    const std::string first = prose(2000), second = "one line";
    const auto read =
        read_all(folder.write("a.txt", "\xEF\xBB\xBF\n" + first + "\n<|endoftext|>\n" + second +
                                           "\n<|endoftext|>\n\n<|endoftext|>"));
    REQUIRE(read.documents.size() == 2);
    CHECK(read.documents[0] == first.substr(0, first.find_last_not_of(" \n") + 1));
    CHECK(read.documents[1] == second);
    CHECK(read.chunks > 5);
    CHECK(read_all(folder.write("b.txt", "a <|endoftext|> within a line")).documents.size() == 1);
  }

  TEST_CASE("corpus: the text files of a folder are documents in the order of their paths") {
    const Folder folder;
    folder.write("texts/b.txt", "second");
    folder.write("texts/a.txt", "first");
    folder.write("texts/sub/c.txt", "third");
    folder.write("texts/d.md", "ignored");
    CHECK(read_all(folder.path + "/texts").documents ==
          std::vector<std::string>{"first", "second", "third"});
    const auto before = Corpus::open(folder.path + "/texts")->signature();
    CHECK(before == Corpus::open(folder.path + "/texts")->signature());
    folder.write("texts/sub/c.txt", "third, changed");
    CHECK(before != Corpus::open(folder.path + "/texts")->signature());
  }

  TEST_CASE("corpus: errors in a text name file, line and byte") {
    const Folder folder;
    const auto error = [&](const std::string& source) {
      const auto corpus = Corpus::open(source);
      const Status status =
          corpus.ok() ? corpus->read([](const TextChunk&, double) { return Status(); }).status()
                      : corpus.status();
      CHECK(status.code() == Code::bad_data);
      return status.message();
    };
    const auto latin = folder.write("latin.txt", "caf\xE9 noir");
    CHECK(error(latin).find(latin + ": line 1, byte 3: not UTF-8") == 0);
    CHECK(error(folder.write("blank.txt", " \n\n")).find("holds no text") != std::string::npos);
    CHECK(error(folder.path + "/none.txt").find("no such text file") != std::string::npos);
    CHECK(error("debian:cowsay").find("unknown package") != std::string::npos);
    CHECK(error(folder.write("long.txt", std::string((16 << 20) + 20'000, 'x')))
              .find("line 1: it is longer") != std::string::npos);
    fs::create_directories(folder.path + "/nothing");
    CHECK(has(error(folder.path + "/nothing"), "no .txt, .jsonl or .parquet files"));
  }

  TEST_CASE("corpus: every kind of invalid UTF-8 is found at its first byte") {
    CHECK(first_invalid_utf8("plain ASCII of some length") == 26);
    const std::string valid = "é ü € 😀 \xED\x9F\xBF \xF4\x8F\xBF\xBF";
    CHECK(first_invalid_utf8(valid) == valid.size());
    for (const char* bad :
         {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xC3", "\xC3(", "\xFF"})
      CHECK(first_invalid_utf8("0123456789" + std::string(bad)) == 10);
  }

  TEST_CASE("corpus: verses become prose with a document per book and a line per chapter") {
    CHECK(has(bible_prose("Ge1:1 In the beginning\n").status(), "1 verses of 31102"));
    CHECK(bible_prose("no verse\n").status().message().find("line 1") != std::string::npos);
    std::string verses = "1Sa1:1 A b.\n1Sa1:2 C d.\n1Sa2:1 E f.\n2Sa1:1 G h.\n";
    for (int i = 4; i < 31'102; ++i) verses += "3Jo1:" + std::to_string(i) + " x\n";
    const auto text = must(bible_prose(verses));
    CHECK(text->substr(0, 65) ==
          "A b. C d.\nE f.\n<|endoftext|>\nG h.\n<|endoftext|>\nx x x x x x x x x");
  }

  TEST_CASE("tokenizer: decoding restores the text, and control tokens are those of Llama") {
    std::vector<std::string> lines;
    std::istringstream text(prose(3000));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    const auto model = must(train_tokenizer(lines, 420));
    CHECK(*model == *train_tokenizer(lines, 420));
    const auto tokenizer = Tokenizer::from_bytes(*model, "test").take();
    CHECK(tokenizer.vocab() == 420);
    CHECK(tokenizer.bos() == 1);
    CHECK(tokenizer.eos() == 2);
    for (const std::string sample :
         {"the river carries été", "two  blanks,\n\n a tab\t, 1984 and 😀 漢字", " blank first"})
      CHECK(tokenizer.decode(tokenizer.encode(sample)) == sample);
    const auto digits = tokenizer.encode("1984");
    CHECK(digits.size() >= 4);  // every digit is a token
    CHECK(tokenizer.encode("").empty());
    CHECK(has(tokenizer.decode(std::vector<int32_t>{1, 420, -1, 2}), "\xE2\x81\x87"));
    CHECK(train_tokenizer(lines, 100'000).status().code() == Code::bad_data);
    CHECK(train_tokenizer({}, 1000).status().code() == Code::bad_data);
    CHECK(Tokenizer::load("/nowhere/tokenizer.model").status().code() == Code::not_found);
    CHECK(Tokenizer::from_bytes("garbage", "x").status().code() == Code::bad_data);
  }

  TEST_CASE("prepare: tokens are those of whole documents after BOS, and some are held back") {
    const Folder folder;
    const std::string first = prose(3000, 7), second = prose(500, 8);
    PrepareOptions options{.source = folder.write("text.txt", first + "\n<|endoftext|>\n" + second),
                           .folder = folder.path + "/prepared",
                           .vocab = 420,
                           .validation_fraction = 0.1};
    std::vector<std::string> stages;
    const auto made = prepare(options, [&](const PrepareProgress& progress) {
      if (stages.empty() || stages.back() != progress.stage) stages.push_back(progress.stage);
    });
    REQUIRE_MESSAGE(made.ok(), made.status().message());
    CHECK(stages == std::vector<std::string>{"read", "tokenizer", "tokens"});
    CHECK(made->documents == 2);
    const auto tokenizer = Tokenizer::load(options.folder + "/tokenizer.model").take();
    std::vector<int32_t> expected;
    for (const auto& text : {first, second}) {
      const auto ids = tokenizer.encode(text.substr(0, text.find_last_not_of(" \n") + 1));
      expected.push_back(1);
      expected.insert(expected.end(), ids.begin(), ids.end());
      expected.push_back(2);
    }
    const auto data = must(open_dataset(options.folder, "auto", 420, 0));
    CHECK(data->train.validate().ok());
    const auto train = all_tokens(data->train), held_back = all_tokens(data->validation);
    CHECK(train.size() == made->train_tokens);
    CHECK(held_back.size() == made->validation_tokens);
    // A part of a document that follows something else begins with BOS, too.
    const auto parts =
        static_cast<size_t>(std::ranges::count(train, 1) + std::ranges::count(held_back, 1));
    CHECK(parts > 20);
    CHECK(train.size() + held_back.size() == expected.size() + parts - 2);
    CHECK(held_back.size() ==
          doctest::Approx(0.1 * static_cast<double>(expected.size())).epsilon(0.1));
    std::vector<int32_t> both = train;
    both.insert(both.end(), held_back.begin(), held_back.end());
    expected.insert(expected.end(), parts - 2, 1);
    std::ranges::sort(both);
    std::ranges::sort(expected);
    CHECK(both == expected);
    CHECK(*hash_file(options.folder + "/validation.bin") == made->validation.hash);
    CHECK(made->validation_split == Manifest::spread_bos);
    CHECK(*hash_file(options.folder + "/train.bin") == made->train.hash);
  }

  TEST_CASE("prepare: documents are held back as a whole, from all over the text") {
    const Folder folder;
    constexpr size_t count = 300;
    std::string text;
    std::vector<std::string> documents;
    for (size_t i = 0; i < count; ++i) {
      documents.push_back("number " + std::to_string(i) + ": " +
                          prose(2, static_cast<uint32_t>(i + 1)));
      documents.back().resize(documents.back().find_last_not_of(" \n") + 1);
      text += documents.back() + "\n<|endoftext|>\n";
    }
    const auto made = must(prepare({.source = folder.write("text.txt", text),
                                    .folder = folder.path + "/prepared",
                                    .vocab = 420,
                                    .validation_fraction = 0.1}));
    const auto tokenizer = Tokenizer::load(folder.path + "/prepared/tokenizer.model").take();
    const auto data = must(open_dataset(folder.path + "/prepared", "auto", 420, 0));
    std::vector<std::vector<int32_t>> held_back;
    for (const int32_t id : all_tokens(data->validation)) {
      if (id == tokenizer.bos()) held_back.emplace_back();
      REQUIRE(!held_back.empty());
      held_back.back().push_back(id);
    }
    CHECK(held_back.size() > count / 15);
    size_t last = 0;
    for (const auto& tokens : held_back) {
      const auto found = std::ranges::find(documents, tokenizer.decode(tokens));
      REQUIRE(found != documents.end());
      const auto at = static_cast<size_t>(found - documents.begin());
      CHECK(at > last);
      CHECK(at - last < 30);
      last = at;
    }
    CHECK(last > count - 30);
  }

  TEST_CASE(
      "prepare: a folder of an earlier version keeps its tokens, whose last part is held back") {
    const Folder folder;
    const PrepareOptions options{.source = folder.write("text.txt", prose(800)),
                                 .folder = folder.path + "/prepared",
                                 .vocab = 400};
    auto made = must(prepare(options));
    // As an earlier version wrote it.
    const std::string path = options.folder + "/manifest.json";
    std::string manifest = contents(path);
    for (const char* key : {"\"validation_split\"", "\"row_texts\"", "\"appended_eos\""}) {
      const size_t at = manifest.find(key);
      REQUIRE(at != std::string::npos);
      manifest.erase(at, manifest.find('\n', at) + 1 - at);
    }
    std::ofstream(path) << manifest;
    CHECK(read_manifest(options.folder)->validation_split == Manifest::end);
    int steps = 0;
    const auto again = prepare(options, [&](const PrepareProgress&) { ++steps; });
    REQUIRE(again.ok());
    CHECK(steps == 0);
    CHECK(again->train.hash == made->train.hash);
    CHECK(again->validation_split == Manifest::end);
    CHECK(again->row_texts == Manifest::trimmed);
    CHECK(again->appended_eos == -1);
    // Unless its configuration asks for EOS.
    PrepareOptions other = options;
    other.append_eos = Choice::yes;
    CHECK(free_folder(options) == options.folder);
    CHECK(free_folder(other) != options.folder);
    CHECK(says(prepare(other).status(), Code::bad_config, " was prepared without EOS"));
    fs::remove(path);
    CHECK(prepare(other)->appended_eos == 2);
    CHECK(prepare(options)->appended_eos == 2);  // auto: as it is
    CHECK(free_folder(other) == options.folder);
    other.append_eos = Choice::no;
    CHECK(free_folder(other) != options.folder);
    CHECK(prepare(other).status().message().find(" was prepared with EOS") != std::string::npos);
  }

  TEST_CASE(
      "prepare: PREPARE-1 to 3, outputs of unchanged inputs are kept, all others made again") {
    const Folder folder;
    PrepareOptions options{.source = folder.write("text.txt", prose(800)),
                           .folder = folder.path + "/prepared",
                           .vocab = 400};
    int steps = 0;
    std::string stages;
    const auto run = [&] {
      stages.clear();
      const auto made = prepare(options, [&](const PrepareProgress& progress) {
        if (!stages.ends_with(progress.stage + " ")) stages += progress.stage + " ";
        ++steps;
      });
      REQUIRE_MESSAGE(made.ok(), made.status().message());
      return *made;
    };
    const Manifest first = run();
    CHECK(run() == first);
    CHECK(stages == "");  // PREPARE-2

    // Another modification time, the same contents.
    fs::last_write_time(options.folder + "/train.bin",
                        fs::file_time_type::clock::now() - std::chrono::hours(1));
    CHECK(run().train.hash == first.train.hash);
    CHECK(stages == "");
    const FileRecord train = run().train;

    // The text, too: it is compared. Meanwhile processes that wait see signs of life.
    const auto hour_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
    fs::last_write_time(options.source, hour_ago);
    fs::last_write_time(options.folder + "/.lock", hour_ago);
    CHECK(run().train == train);
    CHECK(stages == "compare ");
    CHECK(fs::last_write_time(options.folder + "/.lock") > hour_ago);
    run();
    CHECK(stages == "");

    // After a truncated token file, a lost manifest or a leftover of a crash: the same bytes as
    // before (PREPARE-3).
    fs::resize_file(options.folder + "/train.bin", 100);
    CHECK(run().train.hash == first.train.hash);
    CHECK(stages == "tokens ");
    fs::remove(options.folder + "/manifest.json");
    folder.write("prepared/train.bin.part", "half");
    CHECK(run().train.hash == first.train.hash);
    CHECK(stages == "read tokenizer tokens ");

    folder.write("text.txt", prose(900));
    fs::remove(options.folder + "/manifest.json");
    CHECK(run().source_hash != first.source_hash);
    CHECK(stages == "read tokenizer tokens ");

    // A complete folder is used although its source is missing.
    fs::remove(options.source);
    run();
    CHECK(stages == "");
    options.vocab = 401;
    CHECK(prepare(options).status().code() == Code::bad_data);
  }

  TEST_CASE(
      "prepare: PREPARE-1, killed at any time, it leaves no partial file and can be continued") {
    const Folder folder;
    // PREPARE-1: a file under its final name is whole.
    PrepareOptions options{.source = folder.write("text.txt", prose(3000)),
                           .folder = folder.path + "/whole",
                           .vocab = 400};
    const auto whole = must(prepare(options));
    options.folder = folder.path + "/killed";
    for (int kill_at : {1, 3, 12, 14, 16, 20, 30}) {
      const pid_t child = fork();
      if (child == 0) {
        int calls = 0;
        const auto made = prepare(options, [&](const PrepareProgress&) {
          if (++calls == kill_at) kill(getpid(), SIGKILL);
        });
        _exit(made.ok() ? 0 : 1);
      }
      int status = 0;
      REQUIRE(waitpid(child, &status, 0) == child);
      if (WIFSIGNALED(status)) CHECK_FALSE(open_dataset(options.folder, "prepared", 400, 0).ok());
    }
    const auto made = must(prepare(options));
    CHECK(made->train.hash == whole->train.hash);
    CHECK(made->validation.hash == whole->validation.hash);
    CHECK_FALSE(fs::exists(options.folder + "/train.bin.part"));
  }

  TEST_CASE("prepare: PREPARE-3, any number of jobs gives the same bytes") {
    const Folder folder;
    for (int i = 0; i < 23; ++i) {  // of very different sizes, one of them empty
      std::string text;
      for (int document = 0; document < i % 5 * 3; ++document)
        text +=
            prose(1 + i * i * document % 90, static_cast<uint32_t>(i + 1)) + "\n<|endoftext|>\n";
      folder.write("text/" + std::to_string(i) + ".txt", text + (i == 7 ? "\xff\n" : ""));
    }
    std::string expected;
    for (const int jobs : {1, 2, 3, 16, 100}) {
      CAPTURE(jobs);
      const PrepareOptions options{.source = folder.path + "/text",
                                   .corpus = {.skip_bad = 1},
                                   .folder = folder.path + "/" + std::to_string(jobs),
                                   .vocab = 400,
                                   .validation_fraction = 0.1,
                                   .jobs = jobs};
      const auto made = must(prepare(options));
      CHECK(made->bad_lines == 1);
      const std::string bytes = contents(options.folder + "/train.bin") +
                                contents(options.folder + "/validation.bin") + made->source_hash +
                                std::to_string(made->documents);
      if (jobs == 1) expected = bytes;
      CHECK(bytes == expected);
      CHECK_FALSE(fs::exists(options.folder + "/pieces"));
    }
  }

  TEST_CASE("prepare: the error of the first bad file counts, whatever the number of jobs") {
    const Folder folder;
    for (int i = 10; i < 40; ++i)
      folder.write("text/" + std::to_string(i) + ".txt", prose(20) + (i % 10 == 7 ? "\xff\n" : ""));
    const std::string tokenizer = folder.path + "/first";
    REQUIRE(
        prepare({.source = folder.path + "/text/10.txt", .folder = tokenizer, .vocab = 300}).ok());
    for (const int jobs : {1, 4, 30})
      for (const uint64_t skip : {0u, 1u, 2u}) {
        const auto made = prepare({.source = folder.path + "/text",
                                   .corpus = {.skip_bad = skip},
                                   .folder = folder.path + "/prepared",
                                   .tokenizer_path = tokenizer + "/tokenizer.model",
                                   .jobs = jobs});
        const std::string file = std::to_string(17 + 10 * skip) + ".txt";
        CHECK(says(made.status(), Code::bad_data, "/" + file + ": line "));
      }
  }

  TEST_CASE("prepare: PREPARE-4, files that were encoded before an interruption are kept") {
    const Folder folder;
    const std::string first = folder.write("text/1.txt", prose(300, 1));
    folder.write("text/2.txt", prose(300, 2));
    folder.write("text/3.txt", prose(300, 3) + "\xff\n");
    REQUIRE(prepare({.source = first, .folder = folder.path + "/first", .vocab = 400}).ok());
    PrepareOptions options{.source = folder.path + "/text",
                           .folder = folder.path + "/prepared",
                           .tokenizer_path = folder.path + "/first/tokenizer.model",
                           .jobs = 1};
    CHECK(prepare(options).status().code() == Code::bad_data);
    const auto pieces = [&] {
      size_t count = 0;
      for (const auto& entry : fs::directory_iterator(options.folder + "/pieces"))
        count += entry.path().extension() == ".tokens";
      return count;
    };
    CHECK(pieces() == 2);
    const auto kept = [&] {
      uint64_t kept_files = 0;
      const auto made = prepare(
          options, [&](const PrepareProgress& progress) { kept_files = progress.kept_files; });
      REQUIRE_MESSAGE(made.ok(), made.status().message());
      return kept_files;
    };
    // Damaged, of a file that has changed since, and whole.
    for (const auto& entry : fs::directory_iterator(options.folder + "/pieces"))
      if (entry.path().extension() == ".tokens")
        fs::resize_file(entry.path(), fs::file_size(entry.path()) - 1);
    folder.write("text/3.txt", prose(300, 3));
    std::ofstream(folder.path + "/text/4.txt") << "\xff\n";
    CHECK(prepare(options).status().code() == Code::bad_data);
    CHECK(pieces() == 3);
    folder.write("text/4.txt", prose(10, 4));
    folder.write("text/2.txt", prose(301, 2));
    CHECK(kept() == 2);
    CHECK_FALSE(fs::exists(options.folder + "/pieces"));
    options.folder = folder.path + "/again";
    CHECK(kept() == 0);
    for (const char* name : {"/train.bin", "/validation.bin"})
      CHECK(contents(folder.path + "/prepared" + name) == contents(options.folder + name));
    // Another tokenizer has other pieces.
    options.folder = folder.path + "/other";
    std::ofstream(folder.path + "/text/5.txt") << "\xff\n";
    CHECK(prepare(options).status().code() == Code::bad_data);
    REQUIRE(prepare({.source = first, .folder = folder.path + "/second", .vocab = 420}).ok());
    options.tokenizer_path = folder.path + "/second/tokenizer.model";
    fs::remove(folder.path + "/text/5.txt");
    CHECK(kept() == 0);
  }

  TEST_CASE("prepare: an existing tokenizer is copied as it is; impossible options are named") {
    const Folder folder;
    PrepareOptions options{
        .source = folder.write("text.txt", prose(800)), .folder = folder.path + "/a", .vocab = 400};
    REQUIRE(prepare(options).ok());
    options.tokenizer_path = options.folder + "/tokenizer.model";
    options.folder = folder.path + "/b";
    options.vocab = 0;
    const auto made = must(prepare(options));
    CHECK(made->vocab == 400);
    CHECK(contents(folder.path + "/a/train.bin") == contents(folder.path + "/b/train.bin"));
    options.vocab = 399;
    CHECK(prepare(options).status().code() == Code::bad_data);
    options.tokenizer_path.clear();
    options.vocab = 10;
    CHECK(prepare(options).status().code() == Code::bad_config);
    options.vocab = 4096;
    CHECK(has(prepare(options).status(), "cannot train a tokenizer of 4096 tokens"));
    options.folder = "/proc/nothing";
    CHECK(prepare(options).status().code() == Code::io);
  }

  TEST_CASE("prepare: the King James Bible of the Debian package") {
    const auto corpus = Corpus::open("debian:bible-kjv");
    if (!corpus.ok()) return skipped(corpus.status().message());
    const auto read = read_all("debian:bible-kjv");
    CHECK(read.documents.size() == 66);
    size_t bytes = 0;
    for (const auto& book : read.documents) bytes += book.size();
    CHECK(bytes > 4'000'000);
    CHECK(read.documents[0].starts_with(
        "In the beginning God created the heaven and the earth. And the earth was"));
    CHECK(
        read.documents[65].ends_with("The grace of our Lord Jesus Christ be with you all. Amen."));
    CHECK(read.documents[65].find_first_of("0123456789") == std::string::npos);
  }
}
