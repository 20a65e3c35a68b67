// run.from: a run that begins with the weights of another run, of a checkpoint, or of a Hugging
// Face folder. Its first checkpoint is written before the run's processes start.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {

/// In CheckpointInfo::resume of the first checkpoint with run.with_optimizer: the record of the
/// parent's numerics signature.
inline constexpr const char* kParentSignatureFact = "from_signature";

/// The file of the tokenizer with which the weights of `from` were trained; "" if it is unknown.
Result<std::string> tokenizer_of(const std::string& from);

/// Identifies a parent independently of its place: the id of the run that made it, or hashes of its
/// files. "": it cannot be read, or is in a bucket.
std::string identity_of_parent(const std::string& from);

/// Sets model.rope_factor and model.rope_original_block_size where they are 0, for samples of
/// block_size tokens: from the length of the parent's samples before they were ever stretched. Sets
/// nothing if the parent's samples are as long.
void stretch_rope(ModelConfig& model, const ModelShape& parent, int64_t block_size);
/// The same of a run that begins with run.from and sets model.rope_scaling;
/// before: what the run recorded at an earlier start, which it keeps. Errors of reading the parent;
/// bad_config: it is in a bucket.
Status take_rope(Config& config, const std::optional<Config>& before);

/// Finds those errors of begin_from() that can be found before data is prepared: not errors in the
/// values of the weights, nor those of a tokenizer that still has to be trained. Does not read a
/// parent in a bucket. A run with a checkpoint no longer needs its parent; bad_config: run.from now
/// names another parent, or one that cannot be compared.
Status check_parent(const Config& config, const Plan& plan);

/// Writes the first checkpoint of a run with run.from, unless the run has a checkpoint. With
/// run.with_optimizer it also takes the learning rates that were set in the parent's console.
/// tokenizer: the file of the run's tokenizer, or "". rate_said: train.learning_rate is on the
/// command line. bad_config: the weights have another shape or tokenizer, or (with_optimizer) are
/// beyond the run's last step; bad_data, io: they cannot be read or written.
Status begin_from(const Config& config, const Plan& plan, const std::string& tokenizer,
                  bool rate_said);

}  // namespace simplescale
