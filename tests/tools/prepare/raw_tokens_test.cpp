// Token files without a header: what contradicts the width that is said or taken for granted.
#include "runtime/data/raw_tokens.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/data/token_file.hpp"
#include "tests/must.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/token_notes.hpp"

using namespace simplescale;
using test::TempFolder;
using namespace std::string_literals;

namespace {

/// Ids 0, 31, 62, ... below `vocab`.
template <class Id>
std::string ids(size_t count, uint64_t vocab) {
  std::vector<Id> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = static_cast<Id>(i * 31 % vocab);
  return {reinterpret_cast<const char*>(all.data()), count * sizeof(Id)};
}

std::string swapped(std::string bytes, size_t width) {
  for (size_t at = 0; at < bytes.size(); at += width)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at + width));
  return bytes;
}

/// As numpy.save() writes it; type: 6 bytes.
std::string npy(const std::string& type, const std::string& shape, const std::string& data) {
  std::string head = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  head += std::string(117 - head.size(), ' ') + "\n";
  return "\x93NUMPY\x01\x00v\x00"s + head + data;
}

Status status_of(const std::string& path, const TokenKind& kind, int64_t vocab) {
  const auto data = open_dataset(path, kind, vocab, 0);
  return data.ok() ? data->train.validate() : data.status();
}

bool says(const Status& status, const std::string& text) {
  return status.code() == Code::bad_data && status.message().find(text) != std::string::npos;
}

std::vector<std::string> notes_of(const std::string& folder, const TokenKind& kind = "auto") {
  const auto data = must(open_dataset(folder, kind, 600, 0));
  const auto notes = must(token_notes(folder, kind, *data, {}));
  return *notes;
}

}  // namespace

TEST_SUITE("token raw") {
  TEST_CASE("token raw: wider ids are not read as u16") {
    const TempFolder folder;
    const std::string u32 = folder.write("u32.bin", ids<uint32_t>(4000, 90'000)),
                      small = folder.write("small.bin", ids<uint32_t>(4000, 600)),
                      i64 = folder.write("i64.bin", ids<int64_t>(4000, 600)),
                      big = folder.write("big.bin", swapped(ids<uint32_t>(4000, 600), 4)),
                      u16 = folder.write("u16.bin", ids<uint16_t>(4000, 600));
    for (const char* format : {"auto", "nanogpt"}) {
      CHECK(
          says(status_of(u32, format, 90'112), "the vocabulary has 90112 tokens: set data.token"));
      CHECK(says(status_of(small, format, 600), "they have 4; set data.token_bytes = 4"));
      CHECK(says(status_of(i64, format, 600), "they have 8; convert them"));
      CHECK(says(status_of(big, format, 600), "every second id is 0"));
      CHECK(status_of(u16, format, 600).ok());
      CHECK(status_of(u16, format, 65'536).ok());
      CHECK(says(status_of(u16, format, 65'537), "set data.token_bytes"));
    }
    CHECK(says(status_of(u32, {"auto", 2}, 90'112), "set data.token_bytes = 4"));
    CHECK(says(status_of(i64, {"auto", 4}, 600), "they have 8; convert them"));
    CHECK(says(status_of(i64, {"auto", 4}, 90'112), "they have 8; convert them"));
    CHECK(says(status_of(big, {"auto", 4}, 600), "is beyond the vocabulary"));
    CHECK(says(status_of(u16, {"auto", 4}, 600), "is beyond the vocabulary"));
    CHECK(status_of(u16, {"auto", 2}, 90'112).ok());
    CHECK(status_of(u32, {"nanogpt", 4}, 90'112).ok());
    const auto wide = must(open_dataset(small, {"auto", 4}, 600, 0));
    CHECK(wide->train.tokens() == 4000);
    CHECK(test::all_tokens(wide->train) ==
          test::all_tokens(open_dataset(u16, "auto", 600, 0)->train));
  }

  TEST_CASE("token raw: the whole file is looked at") {
    const TempFolder folder;
    std::string bytes = ids<uint16_t>(1 << 19, 600);
    const std::string wide = ids<uint32_t>(1 << 16, 600);
    bytes.replace(bytes.size() / 2, wide.size(), wide);
    CHECK(says(status_of(folder.write("a.bin", bytes), "auto", 600), "byte 524288: every second"));
    // Zeros that pad a file are ids like others; a file of nothing else is none.
    const std::string zeros(1 << 20, '\0');
    CHECK(status_of(folder.write("b.bin", ids<uint16_t>(1 << 19, 600) + zeros), "auto", 600).ok());
    CHECK(says(status_of(folder.write("c.bin", zeros), {"auto", 2}, 600), "its ids are all 0"));
  }

  TEST_CASE("token raw: nothing but the file says u16: the user is told") {
    const TempFolder folder;
    const std::string one = folder.write("d/a.bin", ids<uint16_t>(100, 600));
    CHECK(notes_of(one).size() == 1);
    CHECK(notes_of(one).front().starts_with(one + " has no header: its ids are read as u16"));
    CHECK(notes_of(one, {"auto", 2}).empty());
    CHECK(notes_of(one, "nanogpt").empty());
    folder.write("d/b.bin", ids<uint16_t>(100, 600));
    CHECK(notes_of(folder.path + "/d").front().starts_with(folder.path + "/d: 2 files have no"));
    CHECK(notes_of(folder.write("l.bin", llmc::header(2, 100) + ids<uint16_t>(100, 600))).empty());
  }

  TEST_CASE("token raw: files of another kind are named") {
    const TempFolder folder;
    const std::string rest = ids<uint16_t>(1000, 600);
    const std::pair<std::string, const char*> kinds[] = {
        {"\x1F\x8B\x08\x08\0\0\0\0\0\x03"s, "a .gz file"},
        {"\x28\xB5\x2F\xFD"s, "a .zst file"},
        {"\x50\x2A\x4D\x18"s, "a .zst file"},
        {"\xFD\x37zXZ\0"s, "an .xz file"},
        {"BZh91AY&SY"s, "a .bz2 file"},
        {"\x04\x22\x4D\x18"s, "an .lz4 file"},
        {"PK\x03\x04"s, "a zip archive"},
        {"PAR1\x15\x04"s, "a .parquet file"},
        {"\x80\x04\x95\x10\0\0\0\0\0\0\0"s, "a Python pickle"},
        {"\x08\x01\0\0\0\0\0\0{\"a\":"s, "a safetensors file"},
        {"GGUF\x03\0\0\0"s, "a GGUF file"},
        {"TNTIDX\0\0"s, "an index of fairseq"},
        {"<!DOCTYPE html>\n<html><head>"s + std::string(2000, 'x'), "a web page"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 9\n"s, "Git LFS"},
        {"<html>caf\xE9 \xFC"s + std::string(2000, 'x'), "a web page"},
        {"{\"message\": \"caf\xC3\xA9\"}"s + std::string(2000, ' '), "this is a text"}};
    for (const auto& [begin, name] : kinds)
      for (const TokenKind& kind :
           {TokenKind("auto"), TokenKind("nanogpt"), TokenKind("auto", 4)}) {
        const bool text = begin.size() > 20;
        const Status found =
            status_of(folder.write("x.bin", text ? begin : begin + rest), kind, 600);
        CHECK_MESSAGE(says(found, name), found.message());
      }
    CHECK(says(status_of(folder.write("x.bin", llmc::header(2, 1000) + rest), "nanogpt", 600),
               "a file of llm.c's u16 tokens"));
    CHECK(says(status_of(folder.write("a_text_document.bin", rest), "auto", 600),
               "Megatron tokens need their index"));
    CHECK(status_of(folder.path + "/a_text_document.bin", {"auto", 2}, 600).ok());
  }

  TEST_CASE("token raw: llm.c tokens with a damaged header are not bare ids") {
    const TempFolder folder;
    const std::string good = llmc::header(2, 1000) + ids<uint16_t>(1000, 600);
    REQUIRE(status_of(folder.write("a.bin", good), "auto", 600).ok());
    for (const auto& [from, to] : {std::pair{0, 1}, std::pair{0, 4}, std::pair{0, 16}}) {
      std::string damaged = good;
      for (int at = from; at < to; ++at) damaged[static_cast<size_t>(at)] = 1;
      CHECK(says(status_of(folder.write("a.bin", damaged), "auto", 600), "a damaged header"));
      CHECK(says(status_of(folder.path + "/a.bin", "nanogpt", 600), "a damaged header"));
    }
    for (const size_t cut : {4u, 100u, 700u})
      CHECK(
          says(status_of(folder.write("a.bin", good.substr(cut)), "auto", 600), "damaged header"));
    // A header that is cut off leaves bare ids, which its neighbours are not.
    folder.write("d/a.bin", good);
    CHECK(status_of(folder.path + "/d", "auto", 600).ok());
    folder.write("d/b.bin", good.substr(llmc::header_bytes));
    CHECK(says(status_of(folder.path + "/d", "auto", 600), "a folder holds one format"));
  }

  TEST_CASE("token raw: a folder has one format, and whole pairs") {
    const TempFolder folder;
    const std::string u16 = ids<uint16_t>(100, 600);
    folder.write("m/a.bin", u16);
    folder.write("m/a.idx", test::megatron_index({100}, {0, 1}));
    CHECK(status_of(folder.path + "/m", "auto", 600).ok());
    CHECK(notes_of(folder.path + "/m").empty());
    folder.write("m/b.bin", u16);
    CHECK(says(status_of(folder.path + "/m", "auto", 600), "is of bare ids, without a header"));
    CHECK(says(status_of(folder.path + "/m", "megatron", 600), "need their index"));
    std::filesystem::rename(folder.path + "/m/b.bin", folder.path + "/m/b.idx");
    const auto data = must(open_dataset(folder.path + "/m", "auto", 600, 0));
    CHECK(says(token_notes(folder.path + "/m", "auto", *data, {}).status(),
               "b.idx: the tokens of this index are missing"));
    folder.write("n/train.bin", llmc::header(2, 100) + u16);
    folder.write("n/val.bin", u16);
    CHECK(says(status_of(folder.path + "/n", "auto", 600), "a folder holds one format"));
    folder.write("n/val.bin", llmc::header(2, 100) + u16);
    folder.write("n/train_2.BIN", u16);
    folder.write("n/below/c.bin", u16);
    CHECK(notes_of(folder.path + "/n").front() ==
          folder.path + "/n: 2 files are not read: train_2.BIN, below/");
    folder.write("k/a.BIN", u16);
    folder.write("k/b_val.bin", u16);
    CHECK(open_dataset(folder.path + "/k", "auto", 600, 0)->validation.tokens() == 100);
    std::filesystem::create_symlink("nowhere", folder.path + "/k/c.bin");
    CHECK(says(status_of(folder.path + "/k", "auto", 600), "k/c.bin"));
  }

  TEST_CASE("token raw: data.token_bytes does not contradict a header") {
    const TempFolder folder;
    const std::string u16 = ids<uint16_t>(100, 600), u32 = ids<uint32_t>(100, 600);
    folder.write("m.bin", u16);
    folder.write("m.idx", test::megatron_index({100}, {0, 1}));
    folder.write("l.bin", llmc::header(2, 100) + u16);
    folder.write("w.bin", llmc::header(4, 100) + u32);
    folder.write("n.npy", npy("<u2", "(100,)", u16));
    for (const char* narrow : {"m.bin", "m", "l.bin", "n.npy"}) {
      CHECK(status_of(folder.path + "/" + narrow, {"auto", 2}, 600).ok());
      CHECK(says(status_of(folder.path + "/" + narrow, {"auto", 4}, 600), "data.token_bytes = 4"));
    }
    CHECK(says(status_of(folder.path + "/w.bin", {"llmc", 2}, 600), "data.token_bytes = 2"));
  }

  TEST_CASE("token raw: .npy files are read, or refused with advice") {
    const TempFolder folder;
    const std::vector<int32_t> expected = test::all_tokens(
        open_dataset(folder.write("a.bin", ids<uint16_t>(50, 600)), "auto", 600, 0)->train);
    const std::pair<const char*, std::string> types[] = {{"<u2", ids<uint16_t>(50, 600)},
                                                         {"<u4", ids<uint32_t>(50, 600)},
                                                         {"<i4", ids<int32_t>(50, 600)},
                                                         {"<i8", ids<int64_t>(50, 600)},
                                                         {"<u8", ids<uint64_t>(50, 600)}};
    for (const auto& [type, data] : types) {
      const std::string file = folder.write("x/a.npy", npy(type, "(50,)", data));
      for (const std::string& source : {file, folder.path + "/x"}) {
        const auto read = must(open_dataset(source, "auto", 600, 0));
        CHECK(test::all_tokens(read->train) == expected);
        CHECK(read->train.validate().ok());
        CHECK(notes_of(source).empty());
      }
      CHECK(says(status_of(file, "auto", 500), "is beyond the vocabulary of 500"));
    }
    const auto error = [&](const std::string& bytes) {
      return status_of(folder.write("y.npy", bytes), "auto", 600);
    };
    const std::string negative = ids<int64_t>(49, 600) + std::string(8, '\xFF');
    CHECK(says(error(npy("<i8", "(50,)", negative)), "is beyond the vocabulary"));
    CHECK(says(error(npy("<f4", "(50,)", types[1].second)), "type '<f4'"));
    CHECK(says(error(npy(">u2", "(50,)", types[0].second)), "type '>u2'"));
    CHECK(says(error(npy("<u2", "(5, 10)", types[0].second)), "reshape(-1)"));
    CHECK(says(error(npy("<u2", "(51,)", types[0].second)), "says 51 ids, but 50 follow"));
    CHECK(says(error(npy("<u2", "(50,)", "")), "the file holds no tokens"));
    CHECK(
        says(error(npy("<u2", "(50,)", types[0].second).substr(0, 60)), "ends within its header"));
    CHECK(says(error(types[0].second), "wrong magic for a .npy file"));
    CHECK(says(status_of(folder.write("z.bin", npy("<u2", "(50,)", types[0].second)), "auto", 600),
               "give its name that ending"));
    folder.write("x/b.bin", types[0].second);
    CHECK(says(status_of(folder.path + "/x", "auto", 600), "a folder holds one format"));
    // Megatron's indices beside its tokens are none.
    folder.write("m/a.bin", types[0].second);
    folder.write("m/a_doc_idx.npy", npy("<i8", "(50,)", types[3].second));
    CHECK(test::all_tokens(open_dataset(folder.path + "/m", "auto", 600, 0)->train) == expected);
  }
}
