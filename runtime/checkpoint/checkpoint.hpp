// Checkpoints on disk: a folder a step, written aside and renamed when whole.
//
//   checkpoints/step-00000100/shard-00000-of-00004.safetensors   params.<unit>, exp_avg.<unit>,
//   exp_avg_sq.<unit>, F32: the
//                                                                shard's piece of each unit, flat,
//                                                                without padding
//                             tokenizer.model                    if the run has one
//                             manifest.json                      written last: facts and checksums
//                             of all of the above
//   checkpoints/latest -> step-00000100                          moved last; a convenience, never
//   needed checkpoints/tmp-...                                          being written, or left by a
//   crash checkpoints/step-00000100.replaced                           the former one while the
//   same step is written again
//
//   CHECKPOINT-1 A folder step-N appears by rename, when all its files are on disk: a crash at any byte
//   leaves the older ones as
//      they were.
//   CHECKPOINT-2 Every byte of a checkpoint is under a checksum: data per tensor, each header, and the
//   manifest itself. CHECKPOINT-3 Any number of shards can be read as any other number.
//
// Threads: the checkpoint writer's thread of a node writes; a Checkpoint belongs to one thread.
// Must not: touch anything outside the checkpoints folder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/base/status.hpp"
#include "runtime/checkpoint/file_ops.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/training/model_shape.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

// -- What a checkpoint is -----------------------------------------------------------------------

enum class StateKind : uint8_t { params, exp_avg, exp_avg_sq };
inline constexpr StateKind kStateKinds[] = {StateKind::params, StateKind::exp_avg,
                                            StateKind::exp_avg_sq};
const char* to_string(StateKind kind);

struct CheckpointInfo {
  uint64_t step = 0;         // the committed step whose result this is; 0: initial values
  uint64_t next_sample = 0;  // first global sample index that is not trained yet
  uint64_t tokens_seen = 0;
  uint64_t seed = 0;
  ModelShape shape;
  std::string precision = "fp32";  // "fp32" or "bf16"
  size_t shards = 1;
  std::string resume = "{}";  // a JSON object; what else the caller wants back
  /// Writing: a tokenizer.model to copy in, or empty. Reading: its path in the checkpoint, or
  /// empty.
  std::string tokenizer;
};

/// What a writer says of one finished shard file.
struct ShardRecord {
  std::string file;  // "shard-00000-of-00004.safetensors"
  uint64_t bytes = 0;
  Hash128 header;
  std::map<std::string, Hash128> tensors;  // "params.embed": ...
  bool operator==(const ShardRecord&) const = default;
};
/// As one line of JSON, to travel from the node that wrote it to the coordinator.
std::string to_json(const ShardRecord& record);
Result<ShardRecord> parse_shard_record(const std::string& json);

// -- Writing ------------------------------------------------------------------------------------

/// "<checkpoints>/tmp-00000100-<tag>": where all writers of one checkpoint write. tag: the
/// generation, so that an old one's writer cannot get in the way.
std::string checkpoint_tmp_folder(const std::string& checkpoints, uint64_t step, uint64_t tag);

/// Called between pieces of at most 4 MiB with the bytes of this file written so far; false aborts.
using WriteProgress = std::function<bool(uint64_t bytes)>;

/// Writes one shard's file into tmp_folder (made if missing) and syncs it. The side must not change
/// meanwhile (pin it); its spans have shard_layout(units, shards).total elements. Errors: io (the
/// file is removed), aborted.
Result<ShardRecord> write_shard(const std::string& tmp_folder, const ModelShape& shape,
                                size_t shards, size_t shard, const TrainState::Side& side,
                                const WriteProgress& progress = {}, FileOps& ops = system_files());

/// By one coordinator, when it has the records of all shards: copies the tokenizer, writes the
/// manifest, renames the folder to step-N (replacing one that is there), moves `latest`. Returns
/// the folder. What another coordinator did of this before it died is not done again. Errors leave
/// the older checkpoints as they were; tmp_folder is then removed where
/// possible.
Result<std::string> publish_checkpoint(const std::string& checkpoints,
                                       const std::string& tmp_folder, const CheckpointInfo& info,
                                       const std::vector<ShardRecord>& records,
                                       FileOps& ops = system_files());

/// The same for a checkpoint of its own, outside a run: `folder` must not exist.
Status publish_checkpoint_as(const std::string& folder, const std::string& tmp_folder,
                             const CheckpointInfo& info, const std::vector<ShardRecord>& records,
                             FileOps& ops = system_files());

enum class Verify : uint8_t { sizes, full };  // full reads everything and compares the checksums

/// Removes what is older than the `keep` (at least 1) newest valid checkpoints, except every
/// permanent_every_steps-th step (0: none) and the one that `latest` names; and what interrupted
/// writes of steps up to the newest have left (a newer one's may be in progress).
Status prune_checkpoints(const std::string& checkpoints, size_t keep,
                         uint64_t permanent_every_steps, Verify verify = Verify::sizes,
                         FileOps& ops = system_files());

// -- Reading ------------------------------------------------------------------------------------

/// A checkpoint whose manifest and file sizes are right. Shard files are opened when they are first
/// read.
class Checkpoint {
 public:
  /// folder: a step-N folder or a symlink to one. Errors: bad_data naming the file: it is damaged;
  /// not_found without a manifest; io: it cannot be read, and may be as good as ever.
  static Result<Checkpoint> open(const std::string& folder);
  const std::string& folder() const { return folder_; }
  const CheckpointInfo& info() const { return info_; }
  const std::vector<Unit>& units() const { return units_; }
  /// Of its files, in the order of shards.
  const std::vector<ShardRecord>& records() const { return records_; }
  uint64_t bytes() const;

  /// Gives the elements of a unit in order, piece by piece: sink(offset in the unit, values). What
  /// the sink got is right only if ok comes back: a checksum is known when its tensor has been read
  /// whole. Errors: bad_data naming file and tensor; io; or the sink's.
  using Sink = std::function<Status(size_t offset, std::span<const float> values)>;
  Status stream_unit(StateKind kind, size_t unit, const Sink& sink);
  /// Only the pieces of the shards that overlap elements [begin, end) of the unit.
  Status stream_unit(StateKind kind, size_t unit, size_t begin, size_t end, const Sink& sink);
  /// Reads everything and compares all checksums. The first difference is the error.
  Status verify();

 private:
  Checkpoint() = default;
  Result<const SafetensorsFile*> shard_file(size_t shard);
  Status stream_piece(StateKind kind, size_t unit, size_t shard, const Sink& sink);

  std::string folder_;
  CheckpointInfo info_;
  std::vector<Unit> units_;
  std::vector<ShardRecord> records_;
  std::vector<std::optional<SafetensorsFile>> files_;
  Hash128 tokenizer_hash_;
};

struct FoundCheckpoint {
  Checkpoint checkpoint;
  std::vector<std::string>
      warnings;  // one line for each newer checkpoint that is damaged: file and what is wrong
  std::vector<uint64_t> older;  // steps of those before it, unchecked, the newest last
};
/// The newest valid checkpoint of a checkpoints folder. Errors: not_found if there is none at all,
/// bad_data (all the warnings) if all are damaged; io if the folder or a newer checkpoint cannot be
/// read: an older one never takes its place for that.
Result<FoundCheckpoint> find_newest_valid(const std::string& checkpoints,
                                          Verify verify = Verify::full);

/// Fills one shard of a layout of `shards`, whatever the checkpoint has; padding becomes zero. The
/// spans have shard_layout(units, shards).total elements. Compares the checksums of all it reads;
/// on an error the side is undefined. stopped: asked between pieces; aborted if it says so.
Status read_shard(Checkpoint& checkpoint, size_t shards, size_t shard, const TrainState::Side& out,
                  const std::function<bool()>& stopped = nullptr);

/// Gives the parameters of a unit one after the other, each in pieces: sink(parameter, offset in
/// it, values). As stream_unit: what the sink got is right only if ok comes back.
using ParameterSink =
    std::function<Status(const Parameter& parameter, size_t offset, std::span<const float> values)>;
Status stream_parameters(Checkpoint& checkpoint, StateKind kind, size_t unit,
                         const ParameterSink& sink);

/// One whole parameter by its Hugging Face name.
Result<std::vector<float>> read_parameter(Checkpoint& checkpoint, const std::string& name,
                                          StateKind kind = StateKind::params);

}  // namespace simplescale
