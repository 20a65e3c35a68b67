// What the writing and the reading side of a checkpoint share: names, the manifest's text, and
// where shards lie. Pure functions, any thread. Not for use outside runtime/checkpoint/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace simplescale::checkpoint_format {

inline constexpr uint64_t kVersion = 1;
inline constexpr size_t kManifestBytesMax = 256 << 20;
inline constexpr size_t kPieceElements = 1 << 20;  // read, hashed and written at once: 4 MiB
inline constexpr const char* kManifest = "manifest.json";
inline constexpr const char* kTokenizer = "tokenizer.model";
inline constexpr const char* kTmpPrefix = "tmp-";
inline constexpr const char* kReplaced = ".replaced";

std::string step_folder_name(uint64_t step);
/// The step of "step-00000100" or "step-00000100.replaced"; nothing for other names.
std::optional<uint64_t> parse_step_folder(const std::string& name);
std::string shard_file_name(size_t shard, size_t shards);
std::string tensor_name(StateKind kind, const Unit& unit);

/// Elements [begin, end) of a unit that a shard holds; may be empty.
struct Range {
  size_t begin = 0, end = 0;
};
Range shard_range(const Unit& unit, size_t shards, size_t shard);

/// The tensors of a shard file, in order; begin and end are not set.
std::vector<TensorEntry> shard_tensors(const std::vector<Unit>& units, size_t shards, size_t shard);

/// Refuses what cannot be counted or what no machine holds, so that later arithmetic on a file's
/// shape cannot overflow.
Status validate_stored_shape(const ModelShape& shape);

struct TokenizerRecord {
  uint64_t bytes = 0;
  Hash128 hash;
};
struct Manifest {
  CheckpointInfo info;  // without `tokenizer`
  std::vector<ShardRecord> records;
  std::optional<TokenizerRecord> tokenizer;
};
/// The text ends with its own hash, over all bytes before it.
std::string manifest_text(const Manifest& manifest);
/// Checks hash, version, shape, and that there is one complete record a shard.
Result<Manifest> parse_manifest(const std::string& text);

}  // namespace simplescale::checkpoint_format
