// JSON lines and compressed text.
#include "tools/prepare/corpus.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/words.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

struct Folder : test::TempFolder {
  /// Compressed as its name says; the end is cut off if bytes_cut > 0.
  std::string compress(const std::string& name, const std::string& text,
                       uint64_t bytes_cut = 0) const {
    fs::create_directories(fs::path(path + "/" + name).parent_path());
    const std::string file = path + "/" + name;
    archive* out = archive_write_new();
    if (file.ends_with(".gz")) archive_write_add_filter_gzip(out);
    if (file.ends_with(".zst")) archive_write_add_filter_zstd(out);
    if (file.ends_with(".xz")) archive_write_add_filter_xz(out);
    if (file.ends_with(".bz2")) archive_write_add_filter_bzip2(out);
    archive_write_set_format_raw(out);
    REQUIRE(archive_write_open_filename(out, file.c_str()) == ARCHIVE_OK);
    archive_entry* entry = archive_entry_new();
    archive_entry_set_filetype(entry, AE_IFREG);
    REQUIRE(archive_write_header(out, entry) == ARCHIVE_OK);
    REQUIRE(archive_write_data(out, text.data(), text.size()) ==
            static_cast<la_ssize_t>(text.size()));
    archive_entry_free(entry);
    REQUIRE(archive_write_free(out) == ARCHIVE_OK);
    if (bytes_cut > 0) fs::resize_file(file, fs::file_size(file) - bytes_cut);
    return file;
  }
};

struct Read {
  std::vector<std::string> documents;
  uint64_t bad_lines = 0;
  Status status;
};
Read read(const std::string& source, const CorpusOptions& options = {}) {
  Read read;
  const auto corpus = Corpus::open(source, options);
  read.status = corpus.status();
  if (!corpus.ok()) return read;
  const auto done = corpus->read([&](TextChunk chunk, double fraction) {
    CHECK(fraction <= 1);
    if (chunk.begins_document) read.documents.emplace_back();
    read.documents.back() += chunk.text;
    return Status();
  });
  read.status = done.status();
  if (done.ok()) read.bad_lines = *done;
  return read;
}

using Documents = std::vector<std::string>;

/// Numbered lines, longer than the reader's buffers.
std::string long_text() {
  std::string text;
  for (int i = 0; i < 60'000; ++i) text += "line number " + std::to_string(i) + "\n";
  return text;
}

}  // namespace

TEST_SUITE("corpus") {
  TEST_CASE("corpus: each line of a .jsonl file is a document") {
    const Folder folder;
    const std::string file = folder.write("a.jsonl",
                                          "{\"text\":\"one\\ntwo\",\"meta\":{\"deep\":[1,{}]}}"
                                          "\r\n\n{\"id\":1,\"text\":\" caf\\u00e9 \\ud83d\\ude00 "
                                          "<|endoftext|>\"}\n{\"text\":\"\"}\n{\"text\":\"last\"}");
    const Read all = read(file);
    CHECK(all.status.ok());
    CHECK(all.documents == Documents{"one\ntwo", " café 😀 <|endoftext|>", "last"});
    CHECK(read(folder.write("b.jsonl", "{\"body\":\"x\",\"text\":\"y\"}"), {.text_key = "body"})
              .documents == Documents{"x"});
    CHECK(Corpus::open(file)->signature() != Corpus::open(file, {.text_key = "body"})->signature());
    const std::string text = folder.write("a.txt", "x");
    CHECK(Corpus::open(text)->signature() == Corpus::open(text, {.text_key = "body"})->signature());
  }

  TEST_CASE("corpus: a link of another user does not lead out of the folder") {
    if (geteuid() != 0) return skipped("only root can make links of another user");
    const Folder folder;
    const std::string texts = folder.path + "/texts",
                      secret = folder.write("secret.txt", "a private text");
    folder.write("texts/below/a.txt", "a public text");
    const auto link = [&](const std::string& target, const std::string& name, uid_t owner) {
      const std::string path = folder.path + "/" + name;
      fs::remove(path);
      fs::create_symlink(target, path);
      REQUIRE(lchown(path.c_str(), owner, owner) == 0);
    };
    const auto refused = [&](const Status& status, const std::string& name) {
      CHECK(says(status, Code::bad_data, name + " is a link to "));
      CHECK(has(status.message(), "outside of the folder"));
    };
    constexpr uid_t stranger = 65534;
    link(secret, "texts/b.txt", stranger);
    refused(read(texts).status, "texts/b.txt");
    link("below/a.txt", "texts/b.txt", stranger);
    CHECK(read(texts).documents.size() == 2);
    // One's own text often lies on several disks.
    link(secret, "texts/b.txt", 0);
    CHECK(read(texts).documents == Documents{"a private text", "a public text"});
    // A stranger's link or folder that one's own link leads to may lead on to another file.
    link(secret, "shared.txt", stranger);
    link("../shared.txt", "texts/b.txt", 0);
    refused(read(texts).status, "texts/b.txt");
    link(folder.path, "shared", stranger);
    link(folder.path + "/shared/secret.txt", "texts/b.txt", 0);
    refused(read(texts).status, "texts/b.txt");
    link("../texts/../secret.txt", "texts/b.txt", 0);
    CHECK(read(texts).documents == Documents{"a private text", "a public text"});

    // A file, or a folder, is replaced after the links were looked at.
    const auto read_after = [&](const std::function<void()>& change) {
      const auto corpus = must(Corpus::open(texts));
      change();
      return corpus->read([](TextChunk, double) { return Status(); }).status();
    };
    refused(read_after([&] { link(secret, "texts/b.txt", stranger); }), "texts/b.txt");
    fs::remove(texts + "/b.txt");
    folder.write("others/a.txt", "a private text");
    const Status moved = read_after([&] {
      fs::rename(texts + "/below", folder.path + "/away");
      link(folder.path + "/others", "texts/below", stranger);
    });
    CHECK(says(moved, Code::bad_data, "outside of the folder"));

    // The cache of huggingface_hub, filled by another user.
    folder.write("datasets--a/blobs/c0ffee", "a cached text");
    fs::create_directories(folder.path + "/datasets--a/snapshots/0123/data");
    link("../../../blobs/c0ffee", "datasets--a/snapshots/0123/data/a.txt", stranger);
    CHECK(read(folder.path + "/datasets--a/snapshots/0123").documents ==
          Documents{"a cached text"});
    link(secret, "datasets--a/snapshots/0123/data/a.txt", stranger);
    refused(read(folder.path + "/datasets--a/snapshots/0123").status, "data/a.txt");
  }

  TEST_CASE("corpus: a row's masked characters become bytes of its chunks") {
    const Folder folder;
    std::string body;                          // of several chunks; every tenth line is masked
    std::string ranges = "[0,1],[3,3],[0,1]";  // a blank at the front, which does not count
    for (int line = 0; line < 9000; ++line) {
      const size_t begin = 1 + static_cast<size_t>(line) * 6;
      body += line % 10 == 0 ? "QQQQ\xC3\xA9\\n" : "abcd\xC3\xA9\\n";
      if (line % 10 == 0)
        ranges += ",[" + std::to_string(begin) + "," + std::to_string(begin + 5) + "]";
    }
    const std::string file =
        folder.write("a.jsonl", "{\"text\":\" " + body + "\",\"mask\":[" + ranges +
                                    "]}\n{\"text\":\"x\",\"mask\":null}\n{\"text\":\"y\"}\n");
    const CorpusOptions options{.mask_key = "mask"};
    const auto corpus = Corpus::open(file, options);
    size_t chunks = 0, masked = 0;
    REQUIRE(corpus
                ->read([&](TextChunk chunk, double) {
                  ++chunks;
                  std::string covered(chunk.text.size(), '.');
                  for (const IndexRange& range : chunk.masked)
                    for (uint64_t i = range.begin; i < range.end; ++i) covered.at(i) = 'm';
                  for (size_t i = 0; i < chunk.text.size(); ++i) {
                    if (chunk.text[i] == 'Q') REQUIRE(covered[i] == 'm');
                    if (std::islower(static_cast<unsigned char>(chunk.text[i])))
                      REQUIRE(covered[i] == '.');
                    masked += covered[i] == 'm';
                  }
                  return Status();
                })
                .ok());
    CHECK(chunks > 4);
    CHECK(masked == 1 + 900 * 6);
    CHECK(corpus->signature() != Corpus::open(file)->signature());
    CHECK(corpus->signature(0) != Corpus::open(file)->signature(0));
  }

  TEST_CASE("corpus: a bad line is named with file and number, or left out") {
    const Folder folder;
    const std::string good = "{\"text\":\"good\"}\n";
    const std::pair<const char*, const char*> bad[] = {
        {"{\"text\":\"half", "line 2: it is no JSON"},
        {"{\"text\":\"caf\xE9\"}", "line 2: it is no JSON"},
        {"{\"text\":\"\\ud83d\"}", "line 2: its text \"text\" has half a surrogate pair"},
        {"{\"text\":\"\\ude00\\ud83d\"}", "line 2: its text \"text\" has half a surrogate pair"},
        {"{\"text\":\"a\",\"b\":\"\\ud83d", "line 2: it is no JSON"},
        {"[\"text\"]", "line 2: it is no JSON object, such as {\"text\": \"...\"}"},
        {"{", "line 2: it is no JSON (each line must hold a whole object): column 2"},
        {"{\"text\":\"x\",\"y\":NaNs}", "line 2: it is no JSON"},
        {"{\"text\":\"x\",\"y\":NaN\"}", "line 2: it is no JSON"},
        {"{\"text\":NaN,\"z\":\"z\"}", "its texts are: z"},
        {"{\"a\":{\"text\":\"x\"}}", "are: none; those inside of other members are not read"},
        {"{\"text\":7,\"title\":\"t\",\"body\":\"b\"}", "its texts are: body, title"}};
    for (const auto& [line, error] : bad) {
      const std::string file = folder.write("a.jsonl", good + line + "\n" + good);
      const Read strict = read(file);
      CHECK(says(strict.status, Code::bad_data, file + ": line 2: "));
      CHECK_MESSAGE(has(strict.status.message(), error), strict.status.message());
      const Read patient = read(file, {.skip_bad = 1});
      CHECK(patient.status.ok());
      CHECK(patient.bad_lines == 1);
      CHECK(patient.documents == Documents{"good", "good"});
    }
    const std::pair<const char*, const char*> masks[] = {
        {"7", "\"mask\" (data.loss_mask_key) is no list of ranges"},
        {"[1,2]", "range 0 is 1; it must be [begin, end]"},
        {"[[0,1],[3,2]]", "range 1 is [3,2]; it must be"},
        {"[[-1,2]]", "range 0 is [-1,2]; it must be"},
        {"[[0,1.5]]", "range 0 is [0,1.5]; it must be"},
        {"[[0,1,2]]", "range 0 is [0,1,2]; it must be"},
        {"[{\"begin\":0}]", "range 0 is an object; it must be"},
        {"[[[0,1]]]", "range 0 is another list; it must be"},
        {"[[0,2],[3,9]]", "[3, 9] is beyond the text, which has 8 characters"}};
    for (const auto& [mask, error] : masks) {
      const std::string row = std::string(R"({"text":"caf\u00e9 \ud83d\ude00 x","mask":)") + mask;
      const std::string file = folder.write("masks.jsonl", good + row + "}\n" + good);
      const Read strict = read(file, {.mask_key = "mask"});
      CHECK(says(strict.status, Code::bad_data, file + ": line 2: "));
      CHECK_MESSAGE(has(strict.status.message(), error), strict.status.message());
      CHECK(read(file, {.mask_key = "mask", .skip_bad = 1}).documents == Documents{"good", "good"});
      CHECK(read(file).documents.size() == 3);
    }
    const std::string two = folder.write("two.jsonl", "{\n{\n" + good);
    CHECK(has(read(two, {.skip_bad = 1}).status.message(),
              "line 2: it is no JSON (each line must hold a whole object): column 2: "));
    CHECK(has(read(two, {.skip_bad = 1}).status.message(), "data.skip_bad = 1"));
    CHECK(read(two, {.skip_bad = 2}).documents == Documents{"good"});
    const std::string latin = folder.write("a.txt", "one\ncaf\xE9\ntwo");
    CHECK(has(read(latin).status.message(), "line 2, byte 3: not UTF-8"));
    CHECK(read(latin, {.skip_bad = 1}).documents == Documents{"one\ntwo"});
    // So deep that a recursive function overflows its stack.
    const std::string nested = std::string(1 << 20, '[') + std::string(1 << 20, ']');
    CHECK(has(read(folder.write("nested.jsonl", "{\"text\":\"x\",\"mask\":" + nested + "}"),
                   {.mask_key = "mask"})
                  .status.message(),
              "range 0 is another list"));
    const std::string deep = "{\"text\":\"x\",\"deep\":" + std::string(1 << 20, '[');
    CHECK(read(folder.write("deep.jsonl", deep)).status.code() == Code::bad_data);
    CHECK(read(folder.write("deep2.jsonl", deep + std::string(1 << 20, ']') + "}")).documents ==
          Documents{"x"});
  }

  TEST_CASE("corpus: the error of a bad line is short, however long the line is") {
    const Folder folder;
    folder.write("a.jsonl", "{\"text\": \"" + std::string(1 << 20, 'a') + "\n");
    const Status status = read(folder.path + "/a.jsonl").status;
    CHECK(has(status.message(), "missing closing quote"));
    CHECK(status.message().size() < 1000);
  }

  TEST_CASE("corpus: numbers that only Python's json writes are read beside the text") {
    const Folder folder;
    CHECK(
        read(folder.write("a.jsonl",
                          R"({"score":NaN,"text":"NaN \" 1e999","x":[-Infinity,1e999,-1E+400,1.5]})"
                          "\n"
                          R"({"x":-1e-999,"y":Infinity,"text":"b"})"))
            .documents == Documents{"NaN \" 1e999", "b"});
  }

  TEST_CASE("corpus: half a surrogate pair counts only in the text") {
    const Folder folder;
    CHECK(read(folder.write("a.jsonl", R"({"author":"\ud83d","text":"\ud83d\ude00 a"})"
                                       "\n"
                                       R"({"text":"b \\ud83d","x":["\ude00\ud83d"],"\uDFFF":NaN})"
                                       "\n"
                                       R"({"text":"\udbff\udfff","x":NaN})"))
              .documents == Documents{"\xF0\x9F\x98\x80 a", "b \\ud83d", "\xF4\x8F\xBF\xBF"});
    CHECK(has(read(folder.write("half.jsonl", "{\"text\":\"\\ud83d\",\"x\":\"\xF4\x8F\xBF\xBF\"}"))
                  .status.message(),
              "half a surrogate pair"));
  }

  TEST_CASE("corpus: a compressed or parquet file with the name of a text is named as such") {
    const Folder folder;
    const std::pair<std::string, const char*> files[] = {
        {"\x1F\x8B\x08", ".gz"},
        {"\x28\xB5\x2F\xFD", ".zst"},
        {std::string("\xFD\x37zXZ\0", 6), ".xz"},
        {"BZh91AY&SY", ".bz2"},
        {"PAR1\x15\x04", ".parquet"},
    };
    for (const char* name : {"a.txt", "a.jsonl"}) {
      const std::string file = folder.write(name, "\x04\x22\x4D\x18\x64\x40\xA7\nmore");
      CHECK(
          has(read(file, {.skip_bad = 9}).status.message(), "its first bytes it is an .lz4 file"));
    }
    for (const auto& [bytes, ending] : files)
      for (const char* name : {"a.txt", "a.jsonl"})
        CHECK(has(read(folder.write(name, bytes + "\nmore")).status.message(),
                  std::string("it is no text, but a ") + ending + " file by its first bytes"));
    CHECK(has(read(folder.compress("a.txt.gz", files[0].first)).status.message(),
              "it holds no text, but a .gz file: unpack it once"));
    for (const char* text : {"BZh9 and PAR1", "BZh", "GGUF", "%PDF- is how", "LITPKDS"})
      CHECK(read(folder.write("a.txt", text)).documents == Documents{text});
  }

  TEST_CASE("corpus: hidden files and folders below a folder are of tools, and are left out") {
    const Folder folder;
    for (const char* path : {"t/a.txt", "t/.b.txt", "t/.git/c.txt", "t/d/._e.txt", ".t/f.txt"}) {
      std::filesystem::create_directories(
          std::filesystem::path(folder.path + "/" + path).parent_path());
      folder.write(path, path);
    }
    CHECK(read(folder.path + "/t").documents == Documents{"t/a.txt"});
    CHECK(
        has(Corpus::open(folder.path + "/t")->notes().front(),
            folder.path + "/t: 3 files are not read: .b.txt, .git/, d/._e.txt (text is read from"));
    CHECK(read(folder.path + "/.t").documents == Documents{".t/f.txt"});
    CHECK(read(folder.path + "/t/.b.txt").documents == Documents{"t/.b.txt"});
  }

  TEST_CASE("corpus: UTF-16, and a window of zstd that is too large, are named with their remedy") {
    const Folder folder;
    for (const char* name : {"a.txt", "a.jsonl"})
      for (const std::string& bytes :
           {std::string("\xFF\xFEh\0i\0", 6), std::string("\xFE\xFF\0h", 4)}) {
        const Read found = read(folder.write(name, bytes), {.skip_bad = 100});
        CHECK(says(found.status, Code::bad_data,
                   "it is UTF-16; convert it: iconv -f utf-16 -t utf8"));
      }
    // The header of a frame with a window of 2 GiB, as zstd --long=31 makes it, and an empty block.
    const std::string zst =
        folder.write("w.txt.zst", std::string("\x28\xB5\x2F\xFD\0\xA8\1\0\0", 9));
    CHECK(read(zst).status.message() == zst +
                                            ": cannot read it: its window is larger than 128 MiB "
                                            "(zstd --long=28 or more); compress "
                                            "it again: zstd -dc --long=31 " +
                                            zst + " | zstd -o NEW");
  }

  TEST_CASE("corpus: compressed text is that of the plain file") {
    const Folder folder;
    const std::string text = long_text(), json = "{\"text\":\"a\"}\n{\"text\":\"b\"}\n";
    const Read plain = read(folder.write("plain.txt", text));
    REQUIRE(plain.documents.size() == 1);
    for (const char* suffix : {".gz", ".zst", ".xz", ".bz2"}) {
      CHECK(read(folder.compress(std::string("a.txt") + suffix, text)).documents ==
            plain.documents);
      CHECK(read(folder.compress(std::string("a.jsonl") + suffix, json)).documents ==
            Documents{"a", "b"});
      CHECK(read(folder.compress(std::string("a.json") + suffix, json)).documents ==
            Documents{"a", "b"});
    }
    CHECK(has(read(folder.compress("empty.txt.gz", "")).status.message(), "it holds no text"));
    // Several frames in one file, as `cat a.zst b.zst` makes them; and zeros that fill a tape's block.
    for (const char* suffix : {".gz", ".zst"}) {
      std::string all;
      for (const char* part : {"one\n", "", "two\n"})
        all += test::contents(folder.compress(std::string("part.txt") + suffix, part));
      CHECK(read(folder.write(std::string("1.txt") + suffix, all)).documents ==
            Documents{"one\ntwo"});
      if (suffix == std::string(".gz"))
        CHECK(read(folder.write("2.txt.gz", all + std::string(512, '\0'))).documents ==
              Documents{"one\ntwo"});
    }
  }

  TEST_CASE("corpus: a compressed file that is cut off or is none is named") {
    const Folder folder;
    for (const char* suffix : {".gz", ".zst", ".xz", ".bz2"})
      for (const uint64_t cut : {1, 30, 2000}) {
        const std::string file = folder.compress(std::string("a.txt") + suffix, long_text(), cut);
        const Read cut_off = read(file, {.skip_bad = 100});
        CHECK_MESSAGE(cut_off.status.code() == Code::bad_data, file << ", " << cut);
        CHECK(has(cut_off.status.message(), file + ": "));
      }
    for (const char* suffix : {".gz", ".zst", ".xz", ".bz2"})
      CHECK(has(read(folder.write(std::string("b.txt") + suffix, "plain text")).status.message(),
                "but it is not"));
    // Damaged bytes that can be unpacked all the same.
    for (const char* suffix : {".gz", ".xz", ".bz2"}) {
      const std::string whole =
          test::contents(folder.compress(std::string("a.txt") + suffix, long_text()));
      for (size_t at = 20; at < whole.size(); at += whole.size() / 20) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 4);
        const Read one = read(folder.write(std::string("d.txt") + suffix, damaged));
        CHECK_MESSAGE(one.status.code() == Code::bad_data, suffix << ", byte " << at);
      }
    }
    // Plain text that begins like a compressed file is text.
    CHECK(read(folder.write("c.txt", "BZh9 is how a bzip2 file begins")).documents.size() == 1);
  }

  TEST_CASE("corpus: a compressed file of several parts is read as a whole, or refused") {
    const Folder folder;
    for (const std::string suffix : {".gz", ".zst", ".xz", ".bz2"}) {
      CAPTURE(suffix);
      const std::string first = test::contents(folder.compress("one.txt" + suffix, "one\n")),
                        second = test::contents(folder.compress("two.txt" + suffix, "two\n"));
      const std::string file = folder.write("a.txt" + suffix, first + second);
      CHECK(read(file).documents == Documents{"one\ntwo"});
      // Cut off at each byte, as the tools' own option -t tells; and with a strange end.
      for (size_t bytes = 0; bytes < first.size() + second.size(); ++bytes) {
        const Read cut = read(folder.write("a.txt" + suffix, (first + second).substr(0, bytes)));
        CHECK_MESSAGE(cut.status.ok() == (bytes == first.size()), bytes);
        if (cut.status.ok()) CHECK(cut.documents == Documents{"one"});
      }
      for (const std::string& strange : {std::string("garbage"), std::string("\1\2\3\4\5\6\7\b\t")})
        CHECK_FALSE(read(folder.write("a.txt" + suffix, first + strange)).status.ok());
    }
  }

  TEST_CASE("corpus: a compressed file of 0 bytes is cut off") {
    const Folder folder;
    folder.write("t/a.jsonl", "{\"text\":\"a\"}\n");
    folder.write("t/b.txt", "");
    CHECK(read(folder.path + "/t").documents == Documents{"a"});
    for (const char* name : {"t/c.jsonl.gz", "t/c.TXT.ZST", "t/c.json.xz", "t/c.txt.bz2"}) {
      const std::string file = folder.write(name, "");
      for (const std::string& source : {file, folder.path + "/t"}) {
        const Status status = read(source, {.skip_bad = 9}).status;
        CHECK(
            says(status, Code::bad_data, file + ": it is compressed by its name, and has 0 bytes"));
      }
      fs::remove(file);
    }
  }

  TEST_CASE("corpus: what a folder holds is read, refused or told") {
    const Folder folder;
    const std::string texts = folder.path + "/t";
    const auto told = [&] {
      const auto corpus = Corpus::open(texts);
      return corpus.ok() ? joined(corpus->notes(), "\n") : corpus.status().message();
    };
    folder.write("t/a.jsonl", "{\"text\":\"a\"}\n");
    CHECK(told().empty());
    for (const char* name : {"b.jsonl.zstd", "b.jsonl.lz4", "b.json", "b.pq", "part-00000",
                             "b.text", "_SUCCESS", "below/c.csv"}) {
      const std::string file = folder.write(std::string("t/") + name, "x");
      CHECK_MESSAGE(has(told(), std::string("1 file is not read: ") + name + " (text"), told());
      fs::remove(file);
    }
    for (int i = 10; i < 30; ++i) folder.write("t/part-" + std::to_string(i), "x");
    CHECK(has(told(), "20 files are not read: part-10, part-11"));
    CHECK(has(told(), "part-19 and 10 more (text"));
    for (int i = 10; i < 30; ++i) fs::remove(texts + "/part-" + std::to_string(i));
    REQUIRE(mkfifo((texts + "/pipe.jsonl").c_str(), 0600) == 0);  // opening it would block
    CHECK(has(told(), "1 file is not read: pipe.jsonl"));
    fs::remove(texts + "/pipe.jsonl");

    // Links to nowhere.
    for (const char* target : {"nowhere.jsonl", "b.jsonl"}) {
      fs::create_symlink(target, texts + "/b.jsonl");
      CHECK(read(texts).status.code() == Code::bad_data);
      CHECK(has(told(), texts + "/b.jsonl: it is a link to " + target + ": "));
      fs::remove(texts + "/b.jsonl");
    }
    // Linked folders are read; a circle of links ends.
    folder.write("far/b.jsonl", "{\"text\":\"b\"}\n");
    folder.write("far/below/c.txt", "c");
    fs::create_symlink("../far", texts + "/part2");
    CHECK(read(texts).documents == Documents{"a", "b", "c"});
    CHECK(told().empty());
    fs::create_symlink("..", folder.path + "/far/below/up");
    fs::create_symlink(folder.path + "/t", folder.path + "/far/back");
    fs::create_symlink(".", texts + "/self");
    CHECK(read(texts).documents == Documents{"a", "b", "c"});
    CHECK(has(told(), "3 files are not read: part2/back/, part2/below/up/, self/"));
    // A folder keeps its own name.
    folder.write("t/z/d.txt", "d");
    fs::create_symlink("z", texts + "/b");
    CHECK(Corpus::open(texts)->name(3) == "z/d.txt");
    CHECK(has(told(), "4 files are not read: b/, "));

    fs::create_symlink("a.jsonl", texts + "/y.jsonl");
    CHECK(read(texts).documents.size() == 5);
    CHECK(told().ends_with("1 file is read more than once, by links to files: y.jsonl"));
    folder.write("none/x.parq", "x");
    CHECK(has(read(folder.path + "/none").status.message(),
              "no text was found, the folder holds no .txt, .jsonl or .parquet files (.gz, .zst, "
              ".xz, .bz2); 1 file is not read: x.parq"));
  }

  TEST_CASE("corpus: another user's link to a folder names nothing in it") {
    if (geteuid() != 0) return skipped("only root can make links of another user");
    const Folder folder;
    folder.write("t/a.txt", "a");
    folder.write("t/below/b.txt", "b");
    folder.write("private/letter.odt", "x");
    const auto link = [&](const std::string& target) {
      fs::remove(folder.path + "/t/link");
      fs::create_symlink(target, folder.path + "/t/link");
      REQUIRE(lchown((folder.path + "/t/link").c_str(), 65534, 65534) == 0);
    };
    link("../private");
    const Status refused = read(folder.path + "/t").status;
    CHECK(says(refused, Code::bad_data, "t/link: it is a link of another user to"));
    CHECK_FALSE(has(refused.message(), "letter"));
    link("below");
    CHECK(read(folder.path + "/t").documents == Documents{"a", "b"});
  }

  TEST_CASE("corpus: the files of a folder in the order of their paths, whatever their kind") {
    const Folder folder;
    folder.write("in/b.jsonl", "{\"text\":\"2\"}\n{\"text\":\"3\"}");
    folder.compress("in/a.txt.zst", "1");
    folder.compress("in/sub/c.json.gz", "{\"text\":\"4\"}");
    folder.write("in/config.json", "not read");
    // A .json file that is named itself is no plain text.
    CHECK(read(folder.write("lines.json", "{\"text\":\"5\"}\n")).documents == Documents{"5"});
    CHECK(has(read(folder.path + "/in/config.json").status.message(), "line 1: it is no JSON"));
    CHECK(has(read(folder.write("list.json", "[{\"text\":\"5\"}]\n")).status.message(),
              "line 1: it is no JSON object"));
    CHECK(read(folder.path + "/in").documents == Documents{"1", "2", "3", "4"});
  }

  TEST_CASE("corpus: what a file holds is told by its ending, in capitals or not") {
    const Folder folder;
    const std::string row = "{\"text\":\"1\"}\n";
    for (const char* name : {"in/a.JSONL", "in/b.ndjson", "in/c.Ndjson"})
      CHECK_MESSAGE(read(folder.write(name, row)).documents == Documents{"1"}, name);
    CHECK(read(folder.write("one.JSON", row)).documents == Documents{"1"});
    folder.write("in/d.TXT", "2");
    CHECK(read(folder.path + "/in").documents == Documents{"1", "1", "1", "2"});
    for (const char* name : {"x.ndjson.zst", "x.JSONL.GZ", "x.txt.BZ2", "x.Xz"})
      CHECK_MESSAGE(!read(folder.write(name, row)).status.ok(), name);  // it is not compressed
  }

  TEST_CASE("corpus: a line that is too long is an error, not memory") {
    const Folder folder;
    const std::string line((16 << 20) + 1, 'x');
    CHECK(has(read(folder.write("a.txt", "first\n" + line)).status.message(),
              "line 2: it is longer than 16 MiB (it begins at byte 6)"));
    CHECK(has(read(folder.write("b.txt", "first\n" + line + "\nlast\n")).status.message(),
              "line 2: it is longer than 16 MiB (it begins at byte 6)"));
    CHECK(read(folder.write("a.jsonl", "{\"text\":\"" + line + "\"}")).status.ok());
  }

  TEST_CASE("corpus: many threads read long rows, of which a process holds two at a time") {
    const Folder folder;
    const std::string row = "{\"text\":\"" + std::string(3 << 20, 'a') + "\"}\n";
    for (int file = 0; file < 6; ++file)
      folder.write("t/" + std::to_string(file) + ".jsonl", row + row + "{\"text\":\"b\"}\n" + row);
    const auto corpus = must(Corpus::open(folder.path + "/t"));
    std::atomic<uint64_t> bytes = 0;
    std::vector<std::jthread> threads;
    for (size_t file = 0; file < corpus->files(); ++file)
      threads.emplace_back([&, file] {
        (void)corpus->read_file(file, 0, [&](TextChunk chunk, uint64_t) {
          bytes += chunk.text.size();
          return Status();
        });
      });
    threads.clear();
    CHECK(bytes == 6 * (3 * (3 << 20) + 1));
  }

  TEST_CASE("corpus: a row takes the memory of its line, whatever it holds") {
    const Folder folder;
    // With a value of JSON for each list this would need some GB.
    const std::string deep(size_t{24} << 20, '['), end(size_t{24} << 20, ']');
    const std::string file = folder.write(
        "a.jsonl", "{\"text\":\"a\",\"x\":" + deep + end + "}\n{\"text\":\"b\",\"x\":[0]}\n");
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
    std::ifstream pages("/proc/self/statm");
    uint64_t used = 0;
    pages >> used;
    const rlimit less{used * 4096 + (uint64_t{1} << 30), before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_AS, &less) == 0);
    const Read found = read(file);
    REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK_MESSAGE((found.documents == Documents{"a", "b"}), found.status.message());
  }

  TEST_CASE("corpus: a line that is too long is a bad line, which data.skip_bad leaves out") {
    const Folder folder;
    const std::string text_line((16 << 20) + 1, 'x'), json_line((64 << 20) + 1, 'x');
    const std::string text =
        folder.write("a.txt", "first\n" + text_line + "\nlast\n" + text_line + "x");
    CHECK(read(text, {.skip_bad = 2}).documents == Documents{"first\nlast"});
    CHECK(read(text, {.skip_bad = 2}).bad_lines == 2);
    const Status second = read(text, {.skip_bad = 1}).status;
    CHECK_MESSAGE(has(second.message(), "line 4: it is longer than 16 MiB (it begins at byte " +
                                            std::to_string(6 + text_line.size() + 6)),
                  second.message());
    CHECK(has(second.message(), "data.skip_bad = 1 bad lines were left out before"));
    const std::string json = folder.write(
        "a.jsonl", "{\"text\":\"1\"}\n" + json_line + "\n{\"text\":\"2\"}\n{\"text\":");
    CHECK(read(json, {.skip_bad = 2}).documents == Documents{"1", "2"});
    // Lines behind it have their own numbers.
    CHECK(has(read(json, {.skip_bad = 1}).status.message(), "line 4: it is no JSON"));
    // A damaged file behind such a line is no bad line.
    const std::string cut = folder.compress("b.txt.gz", text_line + long_text(), 2000);
    CHECK(read(cut, {.skip_bad = 100}).status.code() == Code::bad_data);
  }

  TEST_CASE(
      "corpus: a row's text is that of the file, byte for byte; one without text is left out") {
    const Folder folder;
    const std::string body = std::string(20'000, 'a') + std::string(20'000, '\n');
    const std::vector<std::string> texts = {"    def f():\n", "\n\n\tx\t\r\n ", " \n ", body,
                                            "\n" + body};
    std::string lines;
    for (const std::string& text : texts) {
      lines += "{\"text\":\"";
      for (const char c : text)
        lines += c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : std::string(1, c);
      lines += "\"}\n{\"text\":\"\"}\n";
    }
    CHECK(read(folder.write("a.jsonl", lines)).documents == texts);
    CHECK(read(folder.write("a.txt", "    def f():\n")).documents == Documents{"def f():"});
  }

  TEST_CASE("corpus: a text document is cut at newlines, without the blanks at its ends") {
    const Folder folder;
    // The definition: trim the document; a chunk ends at the first newline behind 16 KiB.
    const auto expected = [](std::string text) {
      text.erase(0, text.find_first_not_of(" \n"));
      text.resize(text.find_last_not_of(" \n") + 1);
      std::vector<std::string> chunks;
      for (size_t at = 0; at < text.size();) {
        const size_t end =
            std::min(text.find('\n', std::min(at + (16 << 10), text.size())), text.size());
        chunks.push_back(text.substr(at, end - at));
        at = end;
      }
      return chunks;
    };
    uint32_t random = 1;
    const auto draw = [&](uint32_t below) {
      random = random * 1664525 + 1013904223;
      return (random >> 8) % below;
    };
    for (int round = 0; round < 50; ++round) {
      std::string text;
      for (uint32_t i = 0, lines = draw(30); i <= lines; ++i)
        text += std::string(draw(4) == 0 ? draw(40'000) : draw(3), draw(3) == 0 ? ' ' : 'x') +
                std::string(1 + (draw(5) == 0 ? draw(20'000) : 0), '\n');
      text = "x" + text;
      std::vector<std::string> chunks;
      const auto corpus = Corpus::open(folder.write("a.txt", text));
      REQUIRE(corpus
                  ->read([&](TextChunk chunk, double) {
                    CHECK(chunk.begins_document == chunks.empty());
                    chunks.push_back(std::move(chunk.text));
                    return Status();
                  })
                  .ok());
      CHECK(chunks == expected(text));
    }
  }
}
