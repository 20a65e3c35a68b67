// The safetensors reader and writer, with damaged files and compared with the Python package.
#include <doctest/doctest.h>

#include <cmath>

#include "runtime/base/dtype.hpp"
#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"

using namespace simplescale;
using namespace simplescale::test;

TEST_SUITE_BEGIN("safetensors");

namespace {

/// A small valid file: a (2, 3) F32, b (4) BF16, c (0) F16, d () F32.
std::string sample_file() {
  std::vector<TensorEntry> tensors = {
      {"a", "F32", {2, 3}}, {"b", "BF16", {4}}, {"c", "F16", {0}}, {"d", "F32", {}}};
  std::string text = make_safetensors_header(tensors, {{"format", "pt"}});
  for (uint64_t i = 0; i < tensors.back().end; ++i) text += static_cast<char>(i * 7);
  return text;
}

}  // namespace

TEST_CASE("safetensors: the reader reads what the writer has written") {
  MemoryFolder folder;
  const float values[6] = {1, -2, 3.5f, 0, 1e30f, -0.0f};
  const uint16_t narrow[4] = {0x3f80, 0xc000, 0x7f80, 0x0001};
  {
    auto writer = must(SafetensorsWriter::create(system_files(), folder / "x",
                                                 {{"a", "F32", {2, 3}}, {"b", "BF16", {4}}},
                                                 {{"format", "pt"}}));
    REQUIRE(writer->write(1, 0, narrow, 8).ok());  // in any order and in pieces of any size
    REQUIRE(writer->write(0, 5, reinterpret_cast<const char*>(values) + 5, 19).ok());
    REQUIRE(writer->write(0, 0, values, 5).ok());
    REQUIRE(writer->finish().ok());
    CHECK(writer->bytes() == contents(folder / "x").size());
    CHECK((contents(folder / "x").size() - 32) % 8 == 0);
  }
  auto file = must(SafetensorsFile::open(folder / "x"));
  const TensorEntry* a = file->find("a");
  REQUIRE(a);
  CHECK(a->shape == std::vector<int64_t>{2, 3});
  CHECK(a->count() == 6);
  float back[6];
  REQUIRE(file->read_f32(*a, 1, 5, back + 1).ok());
  CHECK(std::memcmp(back + 1, values + 1, 20) == 0);
  REQUIRE(file->read_f32(*file->find("b"), 0, 4, back).ok());
  CHECK(back[0] == 1.0f);
  CHECK(back[1] == -2.0f);
  CHECK(std::isinf(back[2]));
  CHECK(back[3] == bf16_to_f32(1));
  CHECK(file->find("z") == nullptr);
}

TEST_CASE("safetensors: every F16 is converted exactly") {
  MemoryFolder folder;
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  auto writer =
      must(SafetensorsWriter::create(system_files(), folder / "x", {{"h", "F16", {65536}}}, {}));
  REQUIRE(writer->write(0, 0, bits.data(), bits.size() * 2).ok());
  REQUIRE(writer->finish().ok());
  auto file = must(SafetensorsFile::open(folder / "x"));
  std::vector<float> values(65536);
  REQUIRE(file->read_f32(*file->find("h"), 0, values.size(), values.data()).ok());
  size_t wrong = 0;
  for (size_t i = 0; i < bits.size(); ++i) {
    const int exponent = static_cast<int>((i >> 10) & 31), fraction = static_cast<int>(i & 1023);
    const double size = exponent == 0    ? std::ldexp(fraction, -24)
                        : exponent == 31 ? HUGE_VAL
                                         : std::ldexp(1024 + fraction, exponent - 25);
    const double expected = i & 0x8000 ? -size : size;
    if (exponent == 31 && fraction) {
      wrong += !std::isnan(values[i]);
    } else {
      wrong += values[i] != expected || std::signbit(values[i]) != std::signbit(expected);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("safetensors: contradictory headers are refused, naming the tensor") {
  const auto parse = [](const std::string& text, uint64_t bytes) {
    const auto parsed = parse_safetensors_header(text, bytes);
    return parsed.ok() ? std::string("ok") : parsed.status().message();
  };
  const auto has = [&](const std::string& text, uint64_t bytes, const std::string& part) {
    const std::string message = parse(text, bytes);
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  };
  has("", 0, "begin with '{'");
  has(" {}", 0, "begin with '{'");
  has("{", 0, "not JSON");
  has("{}", 0, "ok");
  has("{}", 4, "end at byte 0 of 4");
  has(R"({"__metadata__":{"a":1}})", 0, "map of strings");
  has(R"({"a":3})", 0, "not an object");
  has(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "no dtype");
  has(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, "not known");
  has(R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, "no shape");
  has(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "whole number");
  has(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "whole number");
  has(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,-4]}})", 4, "no data_offsets");
  has(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "no data_offsets");
  has(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "outside");
  has(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "outside");
  has(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "needs 8 bytes");
  has(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4,
      "too large");
  has(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      4, "inside the tensor before");
  has(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
      12, "after a gap");
  has(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      4, "\"a\" stands twice");
  has(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"\u0061":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      4, "\"a\" stands twice");
  has(R"({"a":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}})", 4,
      "\"dtype\" stands twice");
  has(R"({"__metadata__":{"a":"1"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
      "ok");
  const std::string huge(20'000'000, 'n');
  CHECK(parse("{\"" + huge + "\":3}", 0).size() < 400);
  has("{\"x\\u202ey\\n\":3}", 0, "tensor \"x\\u202ey\\n\": not an object");
  has(std::string(100000, '[').insert(0, "{\"a\":"), 0, "not JSON");
}

TEST_CASE("safetensors: a header length beyond the file or the limit is refused") {
  MemoryFolder folder;
  for (const uint64_t length : {uint64_t{100}, uint64_t{100'000'001}, UINT64_MAX}) {
    spew(folder / "x", std::string(reinterpret_cast<const char*>(&length), 8) + "{}");
    CHECK(says(SafetensorsFile::open(folder / "x").status(), Code::bad_data, "does not fit"));
  }
  spew(folder / "x", "abc");
  CHECK(has(SafetensorsFile::open(folder / "x").status(), "too short"));
  CHECK(SafetensorsFile::open(folder / "none").status().code() == Code::not_found);
  CHECK(SafetensorsFile::open(folder.path).status().code() == Code::bad_data);
}

TEST_CASE("safetensors: a pipe is refused without blocking") {
  MemoryFolder folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const Status status = SafetensorsFile::open(pipe).status();
  CHECK(status.code() == Code::bad_data);
  CHECK(status.message() == pipe + " is not a file");
}

TEST_CASE("safetensors: damaged files never crash the reader, and accepted ones can be read") {
  MemoryFolder folder;
  const std::string right = sample_file();
  const uint32_t seed = 20;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  size_t accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = right;
    for (uint32_t flips = 1 + random() % 4; flips > 0; --flips)
      text[random() % text.size()] =
          static_cast<char>(random() % 3 ? random() : "0123456789[]{},:\""[random() % 17]);
    if (random() % 8 == 0) text.resize(random() % text.size());
    if (random() % 8 == 0) text.insert(random() % (text.size() + 1), 1 + random() % 9, '9');
    spew(folder / "x", text);
    const auto file = SafetensorsFile::open(folder / "x");
    if (!file.ok()) continue;
    ++accepted;
    for (const TensorEntry& tensor : file->tensors()) {
      std::vector<float> values(tensor.count());
      (void)file->read_f32(tensor, 0, values.size(), values.data());
    }
  }
  CHECK(accepted > 100);
}

TEST_CASE("safetensors folder: an index is used, and a contradictory one is refused") {
  MemoryFolder folder;
  auto write = [&](const std::string& name, const std::string& tensor, float value) {
    auto writer =
        SafetensorsWriter::create(system_files(), folder / name, {{tensor, "F32", {1}}}, {});
    REQUIRE(writer->write(0, 0, &value, 4).ok());
    REQUIRE(writer->finish().ok());
  };
  write("one.safetensors", "a", 1);
  write("two.safetensors", "b", 2);
  const std::string index = folder / "model.safetensors.index.json";
  spew(index, R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  auto weights = must(SafetensorsFolder::open(folder.path));
  CHECK(weights->names() == std::vector<std::string>{"a", "b"});
  float value = 0;
  const auto place = weights->find("b");
  REQUIRE(place->file->read_f32(*place->tensor, 0, 1, &value).ok());
  CHECK(value == 2);
  const auto refused = [&](const std::string& text, const std::string& part) {
    spew(index, text);
    CHECK(says(SafetensorsFolder::open(folder.path).status(), Code::bad_data, part));
  };
  refused(R"({"weight_map":{"a":"two.safetensors"}})", "no tensor \"a\"");
  refused(R"({"weight_map":{"a":"three.safetensors"}})", "three.safetensors");
  refused(R"({"weight_map":{"a":"../one.safetensors"}})", "not a plain file name");
  refused(R"({"weight_map":{"a":"weights.bin"}})", "no .safetensors file");  // or a link, unseen
  refused(R"({"weight_map":{"a":7}})", "not a file name");
  refused(R"([])", "no weight_map");
}

TEST_CASE("safetensors: files of the Python package and ours are read by both") {
  MemoryFolder folder;
  const float values[6] = {1, -2, 3.5f, 0.1f, 1e30f, -0.0f};
  auto writer = SafetensorsWriter::create(
      system_files(), folder / "ours.safetensors",
      {{"a.b", "F32", {2, 3}}, {"empty", "F32", {0}}, {"\xc3\xa4 \"q\"", "F32", {}}},
      {{"format", "pt"}});
  REQUIRE(writer->write(0, 0, values, 24).ok());
  REQUIRE(writer->write(2, 0, values + 3, 4).ok());
  REQUIRE(writer->finish().ok());
  const auto python = run_python(R"(
import numpy as np
from safetensors.numpy import load_file, save_file
from safetensors import safe_open
ours = load_file("ours.safetensors")
assert set(ours) == {"a.b", "empty", 'ä "q"'}, ours.keys()
assert ours["a.b"].dtype == np.float32 and ours["a.b"].shape == (2, 3)
assert ours["a.b"].tobytes() == np.array([1, -2, 3.5, 0.1, 1e30, -0.0], np.float32).tobytes()
assert ours["empty"].shape == (0,) and ours['ä "q"'].shape == ()
assert safe_open("ours.safetensors", "np").metadata() == {"format": "pt"}
save_file({"x": np.arange(12, dtype=np.float32).reshape(3, 4), "h": np.array([0.5, -65504], np.float16),
           "i": np.array([1, 2], np.int64)}, "theirs.safetensors", {"k": "v"})
)",
                                 folder.path);
  if (!python) return skipped("no Python with safetensors under .deps");
  REQUIRE_MESSAGE(python->exit_code == 0, python->output);
  auto theirs = must(SafetensorsFile::open(folder / "theirs.safetensors"));
  float x[12], h[2];
  CHECK(theirs->find("x")->shape == std::vector<int64_t>{3, 4});
  REQUIRE(theirs->read_f32(*theirs->find("x"), 0, 12, x).ok());
  CHECK(x[11] == 11);
  REQUIRE(theirs->read_f32(*theirs->find("h"), 0, 2, h).ok());
  CHECK(h[0] == 0.5f);
  CHECK(h[1] == -65504.0f);
  CHECK(theirs->read_f32(*theirs->find("i"), 0, 1, h).code() == Code::bad_data);
}

TEST_SUITE_END();
