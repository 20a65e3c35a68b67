#include "actors/supervisor/verbs.hpp"

#include <algorithm>
#include <set>

#include "actors/supervisor/decision/decide.hpp"
#include "runtime/config/config.hpp"

namespace simplescale {

using nlohmann::json;

const std::vector<Verb>& verbs() {
  using enum Answerer;
  static const std::vector<Verb> list = {
      {"help", "[COMMAND]", "this, or one command", console},
      {"status", "", "state, step, loss, rate, who supervises", question},
      {"tree", "", "the supervision tree: groups, nodes, trainers", question},
      {"nodes", "", "a line for each node", question},
      {"watch", "", "the tree and the newest events, until a key is pressed", console},
      {"events", "[N]", "the newest N events (20)", console},
      {"why", "[INCIDENT|diagnosis]",
       "the phases of an incident (the last), the decision, its reason; or the last diagnosis",
       console},
      {"plan", "KIND TARGET", "what would be decided, without doing it", question},
      {"pause", "", "end the step and wait", action},
      {"resume", "", "train again", action},
      {"save", "", "a checkpoint of the next step", action},
      {"stop", "", "end the step, save, end the run; `train` goes on from there", action},
      {"drain", "NODE", "keep a node out; a spare takes its place, or groups become fewer", action},
      {"undrain", "NODE", "let a drained node come back", action},
      {"add", "NODE", "the same, for one that is drained; lost ones come back by themselves",
       action},
      {"restart", "TRAINER|GROUP", "end the processes; warm ones take their places", action},
      {"diagnose", "NODE|all",
       "examine a node, or all, between two steps, and show what was found; who fails is drained",
       action},
      {"inject", "KIND TARGET [--at STEP] [--ms MS] [--value X]", "a fault on purpose", action},
      {"trace", "[STEP|next] [COUNT]", "write a trace of these steps; `trace RUN` shows it",
       action},
      {"set", "[KEY VALUE]", "change what may change in flight; alone: what that is", action},
      {"quit", "", "leave the console; training goes on", console},
  };
  return list;
}

const Verb* find_verb(const std::string& name) {
  const auto found = std::ranges::find(verbs(), name, &Verb::name);
  return found == verbs().end() ? nullptr : &*found;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find_first_of(" \t", i), text.size());
    if (end > i) words.push_back(text.substr(i, end - i));
    i = end + 1;
  }
  return words;
}

namespace {

struct Names {
  std::set<std::string> nodes, trainers, groups;
};

Names names_of(const json& document) {
  Names names;
  auto text = [](const json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
  };
  if (!document.is_object() || !document.contains("nodes") || !document["nodes"].is_array())
    return names;
  for (const json& node : document["nodes"]) {
    if (!node.is_object()) continue;
    names.nodes.insert(text(node, "name"));
    if (!node.contains("trainers") || !node["trainers"].is_array()) continue;
    for (const json& trainer : node["trainers"]) {
      if (!trainer.is_object()) continue;
      names.trainers.insert(text(trainer, "name"));
      names.groups.insert(text(trainer, "group"));
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> completions(const json& document, const std::vector<std::string>& before,
                                     const std::string& prefix) {
  std::set<std::string> words;
  auto take = [&](const auto& more) { words.insert(more.begin(), more.end()); };
  const std::string verb = before.empty() ? "" : before[0];
  const size_t index = before.size();  // of the word to be completed
  if (index == 0 || (verb == "help" && index == 1)) {
    for (const Verb& known : verbs()) words.insert(known.name);
  } else if (verb == "inject" || verb == "plan") {
    const Names names = names_of(document);
    if (index == 1) take(fault_kinds());
    if (index == 2) take(names.nodes), take(names.trainers);
    if (verb == "inject" && index > 2) words = {"--at", "--ms", "--value"};
  } else if (verb == "restart" && index == 1) {
    const Names names = names_of(document);
    take(names.trainers), take(names.groups);
  } else if (verb == "why" && index == 1) {
    words = {"diagnosis"};
  } else if (verb == "set" && index == 1) {
    for (const auto& [key, value] : job::settings(job::State())) words.insert(key);
  } else if (const Verb* known = find_verb(verb);
             known && known->arguments.starts_with("NODE") && index == 1) {
    take(names_of(document).nodes);
    if (verb == "diagnose") words.insert("all");
  }
  std::vector<std::string> result;
  for (const std::string& word : words)
    if (!word.empty() && word.starts_with(prefix)) result.push_back(word);
  return result;
}

std::string common_prefix(const std::vector<std::string>& words) {
  if (words.empty()) return "";
  std::string common = words.front();
  for (const std::string& word : words)
    common.resize(static_cast<size_t>(std::ranges::mismatch(common, word).in1 - common.begin()));
  return common;
}

}  // namespace simplescale
