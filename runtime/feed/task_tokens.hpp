// A task file as tokens: which tokens a model sees, and which of them it is scored by. The same
// tokens as lm-evaluation-harness (EleutherAI) makes. Blocks on the disk; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Tokens that the model sees together, at most block_size + 1. The likelihood of the last `scored`
/// of them counts, which is at least one and not all.
struct TaskSequence {
  uint64_t scored = 1;
  std::vector<int32_t> ids;
  bool operator==(const TaskSequence&) const = default;
};

/// A row of a task file.
struct TaskTokens {
  std::string task;
  std::vector<TaskSequence> sequences;  // one for each choice; of a text: its pieces
  std::vector<uint64_t> characters;     // of each choice; empty: a text
  uint64_t answer = 0;
  uint64_t words = 0, bytes = 0;  // of a text
  bool operator==(const TaskTokens&) const = default;
};

/// Whether a model of `vocab` tokens can score the sequence.
bool fits_model(const TaskSequence& sequence, int64_t block_size, int64_t vocab);

/// Replaces the file `path`, whose format docs/formats.md tells, in one step.
Status write_task_tokens(const std::string& path, const std::vector<TaskTokens>& rows);
/// bad_data names file and line: it is damaged, or was not made for such a model.
Result<std::vector<TaskTokens>> read_task_tokens(const std::string& path, int64_t block_size,
                                                 int64_t vocab);

}  // namespace simplescale
