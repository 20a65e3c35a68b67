#include "actors/supervisor/diagnosis.hpp"

#include <algorithm>

#include "actors/clock.hpp"
#include "actors/diagnosis/node_check.hpp"
#include "actors/supervisor/records.hpp"
#include "actors/supervisor/supervisor.hpp"
#include "runtime/diagnostics/diagnose.hpp"
#include "runtime/diagnostics/fleet.hpp"

namespace simplescale::diagnosis {

namespace {

using nlohmann::json;

/// The links that a node measures: to nodes that are up, or examined as well.
std::vector<LinkEnd> links_of(const JobState& s, const std::string& node) {
  auto is_there = [&s](const std::string& peer) {
    return s.nodes.contains(peer) &&
           (s.job.nodes.at(peer).state == job::NodeState::up ||
            std::ranges::find(s.job.examined, peer) != s.job.examined.end());
  };
  std::vector<LinkEnd> links;
  for (const std::string& peer : link_peers(s.job.node_order, node, is_there))
    links.push_back({peer, s.nodes.at(peer).address});
  return links;
}

/// Whoever lends us the machines wants to know.
void tell_of_failed_diagnosis(Self* self, const std::string& node, const std::string& reason) {
  const JobState& s = self->state;
  if (!s.options.diagnosis_failed) return;
  self->spawn<caf::detached>([tell = s.options.diagnosis_failed, journal = s.options.journal,
                              line = event_line(s, {"", "", node, ""}, now_ms(self)),
                              host = s.nodes.at(node).host, reason](caf::event_based_actor*) {
    const auto [kind, text] = tell(host, reason);
    if (kind.empty()) return;
    json event = line;
    event["kind"] = kind;
    event["reason"] = text;
    journal->append("events.jsonl", event);
  });
}

/// What these nodes found, also in comparison with each other and with what others told before.
void judge(Self* self, const std::map<std::string, NodeChecked>& reports) {
  JobState& s = self->state;
  std::vector<MachineReport> machines;
  for (const auto& [name, checked] : reports)
    machines.push_back({name, from_json(json::parse(checked.report, nullptr, false)), ""});
  for (const MachineReport& m : machines) s.diagnosis.checks[m.name] = to_json(m.checks);
  std::vector<MachineReport> others;
  for (const auto& [name, report] : s.diagnosis.checks)
    if (!reports.contains(name)) others.push_back({name, from_json(report), ""});
  compare(machines, others);
  for (const MachineReport& m : machines) s.diagnosis.judged[m.name] = to_json(m.checks);
  for (const MachineReport& m : machines) {
    json line = event_line(s, {"", "checked", m.name, table(m.checks)}, now_ms(self));
    line["checks"] = to_json(m.checks);
    s.options.journal->append("events.jsonl", line);
    // Links that fail to agents which have been lost meanwhile say nothing; others may be about to
    // be. Once more then, with those that are left.
    Diagnosis::Links& links = s.diagnosis.links[m.name];
    const bool gone = std::ranges::none_of(links.others, [&s](const auto& other) {
      const auto known = s.nodes.find(other.first);
      return known != s.nodes.end() && known->second.pid == other.second &&
             s.job.nodes.at(other.first).state == job::NodeState::up;
    });
    const bool only_links = !all_ok(m.checks) && std::ranges::all_of(m.checks, [](const auto& r) {
      return r.ok || r.check.starts_with("link");
    });
    if (only_links && (gone || !links.failed_before)) {
      links.failed_before = links.failed_before || !gone;
      examine(self, job::CheckNode{m.name, "its links once more"});
      continue;
    }
    s.diagnosis.links.erase(m.name);
    const NodeChecked& checked = reports.at(m.name);
    const std::string wrong = checked.ok ? complaints(m.checks) : checked.reason;
    s.lead.handle(job::NodeChecked{m.name, wrong.empty(), wrong});
    auto found = s.job.nodes.find(m.name);
    if (!wrong.empty() && found != s.job.nodes.end() &&
        found->second.state == job::NodeState::drained)
      tell_of_failed_diagnosis(self, m.name, wrong);
  }
}

}  // namespace

void examine(Self* self, const job::CheckNode& check) {
  JobState& s = self->state;
  const auto found = s.nodes.find(check.node);
  if (found == s.nodes.end() || !found->second.handle) return;
  std::vector<LinkEnd> links = links_of(s, check.node);
  auto& others = s.diagnosis.links[check.node].others;
  others.clear();
  for (const LinkEnd& link : links) others.emplace_back(link.node, s.nodes.at(link.node).pid);
  self->send(found->second.handle, CheckNode{check.reason, std::move(links)});
}

void judge_if_due(Self* self) {
  constexpr int64_t enough_ms = 30'000;
  JobState& s = self->state;
  if (s.diagnosis.reports.empty()) return;
  const bool all = std::ranges::all_of(s.job.examined, [&](const std::string& name) {
    return !s.job.nodes.at(name).checking || s.diagnosis.reports.contains(name);
  });
  if (all || now_ms(self) - s.diagnosis.reports_since_ms > enough_ms)
    judge(self, std::exchange(s.diagnosis.reports, {}));
}

void node_checked(Self* self, const NodeChecked& checked) {
  JobState& s = self->state;
  if (!s.job.nodes.contains(checked.node)) return;
  if (std::ranges::find(s.job.examined, checked.node) == s.job.examined.end())
    return judge(self, {{checked.node, checked}});
  if (s.diagnosis.reports.empty()) s.diagnosis.reports_since_ms = now_ms(self);
  s.diagnosis.reports[checked.node] = checked;
  judge_if_due(self);
}

}  // namespace simplescale::diagnosis
