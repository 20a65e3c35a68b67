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

/// Errors of begin_from() that this process can find before it prepares data: not those in the values
/// of the weights, nor those of a tokenizer that it still has to train. It does not read a parent in
/// a bucket.
Status check_parent(const Config& config, const Plan& plan);

/// Writes the first checkpoint of a run with run.from, unless the run has a checkpoint. tokenizer:
/// the run's tokenizer, a file, or "". bad_config: the weights have another shape or tokenizer, or
/// (with_optimizer) are beyond the run's last step; bad_data, io: they cannot be read or written.
Status begin_from(const Config& config, const Plan& plan, const std::string& tokenizer);

}  // namespace simplescale
