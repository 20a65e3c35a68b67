#include "runtime/feed/task_batches.hpp"

#include <algorithm>
#include <map>

#include "runtime/base/status.hpp"
#include "runtime/training/token_marks.hpp"

namespace simplescale {

namespace {

/// How many tokens the choices of a question begin with that are not scored in any of them, but for
/// the last one: its row has the loss of the choice's first token.
uint64_t shared_tokens(const TaskTokens& row) {
  if (row.characters.empty()) return 0;
  const TaskSequence& first = row.sequences.front();
  const uint64_t seen = first.ids.size() - first.scored;
  const auto begins_so = [&](const TaskSequence& other) {
    return other.ids.size() - other.scored == seen &&
           std::equal(first.ids.begin(), first.ids.begin() + static_cast<std::ptrdiff_t>(seen),
                      other.ids.begin());
  };
  return std::ranges::all_of(row.sequences, begins_so) ? seen - 1 : 0;
}

}  // namespace

TaskBatches::TaskBatches(std::vector<TaskTokens> rows, int64_t block_size, int64_t micro_batch_size,
                         bool share_prompts)
    : rows_(std::move(rows)),
      T_(static_cast<uint64_t>(block_size)),
      B_(static_cast<uint64_t>(micro_batch_size)),
      first_{0} {
  uint64_t sample = 0, column = 0;
  for (const TaskTokens& row : rows_) {
    const uint64_t shared = share_prompts ? shared_tokens(row) : 0;
    bool behind = false;
    for (const TaskSequence& sequence : row.sequences) {
      SS_ASSERT(sequence.ids.size() <= T_ + 1);
      Place place{&sequence, sample, column, shared, behind};
      if (column + place.length() > T_ + 1) {
        ++sample, column = 0;
        place.behind = false;
      }
      if (sample == B_) {
        first_.push_back(places_.size());
        sample = 0;
      }
      place.sample = sample, place.column = column;
      column += place.length();
      places_.push_back(place);
      behind = shared > 0;
    }
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
    const Place& place = places_[s];
    const std::vector<int32_t>& ids = place.sequence->ids;
    int32_t* to = tokens + place.sample * (T_ + 1) + place.column;
    const uint64_t seen = ids.size() - place.sequence->scored, length = place.length();
    for (uint64_t i = place.left_out(); i < ids.size(); ++i) {
      const bool begins = i == 0 || (i == place.shared && place.shared > 0);
      *to++ = ids[i] | (i < seen ? kNotTrained : 0) | (begins ? kBeginsDocument : 0) |
              (begins && i > 0 ? kSeesPrompt : 0);
    }
    if (place.column + length <= T_) *to |= kBeginsDocument;
  }
}

void TaskBatches::sum(uint64_t batch, std::span<const float> losses,
                      double* log_likelihoods) const {
  SS_ASSERT(losses.size() == B_ * T_);
  for (uint64_t s = first_[batch]; s < first_[batch + 1]; ++s) {
    const Place& place = places_[s];
    const uint64_t end = place.sample * T_ + place.column + place.length() - 1;
    const uint64_t scored = place.sequence->scored;
    double sum = 0;
    for (const float loss : losses.subspan(end - scored, scored)) sum -= loss;
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
