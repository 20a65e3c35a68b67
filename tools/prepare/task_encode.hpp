// The rows of a task file as tokens; the same as lm-evaluation-harness (EleutherAI) makes. Any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/feed/task_tokens.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tools/prepare/task_file.hpp"

namespace simplescale {

/// Each text begins with BOS, or with EOS where the tokenizer has no BOS. A choice that is too long
/// with its prompt is cut from the left. A text is cut into pieces; the last piece sees a full
/// block. bad_data: the tokenizer has neither BOS nor EOS, makes no tokens of a choice, or makes ids
/// that a model of `vocab` tokens does not have.
Result<std::vector<TaskTokens>> encode_tasks(const std::vector<TaskRow>& rows,
                                             const Tokenizer& tokenizer, int64_t block_size,
                                             int64_t vocab);

}  // namespace simplescale
