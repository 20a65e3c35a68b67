// Shared by the checkpoint tests: a temporary folder, states of random bits, and file operations
// that fail on demand.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.hpp"
#include "tests/paths.hpp"
#include "tests/python.hpp"
#include "tests/temp_folder.hpp"

namespace simplescale::test {

/// In memory, where that can be.
struct MemoryFolder : TempFolder {
  MemoryFolder() : TempFolder(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") {}
};

inline void spew(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

/// A small shape whose units need several blocks of 1024 elements and do not fill the last one.
inline ModelShape some_shape(bool tied = false) {
  ModelShape s;
  s.dim = 16, s.hidden = 40, s.layers = 2, s.heads = 4, s.kv_heads = 2, s.vocab = 300,
  s.block_size = 32;
  s.tie_embeddings = tied;
  return s;
}
inline ModelShape tiny_shape() {
  ModelShape s;
  s.dim = 4, s.hidden = 4, s.layers = 1, s.heads = 2, s.kv_heads = 1, s.vocab = 6, s.block_size = 8;
  return s;
}

/// A training state as shard 0 of 1: random bits, NaNs included, and zero padding.
struct State {
  std::vector<float> values[4];  // the last is empty without an average
  bool ema() const { return !values[3].empty(); }
  TrainState::Side side() { return {values[0], values[1], values[2], values[3]}; }
};
inline bool same_bits(const State& a, const State& b) {
  for (int k = 0; k < 4; ++k)
    if (a.values[k].size() != b.values[k].size() ||
        std::memcmp(a.values[k].data(), b.values[k].data(), a.values[k].size() * 4) != 0)
      return false;
  return true;
}
inline State empty_state(const ModelShape& shape, size_t shards, bool ema = false) {
  State state;
  for (size_t k = 0; k < state_parts(ema); ++k)  // to be overwritten
    state.values[k].assign(shard_layout(units_of(shape), shards).total, 7.0f);
  return state;
}
inline State random_state(const ModelShape& shape, uint32_t seed, bool finite = false,
                          bool ema = false) {
  State state = empty_state(shape, 1, ema);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto units = units_of(shape);
  const ShardLayout layout = shard_layout(units, 1);
  for (size_t k = 0; k < state_parts(ema); ++k) {
    std::vector<float>& v = state.values[k];
    std::fill(v.begin(), v.end(), 0.0f);
    for (size_t u = 0; u < units.size(); ++u)
      for (size_t i = 0; i < units[u].count; ++i)
        v[layout.offset[u] + i] =
            finite ? 0.05f * normal(random) : std::bit_cast<float>(static_cast<uint32_t>(random()));
  }
  return state;
}
/// Shard s of S of a state.
inline State cut(const State& whole, const ModelShape& shape, size_t shards, size_t shard) {
  const auto units = units_of(shape);
  const ShardLayout from = shard_layout(units, 1), to = shard_layout(units, shards);
  State out = empty_state(shape, shards, whole.ema());
  for (size_t k = 0; k < state_parts(whole.ema()); ++k)
    for (size_t u = 0; u < units.size(); ++u)
      for (size_t i = 0; i < to.count[u]; ++i) {
        const size_t at = shard * to.count[u] + i;
        float value = 0.0f;
        if (at < units[u].count) std::memcpy(&value, &whole.values[k][from.offset[u] + at], 4);
        std::memcpy(&out.values[k][to.offset[u] + i], &value, 4);
      }
  return out;
}

/// The same state with its moments in bf16, rounded to nearest even.
inline State with_bf16_moments(State state) {
  for (std::vector<float>* moment : {&state.values[1], &state.values[2]}) {
    std::vector<float> packed(moment->size() / 2);
    std::ranges::transform(*moment, bf16_elements(packed).begin(), f32_to_bf16);
    *moment = packed;
  }
  return state;
}

/// Writes the shards of a state in generation 1 and returns their records.
inline Result<std::vector<ShardRecord>> write_shards(const std::string& checkpoints,
                                                     const State& whole, const CheckpointInfo& info,
                                                     size_t shards, FileOps& ops = system_files()) {
  const std::string tmp = checkpoint_tmp_folder(checkpoints, info.step, 1);
  std::vector<ShardRecord> records;
  for (size_t s = 0; s < shards; ++s) {
    State piece = cut(whole, info.shape, shards, s);
    if (info.state.moments == DType::bf16) piece = with_bf16_moments(piece);
    SS_ASSIGN(ShardRecord record, write_shard(tmp, info.shape, shards, s, piece.side(), {}, ops));
    SS_ASSIGN(ShardRecord travelled, parse_shard_record(to_json(record)));
    records.push_back(std::move(travelled));
  }
  return records;
}
/// Writes and publishes a state in S shards.
inline Result<std::string> save(const std::string& checkpoints, const State& whole,
                                CheckpointInfo info, size_t shards, FileOps& ops = system_files(),
                                const std::string& publisher = "1") {
  info.shards = shards;
  info.state.ema = whole.ema();
  SS_ASSIGN(const auto records, write_shards(checkpoints, whole, info, shards, ops));
  return publish_checkpoint(checkpoints, checkpoint_tmp_folder(checkpoints, info.step, 1),
                            publisher, info, records, ops);
}
inline CheckpointInfo info_of(const ModelShape& shape, uint64_t step) {
  CheckpointInfo info;
  info.shape = shape;
  info.step = step;
  info.next_sample = step * 8, info.tokens_seen = step * 8 * 32,
  info.seed = 0xffff'ffff'ffff'fff0ull;
  info.precision = "bf16";
  info.resume = R"({"trainer":{"strategy":"full_shard"},"list":[1,2.5,null]})";
  return info;
}
/// Reads a parameter by its Hugging Face name. not_found.
inline Result<std::vector<float>> read_parameter(Checkpoint& checkpoint, const std::string& name,
                                                 StateKind kind = StateKind::params) {
  std::vector<float> values;
  const auto take = [&](const Parameter& parameter, size_t, std::span<const float> piece) {
    if (parameter.name == name) values.insert(values.end(), piece.begin(), piece.end());
    return Status();
  };
  for (size_t unit = 0; unit < checkpoint.units().size(); ++unit)
    SS_RETURN_IF_ERROR(stream_parameters(checkpoint, kind, unit, take));
  if (values.empty()) return Status(Code::not_found, name);
  return values;
}

/// Counts operations and written bytes and fails when a limit is reached: once, or from then on, as
/// if the process had died.
class FaultyFiles : public FileOps {
 public:
  static constexpr uint64_t kNever = UINT64_MAX;
  uint64_t operations_max = kNever, bytes_max = kNever;
  bool dead_afterwards = true;
  std::string reason = "stopped by the test";

  uint64_t operations = 0, bytes = 0;
  bool hit = false;

  Result<int> create(const std::string& path) override {
    SS_RETURN_IF_ERROR(count("create", path));
    return FileOps::create(path);
  }
  Status write(int fd, const std::string& path, uint64_t offset, const void* data,
               size_t n) override {
    SS_RETURN_IF_ERROR(count("write", path));
    const uint64_t room = hit && !dead_afterwards ? n : bytes_max - bytes;
    if (n > room) {
      (void)FileOps::write(fd, path, offset, data, room);
      bytes += room;
      hit = true;
      return Status(Code::io, "write " + path + ": " + reason);
    }
    bytes += n;
    return FileOps::write(fd, path, offset, data, n);
  }
  Status fsync(int, const std::string& path) override { return count("fsync", path); }
  Status fsync_folder(const std::string& path) override { return count("fsync", path); }
  Status rename(const std::string& from, const std::string& to) override {
    SS_RETURN_IF_ERROR(count("rename to", to));
    return FileOps::rename(from, to);
  }
  Status symlink(const std::string& target, const std::string& path) override {
    SS_RETURN_IF_ERROR(count("symlink", path));
    return FileOps::symlink(target, path);
  }
  Status mkdir(const std::string& path) override {
    SS_RETURN_IF_ERROR(count("mkdir", path));
    return FileOps::mkdir(path);
  }
  Status unlink(const std::string& path) override {
    SS_RETURN_IF_ERROR(count("unlink", path));
    return FileOps::unlink(path);
  }
  Status rmdir(const std::string& path) override {
    SS_RETURN_IF_ERROR(count("rmdir", path));
    return FileOps::rmdir(path);
  }

 private:
  Status count(const char* call, const std::string& path) {
    const bool fails = hit ? dead_afterwards : operations == operations_max;
    ++operations;
    if (!fails) return {};
    hit = true;
    return Status(Code::io, std::string(call) + " " + path + ": " + reason);
  }
};

/// Runs a script that may use torch, transformers and safetensors; nullopt without them.
struct PythonResult {
  int exit_code = 0;
  std::string output;
};
inline std::optional<PythonResult> run_python(const std::string& script,
                                              const std::string& folder) {
  Python* const python = Python::with({"torch", "transformers", "safetensors.numpy"});
  if (!python) return std::nullopt;
  spew(folder + "/script.py", script);
  const std::string output = folder + "/script.out";
  const int code = python->run(folder + "/script.py", folder, output);
  return PythonResult{code, contents(output)};
}

/// A checkpoint of this shape, saved in the folder.
inline Result<Checkpoint> saved(const TempFolder& folder, const ModelShape& shape) {
  SS_ASSERT(save(folder.path, random_state(shape, 2, true), info_of(shape, 1), 1).ok());
  return Checkpoint::open(folder / "latest");
}

/// Writes this text of a manifest with a hash that is right.
inline void spew_manifest(const std::string& path, const std::string& text) {
  const size_t covered = text.size() - 36;
  spew(path, text.substr(0, covered) + hash128(text.data(), covered).hex() + "\"\n}\n");
}

}  // namespace simplescale::test
