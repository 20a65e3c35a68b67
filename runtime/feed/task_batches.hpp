// The sequences of a task file as samples for a model: many sequences lie in one sample, as
// documents that do not see each other, but for a prompt that several choices share: the model
// computes its keys and values once. Plain data; any thread.
//
// B samples per micro-batch, T = block_size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/feed/task_tokens.hpp"
#include "runtime/training/task_score.hpp"

namespace simplescale {

class TaskBatches {
 public:
  /// Each sequence of `rows` begins in the newest sample if that has room for all of it, else in a
  /// new sample. So the samples depend on the arguments only. share_prompts: the choices of a
  /// question see one prompt (kSeesPrompt), as far as they lie in one sample.
  TaskBatches(std::vector<TaskTokens> rows, int64_t block_size, int64_t micro_batch_size,
              bool share_prompts = false);
  TaskBatches(TaskBatches&&) = default;  // places_ points into rows_

  uint64_t batches() const { return first_.size() - 1; }
  /// The sequences of a batch are those from first(batch) to before first(batch + 1), in the order
  /// of the rows.
  uint64_t first(uint64_t batch) const { return first_[batch]; }
  uint64_t sequences() const { return places_.size(); }
  /// The most sequences of a batch.
  uint64_t most_sequences() const;

  /// tokens: becomes (B, T + 1) with marks (token_marks.hpp): only scored tokens are trained.
  void fill(uint64_t batch, int32_t* tokens) const;
  /// losses: of each target of the batch, (B, T) in nats. log_likelihoods: receives those of the
  /// batch's sequences.
  void sum(uint64_t batch, std::span<const float> losses, double* log_likelihoods) const;
  /// log_likelihoods: of all sequences.
  TaskScores scores(std::span<const double> log_likelihoods) const;

 private:
  struct Place {
    const TaskSequence* sequence;
    uint64_t sample, column;  // of its first token here; samples count from the batch's first
    uint64_t shared;          // so many of its tokens are a document of their own, the prompt
    bool behind;              // that document is before it, with another sequence
    uint64_t left_out() const { return behind ? shared : 0; }
    uint64_t length() const { return sequence->ids.size() - left_out(); }
  };
  std::vector<TaskTokens> rows_;
  const uint64_t T_, B_;
  std::vector<Place> places_;  // of all sequences
  std::vector<uint64_t> first_;
};

}  // namespace simplescale
