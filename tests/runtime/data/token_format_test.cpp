// Token files that other programs made, and sources of several files.
#include "runtime/data/token_format.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/data/token_file.hpp"
#include "tests/must.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using test::all_tokens;
using test::bytes_of;
using test::TempFolder;

namespace {

/// `count` tokens from `first`.
template <class Token>
std::string counting(int first, int count) {
  return bytes_of(test::counting<Token>(count, first));
}

/// A Megatron index of sequences that follow each other, one a document.
std::string index(uint8_t type, int token_bytes, const std::vector<int32_t>& lengths) {
  std::vector<int64_t> pointers, documents = {0};
  int64_t byte = 0;
  for (const int32_t length : lengths) {
    pointers.push_back(byte);
    byte += int64_t{length} * token_bytes;
    documents.push_back(static_cast<int64_t>(pointers.size()));
  }
  return std::string("MMIDIDX\0\0", 9) + bytes_of(uint64_t{1}) + bytes_of(type) +
         bytes_of(static_cast<uint64_t>(lengths.size())) +
         bytes_of(static_cast<uint64_t>(documents.size())) + bytes_of(lengths) +
         bytes_of(pointers) + bytes_of(documents);
}

std::string litgpt(const std::string& tokens, uint8_t type = 8) {
  return "LITPKDS" + bytes_of(uint64_t{1}) + bytes_of(type) +
         bytes_of(static_cast<uint64_t>(tokens.size() / (type == 4 ? 4 : 2))) + tokens;
}

std::vector<int32_t> range(int first, int count) {
  return test::counting<int32_t>(count, first);
}

std::string error_of(const Result<Dataset>& result) {
  REQUIRE_FALSE(result.ok());
  CHECK(result.status().code() == Code::bad_data);
  return result.status().message();
}

}  // namespace

TEST_SUITE("token format") {
  TEST_CASE("token format: Megatron u16 and i32 by prefix, index or token file") {
    const TempFolder folder;
    folder.write("a.bin", counting<uint16_t>(0, 100));
    folder.write("a.idx", index(8, 2, {60, 0, 40}));
    folder.write("b.bin", counting<int32_t>(0, 100));
    folder.write("b.idx", index(4, 4, {100}));
    for (const char* name : {"a", "a.idx", "a.bin", "b", "b.idx", "b.bin"})
      for (const char* format : {"auto", "megatron"}) {
        const auto data = must(open_dataset(folder.path + "/" + name, format, 100, 0.1));
        CHECK(all_tokens(data->train) == range(0, 90));
        CHECK(all_tokens(data->validation) == range(90, 10));
        CHECK(data->train.validate().ok());
      }
  }

  TEST_CASE(
      "token format: Megatron files that do not fit each other are named with file and byte") {
    const TempFolder folder;
    const std::string bin = folder.write("a.bin", counting<uint16_t>(0, 100));
    const auto error = [&](const std::string& idx) {
      folder.write("a.idx", idx);
      return error_of(open_dataset(bin, "megatron", 100, 0));
    };
    const std::string good = index(8, 2, {60, 40});
    CHECK(has(error_of(open_dataset(bin, "megatron", 100, 0)), "need their index"));
    CHECK(has(error("MMIDIDX"), "a.idx: byte 7: the file ends within its header"));
    CHECK(has(error("x" + good.substr(1)), "a.idx: byte 0: wrong magic"));
    CHECK(has(error(index(5, 2, {100})), "byte 17: tokens of type 5"));
    CHECK(has(error(good.substr(0, good.size() - 8)), "byte 18: the header says 2 sequences"));
    CHECK(has(error(index(8, 2, {60, 39})), "the last sequence does not end where"));
    CHECK(has(error(index(4, 4, {60, 40})), "the last sequence does not end where"));
    std::string huge = good;
    std::memset(huge.data() + 18, 0xFF, 16);  // so many that their size overflows
    CHECK(has(error(huge), "byte 18"));
    std::string version = good;
    version[9] = 2;
    CHECK(has(error(version), "byte 9: version 2"));
    // The first and the last sequence are in their places, and the others are not.
    std::string shuffled = index(8, 2, {20, 30, 30, 20});
    std::swap_ranges(&shuffled[34 + 16 + 8], &shuffled[34 + 16 + 16], &shuffled[34 + 16 + 16]);
    folder.write("a.idx", shuffled);
    const auto data = must(open_dataset(bin, "auto", 100, 0));
    CHECK(has(data->train.validate().message(), "sequence 1 begins at byte 100 of the tokens"));
    CHECK(has(error_of(open_dataset(folder.write("b.bin", good), "auto", 100, 0)),
              "its name must end in .idx"));
  }

  TEST_CASE("token format: lit-gpt's packed tokens, in one file and in a folder") {
    const TempFolder folder;
    const std::string first = folder.write("train_0.bin", litgpt(counting<uint16_t>(0, 50)));
    const auto one = must(open_dataset(first, "auto", 100, 0));
    CHECK(all_tokens(one->train) == range(0, 50));
    folder.write("train_1.bin", litgpt(counting<uint16_t>(50, 50)));
    const auto all = must(open_dataset(folder.path, "litgpt", 100, 0.1));
    CHECK(all_tokens(all->train) == range(0, 90));
    CHECK(all_tokens(all->validation) == range(90, 10));
    const auto error = [&](const std::string& bytes) {
      return error_of(open_dataset(folder.write("x.bin", bytes), "litgpt", 100, 0));
    };
    CHECK(has(error("LITPKDS"), "byte 7: the file ends within its header"));
    CHECK(has(error(litgpt(counting<uint16_t>(0, 4), 6)), "byte 15: tokens of type 6"));
    CHECK(has(error(litgpt(counting<uint16_t>(0, 4)) + "ab"), "byte 16: the header says 4 tokens"));
    CHECK(has(error("LITPKDT"), "byte 0: wrong magic"));
    // i32, of vocabularies above 65,500.
    const auto wide = [&](std::vector<int32_t> ids) {
      const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), 4 * ids.size());
      return folder.write("wide/x.bin", litgpt(std::string(bytes), 4));
    };
    const auto large = must(open_dataset(wide({70'000, 0, 5}), "auto", 70'001, 0));
    CHECK(all_tokens(large->train) == std::vector<int32_t>{70'000, 0, 5});
    CHECK(large->train.validate().ok());
    const auto negative = must(open_dataset(wide({1, -1, 5}), "auto", 70'001, 0));
    CHECK(has(negative->train.validate().message(), "byte 28: token id 4294967295 is beyond"));
    CHECK(has(error(litgpt("abcdef", 4)), "no multiple of the tokens' four bytes"));
  }

  TEST_CASE("token format: the files of a folder follow each other, also within a sample") {
    const TempFolder folder;
    folder.write("fineweb_train_000002.bin", llmc::header(4, 30) + counting<uint32_t>(40, 30));
    folder.write("fineweb_train_000001.bin", llmc::header(2, 40) + counting<uint16_t>(0, 40));
    folder.write("fineweb_train_000003.bin", llmc::header(2, 3) + counting<uint16_t>(70, 3));
    folder.write("fineweb_val_000000.bin", llmc::header(2, 20) + counting<uint16_t>(80, 20));
    folder.write("readme.md", "no tokens");
    const auto data = must(open_dataset(folder.path, "auto", 100, 0.5));
    CHECK(all_tokens(data->train) == range(0, 73));
    CHECK(all_tokens(data->validation) == range(80, 20));
    for (int64_t block = 1; block < 73; ++block)
      for (uint64_t i = 0; i < data->train.samples(block); ++i) {
        std::vector<int32_t> sample(static_cast<size_t>(block) + 1);
        REQUIRE(data->train.read_sample(i, block, sample.data()).ok());
        CHECK(sample == range(static_cast<int>(i * static_cast<uint64_t>(block)),
                              static_cast<int>(block) + 1));
      }
    for (uint64_t first = 0; first < 73; first += 7)
      CHECK(all_tokens(data->train.slice(first, 73 - first)) ==
            range(static_cast<int>(first), 73 - static_cast<int>(first)));
    // An id that is too large is named with its own file.
    const auto few = must(open_dataset(folder.path, "auto", 72, 0));
    CHECK(few->train.validate().message() ==
          folder.path +
              "/fineweb_train_000003.bin: byte 1028: token id 72 is beyond the "
              "vocabulary of 72");
    const TempFolder empty;
    CHECK(has(error_of(open_dataset(empty.path, "llmc", 100, 0)), "no token files"));
  }
}
