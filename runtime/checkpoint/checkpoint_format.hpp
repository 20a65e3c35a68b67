// What writing and reading a checkpoint have in common: names, the text of the manifest, the places
// of shards, and the removal of a folder. Any thread; all functions but remove_checkpoint() and
// is_of_another_run() are pure. Used in runtime/checkpoint/ only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale::checkpoint_format {

inline constexpr uint64_t kVersion = 1;
inline constexpr size_t kManifestBytesMax = 256 << 20;
inline constexpr size_t kPieceElements = 1
                                         << 20;  // at most 4 MiB, read, hashed and written at once
inline constexpr const char* kManifest = "manifest.json";
inline constexpr const char* kTmpPrefix = "tmp-";
inline constexpr const char* kDeletePrefix = "tmp-delete-";
inline constexpr const char* kReplaced = ".replaced";
inline constexpr const char* kUndone = ".undone";

std::string step_folder_name(uint64_t step);
/// The step of "step-00000100" or "step-00000100.replaced"; nullopt for other names.
std::optional<uint64_t> parse_step_folder(const std::string& name);
/// Renames <checkpoints>/<name> to tmp-delete-<name> before it removes the folder, so that neither a
/// crash nor a deposed publisher leaves a partial folder under that name. ok if there is none.
Status remove_checkpoint(const std::string& checkpoints, const std::string& name, FileOps& ops);

/// True if the checkpoint's manifest names a run that is none of `runs`. False if it names none, if
/// it cannot be read, or if `runs` is empty.
bool is_of_another_run(const std::string& folder, const std::vector<std::string>& runs);
/// What is wrong with such a checkpoint.
std::string made_by_another(const std::string& folder);

std::string shard_file_name(size_t shard, size_t shards);
std::string tensor_name(StateKind kind, const Unit& unit);
/// bad_data: one of the values is NaN or infinite. first: the element of the tensor that values[0]
/// is; where: its file or folder.
Status check_finite(std::span<const float> values, size_t first, const std::string& where,
                    const std::string& tensor);

/// The elements [begin, end) of a unit that a shard holds; may be empty.
struct Range {
  size_t begin = 0, end = 0;
};
Range shard_range(const Unit& unit, size_t shards, size_t shard);

/// The tensors of a shard file in their order; begin and end are not set.
std::vector<TensorEntry> shard_tensors(const std::vector<Unit>& units, size_t shards, size_t shard,
                                       const StateFormat& format);

/// bad_data: a shape from a file is impossible, or so large that arithmetic on it could overflow.
Status validate_stored_shape(const ModelShape& shape);

struct TokenizerRecord {
  std::string file;  // kSentencePieceFile or kTokenizerJsonFile
  uint64_t bytes = 0;
  Hash128 hash;
};
struct Manifest {
  CheckpointInfo info;  // info.tokenizer is not used
  std::vector<ShardRecord> records;
  std::optional<TokenizerRecord> tokenizer;
};
/// The text of manifest.json, which ends with the hash of all bytes before the hash.
std::string manifest_text(const Manifest& manifest);
/// Parses that text. Checks hash, version, shape, and that there is a complete record for every
/// shard. bad_data.
Result<Manifest> parse_manifest(const std::string& text);

}  // namespace simplescale::checkpoint_format
