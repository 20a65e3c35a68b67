// Reads a file of questions and texts for a model: what `evaluate --tasks` and train.tasks score.
// Blocks on the disk; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.hpp"
#include "tools/prepare/needle.hpp"

namespace simplescale {

/// A row of the file: a question with choices, a text whose likelihood counts, or a needle in a
/// haystack, which stands for many questions.
struct TaskRow {
  std::string task;  // rows of one task are scored together; "all" if the file names none
  std::string prompt;
  std::vector<std::string> choices;  // each with what separates it from the prompt; empty: a text
  std::vector<uint64_t> characters;  // of each choice, without the separator
  uint64_t answer = 0;               // the right one of the choices
  std::string text;
  std::optional<Needle> needle = {};
};

/// Reads a JSON-lines file, compressed or not: {"prompt", "choices", "answer", "delimiter"} or
/// {"text"} or {"haystack", "lengths", "depths", "questions", "seed", "needle", "question"}, and "task"
/// in each. bad_data names file and line. warning, unless null: set
/// if rows have other keys, which are not read.
Result<std::vector<TaskRow>> read_tasks(const std::string& path, std::string* warning = nullptr);

/// Words of a text, as Python's re.split(r"\s+", text) counts them. Requires valid UTF-8.
uint64_t count_words(std::string_view text);
/// As Python's text.rstrip(). Requires valid UTF-8.
std::string_view without_spaces_at_end(std::string_view text);

}  // namespace simplescale
