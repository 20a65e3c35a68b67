#include "actors/supervisor/commands.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "actors/supervisor/decision/what_if.hpp"
#include "actors/supervisor/records.hpp"
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

/// Why this fault cannot be, "" if it can.
std::string refused(const job::State& state, const std::string& kind, const std::string& target) {
  std::vector<std::string> trainers;
  for (const auto& [name, trainer] : state.trainers) trainers.push_back(name);
  return check_fault(kind, target, state.node_order, trainers).message();
}

/// False: the text is not such a number, whole.
template <class Number>
bool number_of(const std::string& text, Number& value) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  return end.ec == std::errc() && end.ptr == text.data() + text.size();
}

Request parse_inject(const job::State& state, const std::vector<std::string>& words) {
  Request request;
  if (words.size() < 2 || !is_fault(words[1])) {
    request.error = "inject KIND TARGET [--at STEP] [--ms MS] [--value X]; kinds:";
    for (const auto& kind : fault_kinds()) request.error += " " + std::string(kind);
    return request;
  }
  InjectFault fault;
  fault.kind = words[1];
  size_t next = 2;
  if (next < words.size() && words[next].rfind("--", 0) != 0) fault.target = words[next++];
  for (; next < words.size(); next += 2) {
    const std::string& option = words[next];
    const std::string text = next + 1 < words.size() ? words[next + 1] : "";
    const bool known = option == "--at" || option == "--ms" || option == "--value";
    const bool right = option == "--at"   ? number_of(text, fault.step)
                       : option == "--ms" ? number_of(text, fault.ms)
                                          : number_of(text, fault.value);
    if (!known)
      request.error = "unknown option " + option;
    else if (!right)
      request.error = option + " needs a number";
    else if (option == "--at" && fault.step <= state.committed_step)
      request.error = "step " + text + " has been made; " +
                      std::to_string(state.committed_step + 1) + " is the next";
    else if (option == "--at" && fault.step > state.max_steps)
      request.error = "the run ends with step " + std::to_string(state.max_steps);
  }
  if (request.error.empty()) request.error = refused(state, fault.kind, fault.target);
  request.fault = std::move(fault);
  return request;
}

Request parse_set(const job::State& state, const std::vector<std::string>& words,
                  const std::string& who) {
  Request request;
  const auto known = job::settings(state);
  const auto found =
      std::ranges::find_if(known, [&](const auto& k) { return k.first == words[1]; });
  int64_t value = 0;
  const bool whole = number_of(words.back(), value);
  if (found == known.end())
    request.error = "'" + words[1] + "' cannot change in flight; `set` lists what can";
  else if (words.size() != 3 || !whole)
    request.error = "set KEY VALUE, a whole number";
  else
    request.event = job::SetRequested{words[1], value, who};
  return request;
}

/// Of a node, or of all that are up.
Request parse_diagnose(const job::State& state, const std::string& target, const std::string& who) {
  Request request;
  job::DiagnoseRequested diagnose{{}, who};
  const auto node = state.nodes.find(target);
  for (const std::string& name : state.node_order)
    if ((target == "all" || target == name) && state.nodes.at(name).state == job::NodeState::up)
      diagnose.nodes.push_back(name);
  if (target.empty())
    request.error = "diagnose NODE|all";
  else if (target != "all" && node == state.nodes.end())
    request.error = "there is no node '" + target + "'";
  else if (diagnose.nodes.empty())
    request.error = target == "all"
                        ? "no node is up"
                        : target + " is " + job::to_string(node->second.state) + ", not up";
  else if (job::diagnosing(state))
    request.error = "a diagnosis is under way";
  else if (state.stop_requested)
    request.error = "the run is being stopped";
  request.event = std::move(diagnose);
  return request;
}

/// trace [STEP|next] [COUNT]
void parse_trace(const job::State& state, const std::vector<std::string>& words, Request& request) {
  constexpr uint64_t most = 100;
  auto number = [](const std::string& text) {
    uint64_t value = 0;
    return number_of(text, value) ? value : 0;
  };
  const uint64_t next = state.committed_step + 1;
  const bool named = words.size() > 1 && words[1] != "next";
  const Request::Trace trace{named ? number(words[1]) : next,
                             words.size() > 2 ? number(words[2]) : 1};
  if (trace.first == 0 || trace.count == 0 || trace.count > most || words.size() > 3)
    request.error = "trace [STEP|next] [COUNT]; at most " + std::to_string(most) + " steps";
  else if (trace.first < next)
    request.error = "step " + words[1] + " is over; the next one is " + std::to_string(next);
  else if (trace.first > state.max_steps)
    request.error = "the last step is " + std::to_string(state.max_steps);
  else
    request.trace = trace;
}

}  // namespace

Request parse_command(const job::State& state, const std::vector<std::string>& words,
                      const std::string& who) {
  Request request;
  request.words = joined(words, " ");
  if (words.empty()) {
    request.error = "an empty command";
    return request;
  }
  const std::string& verb = words[0];
  const std::string target = words.size() > 1 ? words[1] : "";
  const std::string reason = "asked to by " + who;
  const auto node = state.nodes.find(target);
  const bool about_node = verb == "drain" || verb == "undrain" || verb == "add";
  if (about_node && node == state.nodes.end()) {
    request.error = target.empty() ? verb + " NODE" : "there is no node '" + target + "'";
    if (verb == "add" && !target.empty())
      request.error += "; a run's nodes are those it began with: cluster.nodes + cluster.spares";
  } else if (verb == "pause" || verb == "resume") {
    request.event = job::PauseRequested{verb == "pause", who};
  } else if (verb == "save") {
    if (state.phase == job::Phase::training && !state.leaving && !state.layout.cells.empty())
      request.save = job::places(state.rules, state.layout).front().trainer;
    else
      request.error = std::string("it is not training now: ") +
                      (state.paused ? "paused" : job::to_string(state.phase));
  } else if (verb == "stop") {
    request.event = job::StopRequested{Code::ok, reason, false};
  } else if (verb == "drain" || verb == "undrain") {
    request.event = job::DrainRequested{target, verb == "drain", reason};
  } else if (verb == "add") {
    if (node->second.state == job::NodeState::drained)
      request.event = job::DrainRequested{target, false, reason};
    else
      request.error = target + " is " + job::to_string(node->second.state) + ", not drained" +
                      (node->second.state == job::NodeState::lost
                           ? ": it comes back by itself once its agent runs"
                           : "");
  } else if (verb == "diagnose") {
    request = parse_diagnose(state, target, who);
  } else if (verb == "restart") {
    for (const job::Place& place : job::places(state.rules, state.layout))
      if (place.trainer == target || "g" + std::to_string(place.group) == target)
        request.restart.push_back(place.trainer);
    if (request.restart.empty()) request.error = "no trainer or group '" + target + "' trains";
  } else if (verb == "inject") {
    request = parse_inject(state, words);
  } else if (verb == "trace") {
    parse_trace(state, words, request);
  } else if (verb == "set" && words.size() > 1) {
    request = parse_set(state, words, who);
  } else if (const Verb* known = find_verb(verb);
             !known || (known->answerer == Answerer::console && verb != "why")) {
    request.error = "unknown command '" + verb + "'";
  }
  request.words = joined(words, " ");
  return request;
}

namespace {
std::string without_supervisor(const JobState& s) {
  return s.lead.standby
             ? "the standby on " + s.lead.standby->node + " leads; trainers do not notice"
             : "an agent starts another supervisor; trainers do not notice";
}
}  // namespace

CommandReply describe(const JobState& s, const std::vector<std::string>& words) {
  const std::string target = words.size() > 1 ? words[1] : "";
  if (words[0] == "plan") {
    if (words.size() < 2) return {false, "plan KIND TARGET", ""};
    const std::string object = words.size() > 2 ? words[2] : "";
    if (const std::string why = refused(s.job, words[1], object); !why.empty())
      return {false, why, ""};
    const std::string text = fault_target(words[1]) == FaultTarget::supervisor
                                 ? without_supervisor(s)
                                 : job::what_if(s.job, words[1], object);
    return {true, text, json_text({{"plan", text}})};
  }
  if (words[0] == "set") {
    std::string text;
    json values = json::object();
    for (const auto& [key, value] : job::settings(s.job)) {
      text += key + " = " + std::to_string(value) + "\n";
      values[key] = value;
    }
    return {true, text, json_text(values)};
  }
  if (words[0] == "why") {
    const uint64_t incident =
        target.empty() ? s.incidents : std::strtoull(target.c_str(), nullptr, 10);
    auto found = s.explained.find(incident);
    if (found == s.explained.end()) return {false, "no incident " + target, ""};
    std::string text;
    for (const json& line : found->second)
      text += line.value("kind", "") + " " + line.value("subject", "") + ": " +
              line.value("reason", "") + "\n";
    return {true, text, json_text(found->second)};
  }
  return {true, "", status_text(s, false)};  // who asks draws it
}

}  // namespace simplescale
