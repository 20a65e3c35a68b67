// The commands of the console, and their completion by Tab. Plain data and pure functions, for the
// console, its help and the supervisor; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace simplescale {

/// The process that answers a command.
enum class Answerer : unsigned char {
  console,   // the console, from the run folder alone
  question,  // the supervisor; the console may repeat a question
  action,    // the supervisor, which does something
};

struct Verb {
  std::string name, arguments, help;
  Answerer answerer;
  std::string more;     // further text of `help NAME`; may be empty
  std::string example;  // a call, and what it does
};

const std::vector<Verb>& verbs();
/// What `help NAME` prints: the call, what it does, an example.
std::string explained(const Verb& verb);
const Verb* find_verb(const std::string& name);

/// The words of a line, separated by spaces or tabs.
std::vector<std::string> split_words(const std::string& text);

/// The words that begin with `prefix` and may follow the words `before`, sorted. document: the
/// status document (`status --json`), which has the names of nodes, trainers and groups; any other
/// value has none.
std::vector<std::string> completions(const nlohmann::json& document,
                                     const std::vector<std::string>& before,
                                     const std::string& prefix);
/// The longest prefix of all words.
std::string common_prefix(const std::vector<std::string>& words);

}  // namespace simplescale
