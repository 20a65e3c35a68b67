#include "runtime/data/task_batches.hpp"

#include <algorithm>
#include <map>

#include "runtime/base/status.hpp"
#include "runtime/training/token_marks.hpp"

namespace simplescale {

TaskBatches::TaskBatches(std::vector<TaskTokens> rows, int64_t block_size, int64_t micro_batch_size)
    : rows_(std::move(rows)),
      T_(static_cast<uint64_t>(block_size)),
      B_(static_cast<uint64_t>(micro_batch_size)),
      first_{0} {
  uint64_t sample = 0, column = 0;
  for (const TaskTokens& row : rows_)
    for (const TaskSequence& sequence : row.sequences) {
      const uint64_t length = sequence.ids.size();
      SS_ASSERT(length <= T_ + 1);
      if (column + length > T_ + 1) ++sample, column = 0;
      if (sample == B_) {
        first_.push_back(places_.size());
        sample = 0;
      }
      places_.push_back({&sequence, sample, column});
      column += length;
    }
  if (!places_.empty()) first_.push_back(places_.size());
}

uint64_t TaskBatches::most_sequences() const {
  uint64_t most = 0;
  for (size_t batch = 0; batch + 1 < first_.size(); ++batch)
    most = std::max(most, first_[batch + 1] - first_[batch]);
  return most;
}

void TaskBatches::fill(uint64_t batch, int32_t* tokens) const {
  std::fill_n(tokens, B_ * (T_ + 1), kNotTrained);  // what no sequence fills has the id 0
  for (uint64_t s = first_[batch]; s < first_[batch + 1]; ++s) {
    const auto& [sequence, sample, column] = places_[s];
    int32_t* to = tokens + sample * (T_ + 1) + column;
    const uint64_t length = sequence->ids.size(), seen = length - sequence->scored;
    for (uint64_t i = 0; i < length; ++i) to[i] = sequence->ids[i] | (i < seen ? kNotTrained : 0);
    to[0] |= kBeginsDocument;
    if (column + length <= T_) to[length] |= kBeginsDocument;
  }
}

void TaskBatches::sum(uint64_t batch, std::span<const float> losses,
                      double* log_likelihoods) const {
  SS_ASSERT(losses.size() == B_ * T_);
  for (uint64_t s = first_[batch]; s < first_[batch + 1]; ++s) {
    const auto& [sequence, sample, column] = places_[s];
    const uint64_t end = sample * T_ + column + sequence->ids.size() - 1;
    double sum = 0;
    for (const float loss : losses.subspan(end - sequence->scored, sequence->scored)) sum -= loss;
    *log_likelihoods++ = sum;
  }
}

TaskScores TaskBatches::scores(std::span<const double> log_likelihoods) const {
  SS_ASSERT(log_likelihoods.size() == places_.size());
  std::map<std::string, TaskScore> scores;
  for (const TaskTokens& row : rows_) {
    TaskScore& score = scores[row.task];
    score.task = row.task;
    const auto of_row = log_likelihoods.first(row.sequences.size());
    log_likelihoods = log_likelihoods.subspan(of_row.size());
    double sum = 0;
    for (const double one : of_row) sum += one;
    if (row.characters.empty())
      score.add_text(sum, row.words, row.bytes);
    else
      score.add_question(of_row, row.characters, row.answer);
  }
  TaskScores list;
  for (auto& [name, score] : scores) list.push_back(std::move(score));
  return list;
}

}  // namespace simplescale
