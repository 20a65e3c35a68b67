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
      {"help", "[COMMAND]", "list the commands, or explain one", console, "",
       "help drain    explains the command `drain`"},
      {"status", "", "state, step, loss, rate, supervisor and standby", question, "",
       "status --json    prints the status as JSON, as for every command"},
      {"tree", "", "the supervision tree: groups, nodes, trainers", question, "", "tree"},
      {"nodes", "", "one line for each node", question,
       "A drained, suspect or lost node has the reason in its line.", "nodes"},
      {"watch", "", "what matters now, until a key is pressed", console,
       "Shows the state, a stall, groups, nodes that differ, incidents and events, as much as fits "
       "the terminal.",
       "watch"},
      {"events", "[N]", "the newest N events (20)", console, "", "events 50    the newest 50"},
      {"why", "[INCIDENT|diagnosis]",
       "phases, decision and reason of an incident (by default the last), or the last diagnosis",
       console, "", "why 3    explains incident 3"},
      {"plan", "[KIND TARGET]",
       "say what the supervisor would decide after a fault, without injecting it", question,
       "Without arguments it lists the kinds of faults.",
       "plan kill_agent n1    what would happen if node n1 died"},
      {"pause", "", "pause training after the current step", action,
       "The processes stay; `resume` continues with the next step.", "pause"},
      {"resume", "", "train again after a pause", action, "", "resume"},
      {"save", "", "save a checkpoint of the next step, and say which one", action,
       "Training goes on while the checkpoint is written.", "save"},
      {"stop", "", "save a checkpoint after the current step and end the run; `train` resumes it",
       action, "", "stop"},
      {"drain", "NODE", "take a node out of training; a spare replaces it, or fewer groups train",
       action, "Nothing is lost: the node leaves after the current step.",
       "drain n1    before n1's host is repaired"},
      {"remove", "NODE", "take a node out of the run for good; its name is free", action,
       "Nothing is lost: the node leaves after the current step, and ends once a step is made "
       "without it. A host joins again with train --join RUN.",
       "remove n5    before the allocation of n5's host ends"},
      {"undrain", "NODE", "let a drained node train again", action, "", "undrain n1"},
      {"add", "NODE", "the same as undrain; a lost node returns by itself", action, "", "add n1"},
      {"restart", "TRAINER|GROUP", "end these trainers' processes; warm processes replace them",
       action, "", "restart n1.0    or a group: restart g1"},
      {"diagnose", "NODE|all",
       "examine nodes between two steps and show the results; a node that fails is drained", action,
       "Arithmetic, memory, disk and links are examined. Training waits meanwhile.", "diagnose n1"},
      {"inject", "[KIND TARGET [--at STEP] [--ms MS] [--value X]]",
       "inject a fault, now or while a step is made", action,
       "Without arguments it lists the kinds of faults. --ms: how long it lasts; --value: how "
       "strong it is.",
       "inject kill_trainer n1.0 --at 500    kills the process while step 500 is made"},
      {"trace", "[STEP|next] [COUNT]",
       "write a trace of these steps; `simplescale trace RUN` shows it", action, "",
       "trace next 2    traces the next two steps"},
      {"set", "[KEY VALUE]",
       "change a setting of the running job; without arguments: list the settings", action,
       "train.learning_rate is the schedule's peak. The next step uses the new one on all "
       "trainers; "
       "recoveries and later starts of the run keep it.",
       "set train.learning_rate 0.0002"},
      {"quit", "", "leave the console; training continues", console, "", "quit"},
  };
  return list;
}

const Verb* find_verb(const std::string& name) {
  const auto found = std::ranges::find(verbs(), name, &Verb::name);
  return found == verbs().end() ? nullptr : &*found;
}

std::string explained(const Verb& verb) {
  std::string text =
      verb.name + (verb.arguments.empty() ? "" : " " + verb.arguments) + "\n  " + verb.help + "\n";
  if (!verb.more.empty()) text += "  " + verb.more + "\n";
  return text + "Example:\n  " + verb.example + "\n";
}

std::vector<std::string> split_words(const std::string& text) {
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
  const size_t index = before.size();  // of the word that is completed
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
