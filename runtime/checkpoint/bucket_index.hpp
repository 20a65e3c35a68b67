// What an object store holds of a run's checkpoints: the text of its object `latest`, and which
// checkpoints it is to hold. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace simplescale {

struct StoredCheckpoint {
  uint64_t step = 0;
  std::string folder;              // "step-00000100-" and 16 hex digits of its manifest's hash
  std::optional<double> val_loss;  // as in CheckpointInfo
  bool operator==(const StoredCheckpoint&) const = default;
};

struct BucketIndex {
  std::string run_id, run_name;               // whose checkpoints these are
  std::vector<StoredCheckpoint> checkpoints;  // complete ones, by step
};
/// The text of the object `latest` (docs/formats.md).
std::string bucket_index_text(const BucketIndex& index);
/// bad_data: the text is no such index.
Result<BucketIndex> parse_bucket_index(const std::string& text);

/// The name of a checkpoint's folder in an object store. Another state of the same step has another
/// name, so that no object of a complete checkpoint is ever replaced.
std::string bucket_folder_name(uint64_t step, const std::string& manifest_text);
bool is_bucket_folder_name(const std::string& name);

/// Those that a rule keeps, by step. Steps beyond rules.until_step are left out.
std::vector<StoredCheckpoint> kept_checkpoints(std::vector<StoredCheckpoint> all,
                                               const KeepRules& rules);

/// The next change of an object store.
struct BucketStep {
  std::optional<StoredCheckpoint> upload;  // first
  std::vector<StoredCheckpoint> listed;    // then `latest` lists these
};
/// stored: what `latest` lists. local: the run's valid checkpoints on disk, by step. What is stored
/// and no longer on disk stays as long as the rules keep it; but not a step beyond the newest on
/// disk, or one that is on disk with another state: it was undone.
BucketStep next_bucket_step(const std::vector<StoredCheckpoint>& stored,
                            const std::vector<StoredCheckpoint>& local, const KeepRules& rules);

}  // namespace simplescale
