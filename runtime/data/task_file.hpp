// Questions for `evaluate --tasks`, and what the answers come to. The scores are those of
// lm-evaluation-harness (EleutherAI) for tasks of the kinds multiple_choice and
// loglikelihood_rolling. Pure functions but for reading the file; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

/// A row of the file: a question with choices, or a text whose likelihood counts.
struct TaskRow {
  std::string task;  // rows of one task are scored together; "all" if the file names none
  std::string prompt;
  std::vector<std::string> choices;  // each with what separates it from the prompt; empty: a text
  std::vector<size_t> characters;    // of each choice, without the separator
  size_t answer = 0;                 // the right one of the choices
  std::string text;
};

/// Reads a JSON-lines file, compressed or not: {"prompt", "choices", "answer", "delimiter"} or
/// {"text"}, and "task" in both. bad_data names file and line.
Result<std::vector<TaskRow>> read_tasks(const std::string& path);

/// What a task's rows come to.
struct TaskScore {
  uint64_t questions = 0, right = 0, right_normalized = 0;
  uint64_t words = 0, bytes = 0;
  double log_likelihood = 0;  // of all texts, in nats

  /// log_likelihoods: of each choice. Right: the likeliest choice is the answer; normalized: the
  /// likeliest by character. Among equal ones the first counts.
  void add_question(const TaskRow& row, const std::vector<double>& log_likelihoods);
  void add_text(const TaskRow& row, double text_log_likelihood);

  double accuracy() const;
  double normalized_accuracy() const;
  double word_perplexity() const;  // exp(-log_likelihood / words)
  double byte_perplexity() const;
};
using TaskScores = std::map<std::string, TaskScore>;

/// A table for people, or one JSON object with the tasks' names as keys.
std::string task_table(const TaskScores& scores);
std::string task_json(const TaskScores& scores);

}  // namespace simplescale
