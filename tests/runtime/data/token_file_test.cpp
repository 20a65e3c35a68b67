#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/data/manifest.hpp"
#include "runtime/data/token_file.hpp"
#include "tests/must.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using test::counting;

namespace {

struct Folder : test::TempFolder {
  template <class Token>
  std::string write(const std::string& name, const std::vector<Token>& tokens,
                    const std::string& head = "") {
    return TempFolder::write(name, head + test::bytes_of(tokens));
  }
};

std::string error_of(const std::string& path, const std::string& format = "auto") {
  const auto source = TokenSource::open(path, format, 1000);
  REQUIRE_FALSE(source.ok());
  CHECK(source.status().code() == Code::bad_data);
  return source.status().message();
}

}  // namespace

TEST_SUITE("token file") {
  TEST_CASE("token file: raw u16, llm.c u16 and llm.c u32 give the same samples") {
    Folder folder;
    const std::string paths[] = {
        folder.write("raw.bin", counting<uint16_t>(100)),
        folder.write("u16.bin", counting<uint16_t>(100), llmc::header(2, 100)),
        folder.write("u32.bin", counting<uint32_t>(100), llmc::header(4, 100))};
    for (const auto& path : paths) {
      auto source = must(TokenSource::open(path, "auto", 100));
      CHECK(source->tokens() == 100);
      CHECK(source->samples(10) == 9);  // (100 - 1) / 10
      CHECK(source->samples(9) == 11);
      CHECK(source->samples(99) == 1);
      CHECK(source->samples(100) == 0);
      CHECK(source->validate().ok());
      CHECK(source->require_block(99).ok());
      CHECK(source->require_block(100).code() == Code::bad_data);
      std::vector<int32_t> sample(11, -1);
      REQUIRE(source->read_sample(8, 10, sample.data()).ok());
      for (int i = 0; i < 11; ++i) CHECK(sample[static_cast<size_t>(i)] == 80 + i);
    }
  }

  TEST_CASE("token file: errors name file and byte") {
    Folder folder;
    const auto odd = folder.write<char>("odd.bin", {'a', 'b', 'c'});
    CHECK(error_of(odd) == odd + ": byte 2: odd length of 3 bytes: u16 tokens take two bytes each");
    CHECK(error_of(folder.write<char>("empty.bin", {}))
              .find("empty.bin: byte 0: the file is empty") != std::string::npos);
    CHECK(error_of(folder.path + "/none.bin").find("No such file") != std::string::npos);
    CHECK(error_of(folder.path) == "token file: " + folder.path + " is not a file");
    const std::string pipe = folder.path + "/pipe.bin";
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    CHECK(error_of(pipe) == "token file: " + pipe + " is not a file");  // does not block
    const auto raw = folder.write("raw.bin", counting<uint16_t>(1000));
    CHECK(error_of(raw, "llmc").find("byte 0: wrong magic") != std::string::npos);
    const auto head = llmc::header(2, 10);
    CHECK(error_of(folder.write<char>("cut.bin", {}, head.substr(0, 100)))
              .find("byte 100: the file ends within its header") != std::string::npos);
    const auto few = error_of(folder.write("few.bin", counting<uint16_t>(9), head));
    CHECK(has(few, "byte 8: the header says 10 tokens of 2 bytes, but 18 bytes"));
    CHECK(has(error_of(folder.write("many.bin", counting<uint16_t>(11), head)), "byte 8"));
    CHECK(error_of(folder.write("zero.bin", counting<uint16_t>(0), llmc::header(2, 0)))
              .find("no tokens") != std::string::npos);
    auto version = head;
    version[4] = 9;
    CHECK(error_of(folder.write("version.bin", counting<uint16_t>(10), version))
              .find("byte 4: version 9") != std::string::npos);
    CHECK(TokenSource::open(raw, "parquet", 1000).status().code() == Code::bad_config);
  }

  TEST_CASE("token file: an id beyond the vocabulary is found by validation and by reading") {
    Folder folder;
    for (uint64_t bad :
         {uint64_t{0}, uint64_t{4095}, uint64_t{4096}, uint64_t{9999}, uint64_t{10'000}}) {
      std::vector<uint16_t> narrow(10'001, 99);
      std::vector<uint32_t> wide(10'001, 99);
      narrow[bad] = 100;
      wide[bad] = 0xFFFFFFFFu;  // would be -1 as int32
      const auto a = *TokenSource::open(folder.write("a.bin", narrow), "auto", 100);
      const auto b =
          *TokenSource::open(folder.write("b.bin", wide, llmc::header(4, 10'001)), "auto", 100);
      CHECK(a.validate().message() == a.path() + ": byte " + std::to_string(2 * bad) +
                                          ": token id 100 is beyond the vocabulary of 100");
      CHECK(b.validate().message() == b.path() + ": byte " + std::to_string(1024 + 4 * bad) +
                                          ": token id 4294967295 is beyond the vocabulary of 100");
      std::vector<int32_t> sample(5001);
      CHECK(a.read_sample(0, 5000, sample.data()).ok() == (bad > 5000));
      CHECK(a.read_sample(1, 5000, sample.data()).ok() == (bad < 5000));
      CHECK(b.read_sample(1, 5000, sample.data()).ok() == (bad < 5000));
    }
  }

  TEST_CASE("token file: a negative id of Megatron tokens is shown as such") {
    Folder folder;
    const auto path = folder.write("m.bin", std::vector<int32_t>{1, 2, -3, 4});
    std::string index = test::megatron_index({4}, {0, 1});
    index[17] = 4;  // i32
    folder.write<char>("m.idx", {}, index);
    CHECK(TokenSource::open(path, "auto", 100)->validate().message() ==
          path + ": byte 8: token id -3 is negative");
  }

  TEST_CASE("token file: a manifest.json that is damaged is named in plain words") {
    Folder folder;
    for (const char* text : {"{\"format\": 1", "[]", "", "{\"format\": \"x\"}", "{}"}) {
      const auto path = folder.write<char>("manifest.json", {}, text);
      const std::string said =
          open_dataset(std::filesystem::path(path).parent_path(), "prepared", 100, 0)
              .status()
              .message();
      CHECK_MESSAGE(said.starts_with(path + ": it is damaged"), said);
      CHECK_MESSAGE(said.find("exception") == std::string::npos, said);
    }
  }

  TEST_CASE("token file: truncating an open file gives an error until the file is restored") {
    Folder folder;
    const auto path = folder.write("a.bin", counting<uint16_t>(10'000), llmc::header(2, 10'000));
    const auto source = *TokenSource::open(path, "auto", 10'000);
    const auto end = source.slice(9'000, 1'000);
    std::filesystem::resize_file(path, 1024 + 2 * 5'000 + 1);
    std::vector<int32_t> sample(101);
    // Begins before the end. The file is being replaced, or its disk fails.
    CHECK(source.read_sample(49, 100, sample.data()).code() == Code::io);
    CHECK(source.read_sample(80, 100, sample.data()).message() == path + ": ends at byte 11025");
    CHECK(end.read_sample(0, 100, sample.data()).message() == path + ": ends at byte 11025");
    CHECK(source.validate().message() == path + ": ends at byte 11025");
    CHECK(source.read_sample(48, 100, sample.data()).ok());
    folder.write("a.bin", counting<uint16_t>(10'000), llmc::header(2, 10'000));
    CHECK(source.validate().ok());
    REQUIRE(end.read_sample(1, 100, sample.data()).ok());
    CHECK(sample[0] == 9'100);
    CHECK(sample[100] == 9'200);
  }

  TEST_CASE("token file: reopen() opens a replaced file if it has the same length") {
    Folder folder;
    const auto path = folder.write("a.bin", counting<uint16_t>(100));
    auto source = TokenSource::open(path, "auto", 1000)->slice(50, 50);
    auto first = [&] {
      int32_t sample[3] = {};
      REQUIRE(source.read_sample(0, 2, sample).ok());
      return sample[0];
    };
    std::filesystem::remove(path);
    CHECK(source.reopen().code() == Code::bad_data);
    folder.write("a.bin", counting<uint16_t>(99));
    CHECK(source.reopen().message() == path + ": byte 198: the file ends here, it had 200 bytes");
    CHECK(first() == 50);  // of the file that was replaced
    folder.write("a.bin", std::vector<uint16_t>(100, 7));
    CHECK(source.reopen().ok());
    CHECK(first() == 7);
  }

  TEST_CASE("token file: the last part of a single file is held back for validation") {
    Folder folder;
    const auto data =
        must(open_dataset(folder.write("a.bin", counting<uint16_t>(100)), "auto", 100, 0.1));
    CHECK(data->train.tokens() == 90);
    CHECK(data->validation.tokens() == 10);
    int32_t sample[3];
    REQUIRE(data->validation.read_sample(0, 2, sample).ok());
    CHECK(sample[0] == 90);
    CHECK(data->tokenizer.empty());
  }

  TEST_CASE("token file: shards whose names have a word for validation are held back, no others") {
    Folder folder;
    int trained = 0, held = 0;
    for (const char* name :
         {"retrieval_00", "medieval", "interval_1", "validated", "oval-2", "a_0"})
      folder.write(name + std::string(".bin"), counting<uint16_t>(10)), trained += 10;
    for (const char* name : {"val", "c4_val_000", "web-validation-1", "valid2", "Val.7", "eval_1"})
      folder.write(name + std::string(".bin"), counting<uint16_t>(3)), held += 3;
    const auto data = must(open_dataset(folder.path, "auto", 100, 0));
    CHECK(data->train.tokens() == trained);
    CHECK(data->validation.tokens() == held);
  }

  TEST_CASE("token file: a folder with train.bin and val.bin, and a prepared one, are read") {
    Folder folder;
    folder.write("train.bin", counting<uint16_t>(50), llmc::header(2, 50));
    folder.write("val.bin", counting<uint16_t>(20), llmc::header(2, 20));
    const auto plain = must(open_dataset(folder.path, "auto", 100, 0));
    CHECK(plain->train.tokens() == 50);
    CHECK(plain->validation.tokens() == 20);

    CHECK(open_dataset(folder.path, "prepared", 100, 0).status().code() == Code::bad_data);
    folder.write("validation.bin", counting<uint16_t>(20), llmc::header(2, 20));
    Manifest manifest{
        .source = "x \"\xff", .vocab = 64, .train_tokens = 50, .validation_tokens = 20};
    CHECK(open_dataset(folder.path, "prepared", 64, 0).status().code() == Code::bad_data);
    REQUIRE(write_manifest(folder.path, manifest).ok());
    CHECK(has(open_dataset(folder.path, "auto", 64, 0).status().message(),
              "its preparation was interrupted"));
    folder.write("tokenizer.model", counting<uint16_t>(3));
    manifest.tokenizer = record_file(folder.path, "tokenizer.model").take();
    manifest.train = record_file(folder.path, "train.bin").take();
    manifest.validation = record_file(folder.path, "validation.bin").take();
    REQUIRE(manifest.complete());
    REQUIRE(write_manifest(folder.path, manifest).ok());
    const auto prepared = must(open_dataset(folder.path, "auto", 64, 0));
    CHECK(prepared->tokenizer == folder.path + "/tokenizer.model");
    CHECK(prepared->validation.tokens() == 20);
    CHECK(has(open_dataset(folder.path, "auto", 63, 0).status(), "vocabulary of 64"));
    // Replaced by a file of the same size, which would train other tokens.
    std::vector<uint16_t> other = counting<uint16_t>(50);
    std::swap(other[3], other[4]);
    folder.write("train.bin", other, llmc::header(2, 50));
    std::filesystem::last_write_time(
        folder.path + "/train.bin",
        std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
    CHECK(has(open_dataset(folder.path, "auto", 64, 0).status().message(),
              "train.bin: is not the file that"));
    CHECK(check_files(folder.path, manifest, {}, 10).ok());  // larger files are not hashed
    // A manifest of somebody else may say that a pipe or a device has 0 bytes: no read of it ends.
    Manifest hostile = manifest;
    hostile.tokenizer.bytes = 0, hostile.tokenizer.changed_ns = 1;
    for (const bool pipe : {true, false}) {
      const std::string path = folder.path + "/tokenizer.model";
      std::filesystem::remove(path);
      if (pipe)
        REQUIRE(mkfifo(path.c_str(), 0600) == 0);
      else
        std::filesystem::create_symlink("/dev/zero", path);
      CHECK(check_files(folder.path, hostile, {}, 10).code() == Code::bad_data);
      CHECK(record_file(folder.path, "tokenizer.model").status().code() == Code::bad_data);
    }
    std::filesystem::remove(folder.path + "/tokenizer.model");
    folder.write("tokenizer.model", counting<uint16_t>(3));
    folder.write("train.bin", counting<uint16_t>(50), llmc::header(2, 50));  // copied again
    CHECK(open_dataset(folder.path, "auto", 64, 0).ok());
    manifest.train_tokens = 51;
    REQUIRE(write_manifest(folder.path, manifest).ok());
    CHECK(has(open_dataset(folder.path, "auto", 64, 0).status(), "manifest.json says 51"));
    std::ofstream(folder.path + "/manifest.json") << "{\"format\": 1, ";
    CHECK(open_dataset(folder.path, "auto", 64, 0).status().code() == Code::bad_data);
  }
}
