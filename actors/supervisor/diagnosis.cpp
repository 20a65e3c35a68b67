#include "actors/supervisor/diagnosis.hpp"

#include <algorithm>

#include "actors/diagnosis/node_check.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/diagnostics/fleet.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

constexpr int64_t kReportsMs = 30'000;  // longest time from the first report to the last

bool is_examined(const job::State& job, const std::string& node) {
  return std::ranges::find(job.examined, node) != job.examined.end();
}

bool shares_host(const std::string& node, const AgentRegistry& agents) {
  const auto own = agents.find(node);
  return own != agents.end() && std::ranges::count_if(agents, [&](const auto& entry) {
                                  return entry.second.host == own->second.host;
                                }) > 1;
}

}  // namespace

CheckNode Diagnosis::examine(const job::CheckNode& check, const job::State& job,
                             const AgentRegistry& agents) {
  auto is_there = [&](const std::string& peer) {
    return agents.contains(peer) &&
           (job.nodes.at(peer).state == job::NodeState::up || is_examined(job, peer));
  };
  CheckNode order{check.reason, {}};
  auto& peers = links_[check.node].peers;
  peers.clear();
  for (const std::string& peer : link_peers(job.node_order, check.node, is_there)) {
    order.links.push_back({peer, agents.at(peer).address});
    peers.emplace_back(peer, agents.at(peer).pid);
  }
  return order;
}

std::vector<Examined> Diagnosis::report(const NodeChecked& checked, const job::State& job,
                                        const AgentRegistry& agents, int64_t now_ms) {
  if (!is_examined(job, checked.node)) return judge({{checked.node, checked}}, agents);
  if (waiting_.empty()) waiting_since_ms_ = now_ms;
  waiting_[checked.node] = checked;
  return take_due(job, agents, now_ms);
}

std::vector<Examined> Diagnosis::take_due(const job::State& job, const AgentRegistry& agents,
                                          int64_t now_ms) {
  if (waiting_.empty()) return {};
  const bool all = std::ranges::all_of(job.examined, [&](const std::string& name) {
    return !job.nodes.at(name).checking || waiting_.contains(name);
  });
  if (!all && now_ms - waiting_since_ms_ <= kReportsMs) return {};
  return judge(std::exchange(waiting_, {}), agents);
}

std::vector<Examined> Diagnosis::judge(const Reports& reports, const AgentRegistry& agents) {
  std::vector<MachineReport> machines, others;
  for (const auto& [name, checked] : reports) {
    machines.push_back(
        {name, from_json(parse_json(checked.report)), "", shares_host(name, agents)});
    newest_[name] = to_json(machines.back().checks);
  }
  for (const auto& [name, checks] : newest_)
    if (!reports.contains(name))
      others.push_back({name, from_json(checks), "", shares_host(name, agents)});
  compare(machines, others);
  std::vector<Examined> examined;
  for (const MachineReport& machine : machines) {
    const NodeChecked& own = reports.at(machine.name);
    examined.push_back(
        {machine.name, machine.checks, own.ok ? complaints(machine.checks) : own.reason});
    judged_[machine.name] = to_json(machine.checks);
  }
  return examined;
}

bool Diagnosis::retry_links(const Examined& examined, const job::State& job,
                            const AgentRegistry& agents) {
  Links& links = links_[examined.node];
  const bool peers_lost = std::ranges::none_of(links.peers, [&](const auto& peer) {
    const auto& [name, pid] = peer;
    const auto known = agents.find(name);
    const auto node = job.nodes.find(name);
    return known != agents.end() && known->second.pid == pid && node != job.nodes.end() &&
           node->second.state == job::NodeState::up;
  });
  const bool only_links =
      !all_ok(examined.checks) && std::ranges::all_of(examined.checks, [](const CheckResult& r) {
        return r.ok || r.check.starts_with("link");
      });
  if (only_links && (peers_lost || !links.failed_before)) {
    links.failed_before = links.failed_before || !peers_lost;
    return true;
  }
  links_.erase(examined.node);
  return false;
}

}  // namespace simplescale
