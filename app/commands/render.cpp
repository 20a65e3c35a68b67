#include "app/commands/render.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <utility>

#include "runtime/base/duration.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/printable.hpp"
#include "runtime/base/words.hpp"
#include "runtime/diagnostics/fleet.hpp"
#include "runtime/run/run_state.hpp"
namespace simplescale {

using nlohmann::json;

namespace {

/// A text field; control characters, which could move the terminal's cursor, become blanks.
std::string text(const json& object, const char* key) {
  std::string result = text_of(object, key);
  for (char& c : result)
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = ' ';
  return printable(result);
}

const char* color_of(const std::string& state) {
  if (state == "training" || state == "up" || state == "finished") return "32";
  if (state == "failed" || state == "lost" || state == "drained" || state == "down") return "31";
  if (state == "spare" || state == "idle") return "36";
  return "33";
}

std::string painted(const std::string& word, const char* color, const RenderOptions& options) {
  return options.color ? fmt::format("\033[{}m{}\033[0m", color, word) : word;
}
std::string state_of(const json& object, const RenderOptions& options) {
  const std::string state = text(object, "state");
  return painted(state, color_of(state), options);
}

/// Cuts every line to options.columns. Escape sequences and the later bytes of a UTF-8 character
/// take no column.
std::string cut(const std::string& lines, const RenderOptions& options) {
  if (options.columns == 0) return lines;
  std::string out;
  size_t column = 0;
  bool escape = false;
  for (const char c : lines) {
    if (c == '\n') {
      column = 0;
      out += c;
    } else if (escape || c == '\033') {
      escape = c == '\033' || c < '@' || c == '[';
      out += c;
    } else if ((static_cast<unsigned char>(c) & 0xc0) == 0x80) {
      if (column <= options.columns) out += c;
    } else if (++column <= options.columns) {
      out += c;
    }
  }
  return out;
}

std::string process(const json& object) {
  return whole_of(object, "pid") > 0 ? fmt::format(" (process {})", whole_of(object, "pid")) : "";
}

/// "cpu 83 %", in yellow from 90 % and in red from 97 % on.
std::string share(const char* name, double part, const char* high, const RenderOptions& options) {
  const std::string word = fmt::format("{} {:.0f} %", name, 100 * part);
  return part < 0.9 ? word : painted(word, part < 0.97 ? "33" : high, options);
}

/// ", cpu 83 %, memory 41 %, step 212 ms"; "" if nothing is known. Only memory and disk can run out.
std::string health_of(const json& node, const RenderOptions& options) {
  if (text(node, "state") == "ended") return "";
  const json& health = member_of(node, "health");
  std::string out;
  if (const double cpu = real_of(health, "cpu"); std::isfinite(cpu))
    out += ", " + share("cpu", cpu, "33", options);
  if (const double memory = real_of(health, "memory"); std::isfinite(memory))
    out += ", " + share("memory", memory, "31", options);
  if (const double disk = real_of(health, "disk"); disk >= 0.9)
    out += ", " + share("disk", disk, "31", options);
  if (const double step = real_of(member_of(health, "busiest"), "step_ms"); std::isfinite(step))
    out += fmt::format(", step {:.0f} ms", step);
  return out;
}

std::string node_line(const json& node, const RenderOptions& options) {
  const std::string reason = text(node, "reason");
  return painted(text(node, "name"), "1", options) + " " + state_of(node, options) + " " +
         text(node, "host") + process(node) + health_of(node, options) +
         (reason.empty() ? "" : ": " + reason);
}

/// "212 ms a step, the last one 0.3 s ago, 3 min 20 s left\n"; "" unless the run is under way.
std::string pace_of(const json& document, const RenderOptions& options) {
  const std::string state = text(document, "state");
  double step_ms = real_of(document, "step_ms");
  const double time = real_of(document, "step_time"), rate = real_of(document, "tokens_per_second"),
               tokens = real_of(member_of(document, "plan"), "tokens_per_step");
  // Over the same steps as the rate in the line above: one step alone contradicts it.
  if (rate > 0 && tokens > 0 && std::isfinite(step_ms)) step_ms = 1e3 * tokens / rate;
  const bool over = ends_run(state);
  if (!std::isfinite(step_ms) || over) return "";
  std::string out = fmt::format("{:.0f} ms a step", step_ms);
  if (options.now_s > 0 && std::isfinite(time))
    out += ", the last one " + duration(std::max(0.0, options.now_s - time)) + " ago";
  if (const double left = real_of(document, "remaining_s"); std::isfinite(left))
    out += ", " + duration(left) + " left";
  return out + "\n";
}

std::string trainer_line(const json& trainer, const RenderOptions& options) {
  std::string line = text(trainer, "name") + " " + state_of(trainer, options);
  if (member_of(trainer, "shard").is_number())
    line += fmt::format(" shard {}", whole_of(trainer, "shard"));
  if (const auto micro_batches = real_of(trainer, "micro_batches"); micro_batches > 0)
    line += fmt::format(", {:.0f} micro-batches", micro_batches);
  return line + process(trainer);
}

std::string clock_of(double time) {
  if (!std::isfinite(time) || time < 0 || time > 1e12) return "?";
  const auto seconds = static_cast<time_t>(time);
  tm parts{};
  char date[32];
  localtime_r(&seconds, &parts);
  std::strftime(date, sizeof date, "%m-%d %H:%M:%S", &parts);
  return fmt::format("{}.{:03}", date, static_cast<int>((time - std::floor(time)) * 1000));
}

}  // namespace

std::string render_status(const json& document, const RenderOptions& options) {
  std::string out =
      painted(text(document, "run"), "1", options) + ": " + state_of(document, options);
  if (member_of(document, "paused") == json(true)) out += " (paused)";
  if (member_of(document, "diagnosing") == json(true)) out += " (a diagnosis)";
  out +=
      fmt::format(", step {} of {}", whole_of(document, "step"), whole_of(document, "max_steps"));
  if (member_of(document, "loss").is_number())
    out += fmt::format(", loss {:.4f}", real_of(document, "loss"));
  if (member_of(document, "tokens_per_second").is_number())
    out += fmt::format(", {:.0f} tokens/s", real_of(document, "tokens_per_second"));
  out += fmt::format(", generation {}, {}\n", whole_of(document, "generation"),
                     counted(whole_of(document, "incidents"), "incident"));
  if (const std::string stall = text(member_of(document, "stall"), "sentence"); !stall.empty())
    out += painted(stall, "33", options) + "\n";
  for (const char* line : {"notice", "why", "next"})
    if (const std::string said = text(document, line); !said.empty())
      out += painted(said, "33", options) + "\n";
  out += pace_of(document, options);
  if (const std::string shape = text(document, "shape"); !shape.empty())
    out += painted(shape, "33", options) + "\n";
  const json& supervisor = member_of(document, "supervisor");
  const json& standby = member_of(document, "standby");
  out += "supervisor on " + text(supervisor, "node") + process(supervisor);
  out += standby.is_object() ? ", standby on " + text(standby, "node") + process(standby) : "";
  return cut(out + "\n", options);
}

std::string render_tree(const json& document, const RenderOptions& options) {
  // group -> nodes -> trainers; group -1: in none. A node may have trainers of several groups.
  std::map<int64_t, std::vector<std::pair<const json*, std::vector<const json*>>>> groups;
  for (const json& node : member_of(document, "nodes")) {
    auto put = [&](int64_t group) -> std::vector<const json*>& {
      auto& nodes = groups[group];
      if (nodes.empty() || nodes.back().first != &node) nodes.emplace_back(&node, 0);
      return nodes.back().second;
    };
    const json& trainers = member_of(node, "trainers");
    if (!trainers.is_array() || trainers.empty()) put(-1);
    for (const json& trainer : trainers) {
      const std::string group = text(trainer, "group");
      put(group.size() > 1 ? std::strtoll(group.c_str() + 1, nullptr, 10) : -1).push_back(&trainer);
    }
  }
  if (auto others = groups.extract(-1)) {  // last
    others.key() = INT64_MAX;
    groups.insert(std::move(others));
  }
  std::string out = render_status(document, options);
  for (const auto& [group, nodes] : groups) {
    const bool last = group == groups.rbegin()->first;
    out += std::string(last ? "└─ " : "├─ ") +
           (group == INT64_MAX ? "spares and others" : "g" + std::to_string(group)) + "\n";
    for (size_t i = 0; i < nodes.size(); ++i) {
      const bool last_node = i + 1 == nodes.size();
      const std::string indent = last ? "   " : "│  ";
      out += indent + (last_node ? "└─ " : "├─ ") + node_line(*nodes[i].first, options) + "\n";
      for (size_t k = 0; k < nodes[i].second.size(); ++k)
        out += indent + (last_node ? "   " : "│  ") +
               (k + 1 == nodes[i].second.size() ? "└─ " : "├─ ") +
               trainer_line(*nodes[i].second[k], options) + "\n";
    }
  }
  return cut(out, options);
}

namespace {

using Lines = std::vector<std::string>;

Lines lines_of(const std::string& text) {
  Lines lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// Keeps the first `room` lines; the last one says how many more there are.
Lines shortened(Lines lines, size_t room) {
  if (lines.size() <= room) return lines;
  const size_t more = lines.size() - (room > 0 ? room - 1 : 0);
  lines.resize(room > 0 ? room - 1 : 0);
  if (room > 0) lines.push_back(fmt::format("... {} more", more));
  return lines;
}

constexpr double kSlow = 1.3;  // times the median

/// What is unusual about a node; "" if nothing is.
std::string difference(const json& node, const RenderOptions& options) {
  const std::string state = text(node, "state");
  if (state != "up" && state != "spare") return node_line(node, options);
  std::string odd;
  for (const json& trainer : member_of(node, "trainers")) {
    const std::string is = text(trainer, "state");
    const double slow = real_of(trainer, "slowness");
    if (is == "down" || (is == "idle" && state == "up"))
      odd += " " + text(trainer, "name") + " " + painted(is, color_of(is), options);
    else if (slow >= kSlow)
      odd += " " + text(trainer, "name") +
             painted(fmt::format(" {:.2f} times as slow as the median", slow), "33", options);
  }
  return odd.empty() ? "" : painted(text(node, "name"), "1", options) + ":" + odd;
}

/// Groups by name: how many trainers each has, by state.
std::map<std::string, std::map<std::string, size_t>> groups_of(const json& document) {
  std::map<std::string, std::map<std::string, size_t>> groups;
  for (const json& node : member_of(document, "nodes"))
    for (const json& trainer : member_of(node, "trainers"))
      if (const std::string group = text(trainer, "group"); !group.empty())
        ++groups[group][text(trainer, "state")];
  return groups;
}

/// Groups in which all trainers train share a line.
Lines group_lines(const json& document, const RenderOptions& options) {
  size_t whole = 0;
  Lines lines;
  const auto groups = groups_of(document);
  for (const auto& [group, states] : groups) {
    if (states.size() == 1 && states.contains("training")) {
      ++whole;
      continue;
    }
    std::string line = group + ":";
    for (const auto& [state, count] : states)
      line += fmt::format(" {} {}", count, painted(state, color_of(state), options));
    lines.push_back(line);
  }
  if (whole > 0)
    lines.insert(lines.begin(), whole == groups.size() && whole > 1
                                    ? fmt::format("all {} groups train", whole)
                                    : fmt::format("{} of {} groups {}", whole, groups.size(),
                                                  whole == 1 ? "trains" : "train"));
  return lines;
}

/// A line for each of the newest incidents, the newest first.
Lines incident_lines(const std::vector<json>& events, size_t most, const RenderOptions& options) {
  Lines lines;
  for (auto event = events.rbegin(); event != events.rend() && lines.size() < most; ++event) {
    if (text(*event, "kind") != "recovered") continue;
    const std::string sentence = text(*event, "sentence");
    lines.push_back(painted(clock_of(real_of(*event, "time")), "36", options) + " " +
                    (sentence.empty() ? text(*event, "reason") : sentence));
  }
  return lines;
}

}  // namespace

std::string render_watch(const json& document, const std::vector<json>& events, size_t rows,
                         const RenderOptions& options) {
  constexpr size_t kIncidents = 3, kEventsLeast = 3;
  Lines out = lines_of(render_status(document, options));
  const std::string stall = text(member_of(document, "stall"), "sentence");
  if (!stall.empty() && render_status(document, {}).find(stall) == std::string::npos)
    out.push_back(painted(stall, "33;1", options));
  Lines incidents = incident_lines(events, kIncidents, options);
  const size_t used = out.size() + (incidents.empty() ? 0 : incidents.size() + 1) + 1;
  const size_t room = rows > used + kEventsLeast ? rows - used - kEventsLeast : 0;
  Lines tree = lines_of(render_tree(document, options));
  tree.erase(tree.begin(),
             tree.begin() + static_cast<std::ptrdiff_t>(std::min(
                                tree.size(), lines_of(render_status(document, {})).size())));
  if (tree.size() <= room) {
    out.insert(out.end(), tree.begin(), tree.end());
  } else {
    Lines compact = group_lines(document, options);
    for (const json& node : member_of(document, "nodes"))
      if (std::string odd = difference(node, options); !odd.empty())
        compact.insert(compact.begin(), std::move(odd));
    compact = shortened(std::move(compact), room);
    out.insert(out.end(), compact.begin(), compact.end());
  }
  if (!incidents.empty()) {
    out.emplace_back("");
    out.insert(out.end(), incidents.begin(), incidents.end());
  }
  if (out.size() + 1 < rows) {
    const size_t left = rows - out.size() - 1;
    out.emplace_back("");
    const std::vector<json> newest(
        events.end() - static_cast<std::ptrdiff_t>(std::min(events.size(), left)), events.end());
    for (std::string& line : lines_of(render_events(newest, options)))
      out.push_back(std::move(line));
  }
  std::string joined;
  for (size_t i = 0; i < std::min(out.size(), rows); ++i) joined += out[i] + "\n";
  return cut(joined, options);
}

std::string render_nodes(const json& document, const RenderOptions& options) {
  std::string out = fmt::format("{:<8} {:<8} {:<6} {:<9} {:<20} {:>8}  {}\n", "node", "state",
                                "group", "training", "host", "process", "why");
  for (const json& node : member_of(document, "nodes")) {
    size_t training = 0, all = 0;
    for (const json& trainer : member_of(node, "trainers"))
      ++all, training += text(trainer, "state") == "training" ? 1 : 0;
    const std::string state = text(node, "state");
    out += fmt::format("{:<8} {} {:<6} {:<9} {:<20} {:>8}  {}\n", text(node, "name"),
                       painted(fmt::format("{:<8}", state), color_of(state), options),
                       text(node, "group"), fmt::format("{}/{}", training, all), text(node, "host"),
                       whole_of(node, "pid"), text(node, "reason"));
  }
  return cut(out, options);
}

std::string render_events(const std::vector<json>& events, const RenderOptions& options) {
  std::string out;
  for (const json& event : events) {
    std::string what = painted(text(event, "kind"), "1", options);
    if (!text(event, "phase").empty()) what = fmt::format("{:>6} ", text(event, "phase")) + what;
    const std::string reason = text(event, "reason");
    std::string subject = text(event, "subject");
    if (!text(event, "sentence").empty()) subject = "";  // the reason begins with it, and names it
    out += fmt::format("{} step {} {}{}{}\n", clock_of(real_of(event, "time")),
                       whole_of(event, "step"), what, subject.empty() ? "" : " " + subject,
                       reason.empty() ? "" : ": " + reason);
  }
  return cut(out, options);
}

std::string render_incident(const std::vector<json>& events, const RenderOptions& options) {
  std::string out, summary, details;
  for (const json& event : events) {
    const std::string reason = text(event, "reason"), subject = text(event, "subject");
    if (text(event, "kind") == "recovered") {
      summary = text(event, "sentence");
      details = reason.starts_with(summary) ? reason.substr(summary.size()) : " " + reason;
      if (!summary.empty()) summary += "\n";
      continue;
    }
    out += fmt::format("{:>6} ms {:>7} {}{}{}\n", whole_of(event, "ms"), text(event, "phase"),
                       painted(text(event, "kind"), "1", options),
                       subject.empty() ? "" : " " + subject, reason.empty() ? "" : ": " + reason);
  }
  return summary + cut(out, options) + (details.empty() ? "" : details.substr(1) + "\n");
}

std::string render_diagnosis(const json& event, const RenderOptions& options) {
  std::vector<MachineReport> machines;
  const json& judged = member_of(event, "machines");
  if (judged.is_object())
    for (const auto& [name, checks] : judged.items())
      machines.push_back({name, from_json(checks), ""});
  std::ranges::sort(machines, {}, [](const MachineReport& m) {  // n2 before n10
    return std::pair(m.name.size(), m.name);
  });
  return cut(fleet_table(machines) + text(event, "subject") + ": " + text(event, "reason") + "\n",
             options);
}

}  // namespace simplescale
