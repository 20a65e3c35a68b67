// The commands of the console, and how Tab completes them. Plain data and pure functions, for the
// console, its help and the supervisor; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace simplescale {

/// What answers a command.
enum class Answerer : unsigned char {
  console,   // the console, from the run folder alone
  question,  // the supervisor; a question may be asked again
  action,    // the supervisor, which does something
};

struct Verb {
  std::string name, arguments, help;
  Answerer answerer;
  std::string more;     // what else `help NAME` says; may be empty
  std::string example;  // a call, and what it does
};

const std::vector<Verb>& verbs();
/// What `help NAME` prints: the call, what it does, an example.
std::string explained(const Verb& verb);
const Verb* find_verb(const std::string& name);

/// The words of a line, separated by spaces or tabs.
std::vector<std::string> split_words(const std::string& text);

/// The words that begin with `prefix` and may follow the words `before`, sorted. document: the
/// status document (`status --json`), for names of nodes, trainers and groups; anything else has
/// none.
std::vector<std::string> completions(const nlohmann::json& document,
                                     const std::vector<std::string>& before,
                                     const std::string& prefix);
/// The longest prefix of all words.
std::string common_prefix(const std::vector<std::string>& words);

}  // namespace simplescale
