// Scores of multiple-choice and perplexity tasks. The figures are those of lm-evaluation-harness
// (EleutherAI) for tasks of the kinds multiple_choice and loglikelihood_rolling. Pure functions,
// any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace simplescale {

struct TaskScore {
  std::string task;
  uint64_t questions = 0, right = 0, right_normalized = 0;
  uint64_t words = 0, bytes = 0;  // of all texts
  double log_likelihood = 0;      // of all texts, in nats

  /// log_likelihoods, characters: of each choice. `right` counts a question if the likeliest choice
  /// is the answer, right_normalized if the likeliest by character is. Of equal choices, the first
  /// counts.
  void add_question(std::span<const double> log_likelihoods, std::span<const uint64_t> characters,
                    uint64_t answer);
  void add_text(double text_log_likelihood, uint64_t text_words, uint64_t text_bytes);

  double accuracy() const;  // NaN without questions
  double normalized_accuracy() const;
  double word_perplexity() const;  // exp(-log_likelihood / words)
  double byte_perplexity() const;
  bool operator==(const TaskScore&) const = default;
};
/// Ordered by the names of the tasks.
using TaskScores = std::vector<TaskScore>;

/// A table for people.
std::string task_table(const TaskScores& scores);
/// Accuracies of tasks with names TASK/LENGTH/PERCENT (needle.hpp): a table for each TASK, with a row for
/// each depth and a column for each length. "" if there are none.
std::string depth_table(const TaskScores& scores);
/// An object with the tasks' names as keys: `questions`, `acc`, `acc_norm`; `words`,
/// `word_perplexity`, `byte_perplexity`. Null: there are no scores.
nlohmann::json task_json(const TaskScores& scores);
/// One line with the scores of an object from task_json(): "capitals accuracy 0.5000, by character
/// 0.6000; prose perplexity by word 83.10, by byte 2.4100". "" if it is another object.
std::string task_text(const nlohmann::json& tasks);
/// The mean accuracy of the tasks that have questions; NaN if none has. tasks: as above.
double mean_accuracy(const nlohmann::json& tasks);

}  // namespace simplescale
