// run.from: a run that begins with the weights of another run, of a checkpoint, or of a Hugging
// Face folder. Its first checkpoint is written before the run's processes start.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {

/// The tokenizer's file that the weights of `from` were trained with; "" if it is not known.
Result<std::string> tokenizer_of(const std::string& from);

/// What tells a parent from others, wherever it lies: the id of the run that made it, or hashes of its
/// files. "": it cannot be read, or is in a bucket.
std::string identity_of_parent(const std::string& from);

/// Errors of begin_from() that this process can find before it prepares data: not those in the values
/// of the weights, nor those of a tokenizer that it still has to train. It does not read a parent in
/// a bucket. A run that has a checkpoint needs its parent no more; bad_config: run.from names another
/// one now, or one that cannot be compared.
Status check_parent(const Config& config, const Plan& plan);

/// Writes the first checkpoint of a run with run.from, unless the run has a checkpoint, and with
/// run.with_optimizer takes the learning rates that were set in the parent's console. tokenizer: the
/// run's tokenizer, a file, or "". rate_said: train.learning_rate is on the command line. bad_config: the weights have another shape or tokenizer, or
/// (with_optimizer) are beyond the run's last step; bad_data, io: they cannot be read or written.
Status begin_from(const Config& config, const Plan& plan, const std::string& tokenizer,
                  bool rate_said);

}  // namespace simplescale
