// The words of the console: which commands there are, and how they are completed. Plain data and
// pure functions, for the console, its help and the supervisor's own reading of commands.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace simplescale {

/// Who answers a command.
enum class Answerer : unsigned char {
  console,   // from the run's folder alone
  question,  // the supervisor; asking twice does no harm
  action,    // the supervisor does something
};

struct Verb {
  std::string name, arguments, help;
  Answerer answerer;
};

const std::vector<Verb>& verbs();
const Verb* find_verb(const std::string& name);

/// Words of a line, separated by spaces.
std::vector<std::string> words_of(const std::string& text);

/// What the word that begins with `prefix` may become after the words `before`, sorted. document: as of
/// `status --json`; anything else completes no names.
std::vector<std::string> completions(const nlohmann::json& document,
                                     const std::vector<std::string>& before,
                                     const std::string& prefix);
/// What all of them begin with.
std::string common_prefix(const std::vector<std::string>& words);

}  // namespace simplescale
