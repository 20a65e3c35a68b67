// train.tasks at the start of a run: the file is read, checked, and kept as tokens in the run's
// folder, where all trainers read it. So changes of the file during the run have no effect.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/feed/task_tokens.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// True if the file train.tasks is gone, and the run has its tokens.
bool uses_kept_tasks(const RunFolder& run, const Config& config);

/// Reads train.tasks, if it is set, and prints its warning. Errors of read_tasks().
Status check_tasks(const Config& config);
/// The tokens of train.tasks; empty if it is not set. tokenizer: of the run's data; "" if it has
/// none. bad_config: it has none. Errors of read_tasks(), Tokenizer::load() and encode_tasks().
Result<std::vector<TaskTokens>> task_tokens(const Config& config, const ModelShape& shape,
                                            const std::string& tokenizer);
/// Writes the tokens where the run's trainers read them; removes the file of an earlier start.
Status keep_tasks(const RunFolder& run, const std::vector<TaskTokens>& tasks);

}  // namespace simplescale
