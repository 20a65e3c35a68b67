// A shard that several threads write or read at once: the same bytes, records and errors.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"

using namespace simplescale;
using namespace simplescale::test;

namespace {
std::atomic<bool> hostile = false;
std::atomic<int> calls = 0;
}  // namespace

/// Replaces libc's. While `hostile`: every third call is interrupted, the others write only a part.
extern "C" ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  if (hostile && calls++ % 3 == 0) {
    errno = EINTR;
    return -1;
  }
  return syscall(SYS_pwrite64, fd, data, hostile ? std::min<size_t>(bytes, 100'003) : bytes,
                 offset);
}

namespace {

/// Some of its tensors have a piece of 4 MiB and a bit more.
ModelShape large_shape() {
  ModelShape shape = some_shape();
  shape.dim = 64, shape.hidden = 100, shape.vocab = 20'003;
  return shape;
}

/// The file of shard 0 of 1, made by another way: tensor after tensor.
std::string expected_file(const ModelShape& shape, State& state, const StateFormat& format,
                          std::map<std::string, Hash128>& hashes) {
  const auto units = units_of(shape);
  const ShardLayout layout = shard_layout(units, 1);
  std::vector<TensorEntry> tensors;
  std::string data;
  for (const StateKind kind : state_kinds(format.ema))
    for (size_t u = 0; u < units.size(); ++u) {
      const std::string name = std::string(to_string(kind)) + "." + units[u].name;
      const size_t bytes = bytes_of(format.dtype(kind));
      tensors.push_back(
          {name, bytes == 4 ? "F32" : "BF16", {static_cast<int64_t>(units[u].count)}});
      const auto* part =
          reinterpret_cast<const char*>(state.values[static_cast<size_t>(kind)].data());
      const std::string tensor(part + layout.offset[u] * bytes, units[u].count * bytes);
      hashes[name] = hash128(tensor.data(), tensor.size());
      data += tensor;
    }
  return make_safetensors_header(tensors, {{"format", "pt"}}) + data;
}

}  // namespace

TEST_SUITE_BEGIN("checkpoint threads");

TEST_CASE("checkpoint threads: any number of them writes the same file, also by partial writes") {
  const ModelShape shape = large_shape();
  for (const bool bf16 : {false, true}) {
    State state = random_state(shape, 3, true, !bf16);
    if (bf16) state = with_bf16_moments(state);
    std::map<std::string, Hash128> hashes;
    const std::string expected = expected_file(shape, state, state.side().format(), hashes);
    for (const bool interrupted : {false, true})
      for (const size_t threads : {0, 1, 3, 16}) {
        MemoryFolder folder;
        hostile = interrupted;
        const auto record = write_shard(folder / "tmp", shape, 1, 0, state.side(),
                                        threads > 0 ? on_threads(threads) : Parallel());
        hostile = false;
        REQUIRE_MESSAGE(record.ok(), record.status().message());
        CHECK(record->tensors == hashes);
        CHECK(record->bytes == expected.size());
        CHECK((contents(folder / ("tmp/" + record->file)) == expected));
      }
  }
  CHECK(calls > 100);
}

TEST_CASE(
    "checkpoint threads: a write that fails in the middle ends the others and removes the file") {
  /// Is full after some bytes. Any thread.
  class FullDisk : public FileOps {
   public:
    explicit FullDisk(uint64_t room) : room_(static_cast<int64_t>(room)) {}
    std::atomic<int> refused = 0;
    Status write(int fd, const std::string& path, uint64_t offset, const void* data,
                 size_t bytes) override {
      if (room_.fetch_sub(static_cast<int64_t>(bytes)) < static_cast<int64_t>(bytes)) {
        ++refused;
        return {Code::io, "write " + path + ": the disk is full"};
      }
      return FileOps::write(fd, path, offset, data, bytes);
    }

   private:
    std::atomic<int64_t> room_;
  };
  const ModelShape shape = large_shape();
  State state = random_state(shape, 3);
  for (const uint64_t room : {0, 100, 5'000'000, 20'000'000}) {
    MemoryFolder folder;
    FullDisk disk(room);
    const auto record = write_shard(folder / "tmp", shape, 1, 0, state.side(), on_threads(3), disk);
    CHECK(record.status().code() == Code::io);
    CHECK(record.status().message().ends_with("the disk is full"));
    CHECK(disk.refused >= 1);
    CHECK(disk.refused <= 3);  // each thread finds it out once
    CHECK(list_folder(folder / "tmp").empty());
  }
}

TEST_CASE("checkpoint threads: any number of them reads the same state of any layout") {
  const ModelShape shape = large_shape();
  const State whole = random_state(shape, 4, false, true);
  MemoryFolder folder;
  const auto saved = must(save(folder.path, whole, info_of(shape, 8), 3));
  for (const size_t threads : {1, 3, 16})
    for (const size_t shards : {1, 2, 3}) {
      auto checkpoint = must(Checkpoint::open(*saved));
      State out = empty_state(shape, shards, true);
      REQUIRE(read_shard(*checkpoint, shards, shards - 1, out.side(), nullptr, on_threads(threads))
                  .ok());
      CHECK(same_bits(out, cut(whole, shape, shards, shards - 1)));
      const auto stop = [] { return true; };
      CHECK(read_shard(*checkpoint, shards, 0, out.side(), stop, on_threads(threads)).code() ==
            Code::aborted);
    }
}

TEST_CASE("checkpoint threads: CHECKPOINT-2, of several damaged tensors the first is named") {
  const ModelShape shape = some_shape();
  MemoryFolder folder;
  const auto saved = must(save(folder.path, random_state(shape, 5), info_of(shape, 8), 1));
  const std::string path = *saved + "/shard-00000-of-00001.safetensors";
  std::string text = contents(path);
  for (size_t at = text.size() / 3; at < text.size(); at += 512) text[at] ^= 1;
  spew(path, text);
  auto checkpoint = must(Checkpoint::open(*saved));
  State out = empty_state(shape, 1);
  const Status serial = read_shard(*checkpoint, 1, 0, out.side());
  CHECK(serial.code() == Code::bad_data);
  for (int tries = 0; tries < 20; ++tries) {
    CHECK(read_shard(*checkpoint, 1, 0, out.side(), nullptr, on_threads(4)).message() ==
          serial.message());
    CHECK(checkpoint->verify().message() == serial.message());
  }
}

TEST_SUITE_END();
