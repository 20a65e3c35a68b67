// runtime/checkpoint: checkpoints on disk, their export and import, and the verification of runs.
//
// Checkpoints on disk (docs/formats.md): one folder per step, written under a temporary name and
// renamed when it is complete.
//
//   checkpoints/
//     step-00000100/
//       shard-00000-of-00004.safetensors   params.<unit>, exp_avg.<unit>, exp_avg_sq.<unit>, and
//                                          ema.<unit> with train.ema_decay: the shard's elements of
//                                          each unit, without padding; F32, moments may be BF16
//       tokenizer.model or tokenizer.json  if the run has one
//       manifest.json                      facts and checksums of all files; written last
//     latest -> step-00000100              updated last; for convenience, never needed
//     best -> step-00000100                with KeepRules::keep_best
//     tmp-00000200-7                       being written, or left by a crash: step, generation
//     tmp-00000200-7.<publisher>           the same, being published
//     step-00000100.replaced               the previous folder while the same step is written again
//     step-00000100.undone                 a checkpoint of a step that was undone; never used
//
//   CHECKPOINT-1  A folder step-N appears by a rename, after all its files are on disk: a crash at
//                 any byte leaves the older checkpoints as they were.
//   CHECKPOINT-2  Every byte of a checkpoint has a checksum: of each tensor's data, of each shard
//                 file's header, of the tokenizer, and of the manifest itself.
//   CHECKPOINT-3  A checkpoint of any number of shards can be read as any other number.
//   CHECKPOINT-4  A publisher that was deposed publishes nothing and breaks no checkpoint, even if
//                 its process was stopped in the middle of publishing and continues later. It gives
//                 the shards' folder and its links its own name first, asks before each rename
//                 whether it leads (LeaderFiles), and undoes a rename that it cannot complete. Its
//                 successor takes those names away (revoke_publishers()) before it reads the
//                 folder: the deposed publisher finds nothing to rename.
//
//   CHECKPOINT-7  A checkpoint names the run that made it. In a folder with an owner
//                 (run_checkpoints.hpp), those of other runs are not found, and neither replaced nor
//                 removed.
//
// Threads: a node's checkpoint writers write, the supervisor and trainers read. Each tensor is
// hashed, and written or read, by one of the threads of a Parallel.
// Nothing outside the checkpoints folder is touched.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/base/parallel.hpp"
#include "runtime/base/retries.hpp"
#include "runtime/base/status.hpp"
#include "runtime/checkpoint/file_ops.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/training/model_shape.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

// -- What a checkpoint is -----------------------------------------------------------------------

struct CheckpointInfo {
  uint64_t step = 0;         // the committed step whose result it holds; 0: initial values
  uint64_t next_sample = 0;  // samples trained so far; skipped ones do not count
  uint64_t tokens_seen = 0;
  uint64_t seed = 0;
  ModelShape shape;
  std::string precision = "fp32";  // "fp32" or "bf16"
  size_t shards = 1;
  StateFormat state;               // whether it holds an average; dtype of its moments
  std::optional<double> val_loss;  // validation loss of the step; none: it was not validated
  std::string resume = "{}";       // a JSON object with further facts of the caller
  /// Writing: path of a tokenizer's file to copy. Reading: its path in the checkpoint. "": none.
  std::string tokenizer;
};

/// Facts of a finished shard file, reported by its writer.
struct ShardRecord {
  std::string file;  // "shard-00000-of-00004.safetensors"
  uint64_t bytes = 0;
  Hash128 header;
  std::map<std::string, Hash128> tensors;  // by name, e.g. "params.embed"
  bool operator==(const ShardRecord&) const = default;
};
/// One line of JSON, which the writing node sends to the coordinator.
std::string to_json(const ShardRecord& record);
Result<ShardRecord> parse_shard_record(const std::string& json);

// -- Writing ------------------------------------------------------------------------------------

/// "<checkpoints>/tmp-00000100-<tag>": the folder that all writers of a checkpoint write to. tag:
/// the generation, so that writers of an older generation use another folder.
std::string checkpoint_tmp_folder(const std::string& checkpoints, uint64_t step, uint64_t tag);

/// Writes and syncs the file of one shard in tmp_folder, which is created if missing. side: must
/// not change meanwhile (pin it); its parts have shard_layout(units, shards).total elements. Its
/// tensors are hashed and written by the threads of `parallel`. After an error (io) the file is
/// removed.
Result<ShardRecord> write_shard(const std::string& tmp_folder, const ModelShape& shape,
                                size_t shards, size_t shard, const TrainState::Side& side,
                                const Parallel& parallel = {}, FileOps& ops = system_files());

/// Called by one coordinator once it has the records of all shards: gives tmp_folder its own name,
/// copies the tokenizer, writes the manifest, renames the folder to step-N (replacing an existing
/// one) and updates `latest`. A `latest` that cannot be updated is no error: the next checkpoint or
/// the next publisher updates it. publisher: a name that no other coordinator ever has, without
/// "/". Returns the folder. Continues where an earlier coordinator died. retries: after errors of
/// the file system; blocks. After an error (io; bad_data: a
/// shard file is missing or has another size; aborted: LeaderFiles) the older checkpoints are
/// unchanged. The shards are removed if possible, but left to the successor after aborted.
Result<std::string> publish_checkpoint(const std::string& checkpoints,
                                       const std::string& tmp_folder, const std::string& publisher,
                                       const CheckpointInfo& info,
                                       const std::vector<ShardRecord>& records,
                                       FileOps& ops = system_files(), const Retries& retries = {0});

/// Removes the tmp folders of those checkpoints for which dead(step, tag) returns true: no writer
/// works on them any more, or what it writes is never used.
Status remove_unpublished(const std::string& checkpoints,
                          const std::function<bool(uint64_t step, uint64_t tag)>& dead,
                          FileOps& ops = system_files());

/// CHECKPOINT-4: called by a new publisher before it reads the folder. Takes away what publishers
/// before it have prepared: their links are removed, their tmp folders get the shards' names back.
/// Points `latest` to the newest valid checkpoint.
Status revoke_publishers(const std::string& checkpoints, FileOps& ops = system_files());

/// The same for a single checkpoint outside a run; `folder` must not exist.
Status publish_checkpoint_as(const std::string& folder, const std::string& tmp_folder,
                             const CheckpointInfo& info, const std::vector<ShardRecord>& records,
                             FileOps& ops = system_files());

/// The generation that made a checkpoint's state; 0: not known.
uint64_t generation_of(const CheckpointInfo& info);
/// Sets the generation in info.resume.
void set_generation(CheckpointInfo& info, uint64_t generation);

/// The id of the run that made a checkpoint (run_checkpoints.hpp), in its CheckpointInfo::resume. "":
/// an earlier version made it, or it was imported.
std::string run_in(const std::string& resume);
/// `resume` with that id.
std::string with_run(const std::string& resume, const std::string& run);

/// `resume` with the record of a numerics signature (runtime/config/signature.hpp).
std::string with_signature(const std::string& resume, const nlohmann::json& record);
/// That record; null if there is none, because an earlier version made the checkpoint, or it was
/// imported.
nlohmann::json signature_record_in(const std::string& resume);

/// Renames those checkpoints of steps beyond `after` for which undone(step, generation) returns
/// true to step-N.undone, where no reader finds them. generation: as in generation_of(); 0 also for
/// a damaged checkpoint.
Status set_aside_undone(const std::string& checkpoints, uint64_t after,
                        const std::function<bool(uint64_t step, uint64_t generation)>& undone,
                        FileOps& ops = system_files());

/// sizes: checks the manifest and the sizes of files. full: also reads all data, comparing
/// checksums.
enum class Verify : uint8_t { sizes, full };

/// Which checkpoints are never removed.
struct KeepRules {
  size_t keep = 1;                     // the newest valid ones; at least 1
  uint64_t permanent_every_steps = 0;  // multiples of it; 0: none
  size_t keep_best = 0;                // the valid ones with the lowest validation loss
  uint64_t until_step = UINT64_MAX;    // later ones are neither counted nor removed
};

/// Removes the checkpoints that no rule keeps and that `latest` does not name, and points `best`
/// to the one with the lowest validation loss; of equal ones to the oldest. With keep_best = 0
/// there is no `best`. Also removes what interrupted writes have left, up to the newest valid
/// step; newer ones may still be in progress.
Status prune_checkpoints(const std::string& checkpoints, const KeepRules& rules,
                         Verify verify = Verify::sizes, FileOps& ops = system_files());

// -- Reading ------------------------------------------------------------------------------------

/// A checkpoint whose manifest and file sizes are valid. Opens a shard file when it is first read.
/// Any thread may read, also several at once.
class Checkpoint {
 public:
  /// folder: a step-N folder, or a symlink to one. bad_data: a file, which it names, is damaged or
  /// missing; not_found: there is no manifest; io: it cannot be read now, but may be undamaged.
  static Result<Checkpoint> open(const std::string& folder);
  const std::string& folder() const { return folder_; }
  const CheckpointInfo& info() const { return info_; }
  const std::vector<Unit>& units() const { return units_; }
  /// Records of the shard files, in the order of shards.
  const std::vector<ShardRecord>& records() const { return records_; }
  uint64_t bytes() const;  // of all shard files
  std::span<const StateKind> kinds() const { return state_kinds(info_.state.ema); }

  /// Passes the elements of a unit in order and in pieces to sink(offset in the unit, values), in
  /// fp32, also those that are stored in bf16. They are verified only when this returns ok, since the checksum of a tensor is known at its end.
  /// bad_data: wrong checksum, with file and tensor; io; or the error of the sink.
  using Sink = std::function<Status(size_t offset, std::span<const float> values)>;
  Status stream_unit(StateKind kind, size_t unit, const Sink& sink);
  /// The same, for only those shards that overlap elements [begin, end) of the unit, each as a
  /// whole.
  Status stream_unit(StateKind kind, size_t unit, size_t begin, size_t end, const Sink& sink);
  /// Reads all data and compares all checksums, on all cores. Errors: that of the first difference.
  Status verify();

 private:
  Checkpoint() = default;
  Result<const SafetensorsFile*> shard_file(size_t shard);
  Status stream_piece(StateKind kind, size_t unit, size_t shard, const Sink& sink);

  std::string folder_;
  CheckpointInfo info_;
  std::vector<Unit> units_;
  std::vector<ShardRecord> records_;
  std::unique_ptr<std::mutex> opening_ = std::make_unique<std::mutex>();  // guards files_
  std::vector<std::optional<SafetensorsFile>> files_;
  Hash128 tokenizer_hash_;
};

struct FoundCheckpoint {
  Checkpoint checkpoint;
  std::vector<std::string>
      warnings;  // a line per newer checkpoint that is damaged or another run's: what is wrong
  std::vector<uint64_t> older;  // steps of older checkpoints, not verified, the newest last
};
/// The newest valid checkpoint of a checkpoints folder. not_found: there is no checkpoint;
/// bad_data: all are damaged or another run's (lists all warnings); io: the folder, or a checkpoint newer than all
/// valid ones, cannot be read. An unreadable checkpoint is never replaced by an older one.
Result<FoundCheckpoint> find_newest_valid(const std::string& checkpoints,
                                          Verify verify = Verify::full);

/// The checkpoint of one step that find_newest_valid() with Verify::sizes would find: step-N or, if
/// that is missing or damaged, step-N.replaced. Errors as Checkpoint::open(), those of step-N.
Result<Checkpoint> open_step(const std::string& checkpoints, uint64_t step);
/// If `found` is in a folder step-N.replaced, which means that step-N is missing or damaged, renames
/// it to step-N.
Status put_back_replaced(const std::string& checkpoints, const Checkpoint& found,
                         FileOps& ops = system_files());
/// The steps of all folders step-N, the newest last; not verified.
std::vector<uint64_t> checkpoint_steps(const std::string& checkpoints);

/// CHECKPOINT-3: reads one shard of a layout of `shards` shards from a checkpoint of any number of
/// shards. Padding becomes zero. An average that the checkpoint does not hold begins with its
/// parameters. Moments in bf16 are read into fp32 exactly, those in fp32 into bf16 rounded to nearest
/// even. out: its parts have shard_layout(units, shards).total elements; undefined after an
/// error. Compares the checksums of all that it reads. stopped: called between
/// pieces, by the threads of `parallel`; if it returns true, the error is aborted. Otherwise errors
/// as stream_unit().
Status read_shard(Checkpoint& checkpoint, size_t shards, size_t shard, const TrainState::Side& out,
                  const std::function<bool()>& stopped = nullptr, const Parallel& parallel = {});

/// Passes the parameters of a unit, one after the other and in pieces, to sink(parameter, offset in
/// the parameter, values). Verified only when this returns ok; errors as stream_unit().
using ParameterSink =
    std::function<Status(const Parameter& parameter, size_t offset, std::span<const float> values)>;
Status stream_parameters(Checkpoint& checkpoint, StateKind kind, size_t unit,
                         const ParameterSink& sink);

/// The weights to use: the parameters, or their average. bad_data: the checkpoint has no average.
Result<StateKind> weights_kind(const Checkpoint& checkpoint, bool ema);

}  // namespace simplescale
