#include "actors/job/commands.hpp"

#include <algorithm>
#include <cstdlib>

#include "actors/job/records.hpp"
#include "actors/job/what_if.hpp"
#include "runtime/config/config.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

bool is_fault(const std::string& kind) {
  return std::ranges::find(fault_kinds(), kind) != fault_kinds().end();
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
  for (; next + 1 < words.size(); next += 2) {
    const char* value = words[next + 1].c_str();
    if (words[next] == "--at")
      fault.step = std::strtoull(value, nullptr, 10);
    else if (words[next] == "--ms")
      fault.ms = std::strtoull(value, nullptr, 10);
    else if (words[next] == "--value")
      fault.value = std::strtod(value, nullptr);
    else
      request.error = "unknown option " + words[next];
  }
  if (fault.kind != "kill_supervisor" && !state.nodes.contains(fault.target) &&
      !state.trainers.contains(fault.target))
    request.error = "there is no node or trainer '" + fault.target + "'";
  request.fault = std::move(fault);
  return request;
}

}  // namespace

Request parse_command(const job::State& state, const std::vector<std::string>& words,
                      const std::string& who) {
  Request request;
  request.words = joined(words);
  if (words.empty()) {
    request.error = "an empty command";
    return request;
  }
  const std::string& verb = words[0];
  const std::string target = words.size() > 1 ? words[1] : "";
  auto node = [&] {
    if (!state.nodes.contains(target)) request.error = "there is no node '" + target + "'";
    return request.error.empty();
  };
  if (verb == "pause" || verb == "resume") {
    request.event = job::PauseRequested{verb == "pause", who};
  } else if (verb == "stop") {
    request.event = job::StopRequested{Code::ok, "asked to by " + who, false};
  } else if (verb == "drain" || verb == "undrain") {
    if (node()) request.event = job::DrainRequested{target, verb == "drain", "asked to by " + who};
  } else if (verb == "diagnose") {
    if (node()) request.event = job::Suspected{job::trainer_name(target, 0), "asked to by " + who};
  } else if (verb == "restart") {
    if (!state.trainers.contains(target))
      request.error = "there is no trainer '" + target + "'";
    else
      request.fault = InjectFault{"kill_trainer", target, 0, 0, 0};
  } else if (verb == "inject") {
    request = parse_inject(state, words);
  } else if (verb != "status" && verb != "why" && verb != "plan") {
    request.error = "unknown command '" + verb + "'";
  }
  request.words = joined(words);
  return request;
}

CommandReply describe(const JobState& s, const std::vector<std::string>& words) {
  const std::string target = words.size() > 1 ? words[1] : "";
  if (words[0] == "plan") {
    if (words.size() < 3) return {false, "plan KIND TARGET", ""};
    return {true, job::what_if(s.job, words[1], words[2]), ""};
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
    return {true, text, found->second.dump()};
  }
  const json page = status_page(s);
  return {true, page.dump(1), page.dump()};
}

}  // namespace simplescale
