#include "actors/supervisor/commands.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "actors/supervisor/decision/what_if.hpp"
#include "actors/supervisor/verbs.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/words.hpp"
#include "runtime/config/faults.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

bool is_fault(const std::string& kind) {
  return std::ranges::find(fault_kinds(), kind) != fault_kinds().end();
}

/// Why this fault cannot be injected; "" if it can.
std::string refused(const job::State& state, const std::string& kind, const std::string& target) {
  std::vector<std::string> trainers;
  for (const auto& [name, trainer] : state.trainers) trainers.push_back(name);
  return check_fault(kind, target, state.node_order, trainers).message();
}

/// Parses a number. False if the text has anything else in it.
template <class Number>
bool number_of(const std::string& text, Number& value) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  return end.ec == std::errc() && end.ptr == text.data() + text.size();
}

Request refuse(std::string error) {
  Request request;
  request.error = std::move(error);
  return request;
}

Request ask(job::Event event) {
  Request request;
  request.event = std::move(event);
  return request;
}

/// Reads one option of `inject`; returns what is wrong with it, or "".
std::string read_option(const job::State& state, const std::string& option, const std::string& text,
                        InjectFault& fault) {
  bool is_number = false;
  if (option == "--at")
    is_number = number_of(text, fault.step);
  else if (option == "--ms")
    is_number = number_of(text, fault.ms);
  else if (option == "--value")
    is_number = number_of(text, fault.value);
  else
    return "unknown option " + option;
  if (!is_number)
    return option + " needs a " + (option == "--value" ? "number" : "whole number") +
           (option == "--ms" ? " of milliseconds, 0 or more" : "") +
           (text.empty() ? "" : "; '" + text + "' is none");
  if (option != "--at") return "";
  if (fault.step <= state.committed_step)
    return "step " + text + " is over; the next step is " +
           std::to_string(state.committed_step + 1);
  if (fault.step > state.max_steps) return "the last step is " + std::to_string(state.max_steps);
  return "";
}

Request parse_inject(const job::State& state, const std::vector<std::string>& words) {
  if (words.size() < 2) return {};  // a question: the list of kinds
  if (!is_fault(words[1]))
    return refuse("there is no fault '" + words[1] + "'" + did_you_mean(words[1], fault_kinds()) +
                  "; `inject` lists all kinds");
  InjectFault fault;
  fault.kind = words[1];
  size_t next = 2;
  if (next < words.size() && !words[next].starts_with("--")) fault.target = words[next++];
  for (; next < words.size(); next += 2) {
    const std::string text = next + 1 < words.size() ? words[next + 1] : "";
    const std::string wrong = read_option(state, words[next], text, fault);
    if (!wrong.empty()) return refuse(wrong);
  }
  std::string why = refused(state, fault.kind, fault.target);
  if (why.empty() && fault.step == 0) why = why_unreachable(state, fault);
  if (!why.empty()) return refuse(why);
  Request request;
  request.fault = std::move(fault);
  return request;
}

Request parse_set(const job::State& state, const std::vector<std::string>& words,
                  const std::string& who) {
  int64_t whole = 0;
  double value = 0;
  const bool known = std::ranges::any_of(
      job::settings(state), [&](const auto& setting) { return setting.first == words[1]; });
  if (!known)
    return refuse("'" + words[1] +
                  "' cannot be changed while the run trains; `set` lists what can");
  const bool rate = words[1] == "train.learning_rate";
  if (words.size() != 3 || !number_of(words[2], value) || (!rate && !number_of(words[2], whole)))
    return refuse(std::string("set KEY VALUE; the value is a ") + (rate ? "" : "whole ") +
                  "number");
  if (rate)
    if (std::string why = job::rate_refused(state, value); !why.empty())
      return refuse(std::move(why));
  return ask(job::SetRequested{words[1], value, who});
}

/// diagnose NODE|all: that node, or all nodes that are up.
Request parse_diagnose(const job::State& state, const std::string& target, const std::string& who) {
  job::DiagnoseRequested diagnose{{}, who};
  for (const std::string& name : state.node_order)
    if ((target == "all" || target == name) && state.nodes.at(name).state == job::NodeState::up)
      diagnose.nodes.push_back(name);
  const auto node = state.nodes.find(target);
  if (target.empty()) return refuse("diagnose NODE|all");
  if (target != "all" && node == state.nodes.end())
    return refuse("there is no node '" + target + "'");
  if (diagnose.nodes.empty())
    return refuse(target == "all"
                      ? "no node is up"
                      : target + " is " + job::to_string(node->second.state) + ", not up");
  if (job::diagnosing(state)) return refuse("a diagnosis is under way");
  if (state.stop_requested) return refuse("the run is being stopped");
  return ask(std::move(diagnose));
}

/// trace [STEP|next] [COUNT]
Request parse_trace(const job::State& state, const std::vector<std::string>& words) {
  constexpr uint64_t kMost = 100;
  const uint64_t next = state.committed_step + 1;
  Request::Trace trace{next, 1};
  const bool named = words.size() > 1 && words[1] != "next";
  if ((named && !number_of(words[1], trace.first)) ||
      (words.size() > 2 && !number_of(words[2], trace.count)) || trace.first == 0 ||
      trace.count == 0 || trace.count > kMost || words.size() > 3)
    return refuse("trace [STEP|next] [COUNT]; at most " + std::to_string(kMost) + " steps");
  if (trace.first < next)
    return refuse("step " + words[1] + " is over; the next step is " + std::to_string(next));
  if (trace.first > state.max_steps)
    return refuse("the last step is " + std::to_string(state.max_steps));
  Request request;
  request.trace = trace;
  return request;
}

/// drain NODE, remove NODE, undrain NODE, add NODE
Request parse_drain(const job::State& state, const std::string& verb, const std::string& target,
                    const std::string& reason) {
  const auto node = state.nodes.find(target);
  if (target.empty()) return refuse(verb + " NODE");
  if (node == state.nodes.end())
    return refuse("there is no node '" + target + "'" +
                  (verb == "add" ? "; a host joins by itself: train --join RUN" : ""));
  const job::NodeState now = node->second.state;
  if (verb == "remove" && node->second.leaves) return refuse(target + " is being removed already");
  if (verb == "drain" && now == job::NodeState::drained)
    return refuse(target + " is drained already");
  if (verb == "remove") return ask(job::DrainRequested{target, true, reason, true});
  if (verb != "drain" && now != job::NodeState::drained)
    return refuse(
        target + " is " + job::to_string(now) + ", not drained" +
        (now == job::NodeState::lost ? ": it returns by itself once its agent runs" : ""));
  return ask(job::DrainRequested{target, verb == "drain", reason});
}

/// Why no trainer will train until a user acts; "" if training goes on, or will go on without a
/// user.
std::string why_no_training(const job::State& state) {
  if (state.paused) return "the run is paused; `resume` continues it";
  if (job::over(state.phase)) return std::string("the run is over: ") + job::to_string(state.phase);
  if (state.stop_requested) return "the run is being stopped, which saves its newest step";
  return "";
}

/// True between two generations, as after `set train.learning_rate`, or during a recovery.
bool between_generations(const job::State& state) {
  return state.phase != job::Phase::training || state.leaving || state.layout.domains.empty() ||
         std::ranges::any_of(job::places(state.rules, state.layout), [&](const job::Place& place) {
           return state.trainers.at(place.trainer).state != job::TrainerState::training;
         });
}

Request refuse_early(const job::State& state) {
  Request request =
      refuse(std::string("no trainer trains now: ") +
             (state.leaving || state.phase == job::Phase::training ? "the next generation begins"
                                                                   : job::to_string(state.phase)));
  request.early = true;
  return request;
}

Request parse_save(const job::State& state) {
  if (std::string why = why_no_training(state); !why.empty()) return refuse(std::move(why));
  if (between_generations(state)) return refuse_early(state);
  Request request;
  request.save = job::places(state.rules, state.layout).front().trainer;
  return request;
}

/// restart TRAINER|GROUP
Request parse_restart(const job::State& state, const std::string& target) {
  Request request;
  for (const job::Place& place : job::places(state.rules, state.layout))
    if (place.trainer == target || "g" + std::to_string(place.group) == target)
      request.restart.push_back(place.trainer);
  const bool known = state.trainers.contains(target) || state.layout.domains.empty();
  if (request.restart.empty() && known && why_no_training(state).empty() &&
      between_generations(state))
    return refuse_early(state);
  if (request.restart.empty()) return refuse("no trainer or group '" + target + "' trains");
  return request;
}

Request parse_verb(const job::State& state, const std::vector<std::string>& words,
                   const std::string& who) {
  if (words.empty()) return refuse("an empty command; `help` lists the commands");
  const std::string& verb = words[0];
  const std::string target = words.size() > 1 ? words[1] : "";
  const std::string reason = "requested by " + who;
  const Verb* known = find_verb(verb);
  if (known && known->arguments.empty() && words.size() > 1)
    return refuse("`" + verb + "` takes no argument; it acts on the run of this console");
  if (verb == "drain" || verb == "remove" || verb == "undrain" || verb == "add")
    return parse_drain(state, verb, target, reason);
  if (verb == "pause" || verb == "resume") return ask(job::PauseRequested{verb == "pause", who});
  if (verb == "save") return parse_save(state);
  if (verb == "stop") return ask(job::StopRequested{Code::ok, "stopped by " + who, false});
  if (verb == "diagnose") return parse_diagnose(state, target, who);
  if (verb == "restart") return parse_restart(state, target);
  if (verb == "inject") return parse_inject(state, words);
  if (verb == "trace") return parse_trace(state, words);
  if (verb == "set" && words.size() > 1) return parse_set(state, words, who);
  if (!known || (known->answerer == Answerer::console && verb != "why"))
    return refuse("unknown command '" + verb + "'");
  return {};  // a question
}

}  // namespace

std::string why_unreachable(const job::State& state, const InjectFault& fault) {
  if (fault_target(fault.kind) == FaultTarget::supervisor) return "";
  const std::string name = node_of(fault.target);
  const auto node = state.nodes.find(name);
  if (node == state.nodes.end()) return "there is no node '" + name + "'";
  if (node->second.state == job::NodeState::absent)
    return name + " is absent: its agent has not reported yet";
  if (node->second.state == job::NodeState::lost) return name + " is lost: " + node->second.reason;
  const auto trainer = state.trainers.find(fault.target);
  if (trainer != state.trainers.end() && trainer->second.state == job::TrainerState::down)
    return fault.target + " has no process now; another one takes its place";
  return "";
}

Request parse_command(const job::State& state, const std::vector<std::string>& words,
                      const std::string& who) {
  Request request = parse_verb(state, words, who);
  request.words = joined(words, " ");
  return request;
}

// --- Questions ---

namespace {

/// A line for each kind of fault.
CommandReply answer_kinds(const std::string& verb) {
  std::string text = verb + " KIND TARGET, where KIND is\n";
  json kinds = json::object();
  for (const std::string& kind : fault_kinds()) {
    const FaultTarget target = fault_target(kind);
    const std::string of = target == FaultTarget::node      ? "NODE"
                           : target == FaultTarget::trainer ? "TRAINER"
                                                            : "supervisor";
    const std::string call = kind + " " + of;
    text += "  " + call + std::string(std::max<size_t>(call.size(), 28) - call.size() + 2, ' ') +
            fault_help(kind) + "\n";
    kinds[kind] = {{"target", of}, {"help", fault_help(kind)}};
  }
  return {true, text, json_text({{"kinds", kinds}})};
}

CommandReply answer_plan(const job::State& job, const Incidents& incidents,
                         const std::optional<StandbyHello>& standby,
                         const std::vector<std::string>& words) {
  const std::string target = words.size() > 2 ? words[2] : "";
  if (const std::string why = refused(job, words[1], target); !why.empty()) return {false, why, ""};
  std::string text;
  if (fault_target(words[1]) != FaultTarget::supervisor)
    text = job::what_if(job, words[1], target, incidents.avoid());
  else if (standby)
    text = "If the supervisor dies, the standby on " + standby->node +
           " takes over: training does not pause.";
  else
    text = "If the supervisor dies, an agent starts another one: training does not pause.";
  return {true, text, json_text({{"plan", text}})};
}

CommandReply answer_settings(const job::State& job) {
  std::string text;
  json values = json::object();
  for (const auto& [key, value] : job::settings(job)) {
    text += key + " = " + value + "\n";
    values[key] = json::parse(value);
  }
  return {true, text, json_text(values)};
}

CommandReply answer_why(const Incidents& incidents, const std::string& incident) {
  const json* lines = incidents.explain(
      incident.empty() ? incidents.count() : std::strtoull(incident.c_str(), nullptr, 10));
  if (!lines) return {false, "no incident " + incident, ""};
  std::string text;
  for (const json& line : *lines)
    if (line.contains("sentence")) text = line["sentence"].get<std::string>() + "\n";
  for (const json& line : *lines)
    text += line.value("kind", "") + " " + line.value("subject", "") + ": " +
            line.value("reason", "") + "\n";
  return {true, text, json_text(*lines)};
}

}  // namespace

std::optional<CommandReply> answer_question(const job::State& job, const Incidents& incidents,
                                            const std::optional<StandbyHello>& standby,
                                            const std::vector<std::string>& words) {
  if (words.size() < 2 && (words[0] == "plan" || words[0] == "inject"))
    return answer_kinds(words[0]);
  if (words[0] == "plan") return answer_plan(job, incidents, standby, words);
  if (words[0] == "set") return answer_settings(job);
  if (words[0] == "why") return answer_why(incidents, words.size() > 1 ? words[1] : "");
  return std::nullopt;
}

}  // namespace simplescale
