#include "actors/supervisor/decision/restart_budget.hpp"

#include <algorithm>

#include "actors/supervisor/decision/queries.hpp"
#include "runtime/base/words.hpp"

namespace simplescale::job {

void record_failure(State& s, int64_t now_ms, const std::string& subject) {
  auto found = s.nodes.find(node_of(subject));
  if (found == s.nodes.end()) return;
  Node& node = found->second;
  node.failed_at_step = s.committed_step;
  std::vector<int64_t>& failures = node.failures_ms;
  std::erase_if(failures, [&](int64_t at) { return now_ms - at > s.within_ms; });
  // A lost node and then each of its trainers have one cause. If the same trainer fails again
  // before the node has recovered, that is another cause.
  const bool same_cause =
      !node.failed.empty() && !failures.empty() && std::ranges::count(node.failed, subject) == 0;
  if (!same_cause) {
    failures.push_back(now_ms);
    node.failed.clear();
  }
  node.failed.push_back(subject);
}

void end_causes(State& s) {
  for (auto& [name, node] : s.nodes)
    if (!node.failed.empty() && node.state == NodeState::up &&
        all_of_node(s, name, [](const Trainer& t) {
          return t.state != TrainerState::down && t.state != TrainerState::draining;
        }))
      node.failed.clear();
}

std::string budget_exceeded(const State& s, const std::string& name) {
  const Node& node = s.nodes.at(name);
  const size_t failures = node.failures_ms.size();
  if (node.state != NodeState::up || failures <= static_cast<size_t>(s.max_restarts)) return "";
  return counted(static_cast<int64_t>(failures), "failure") + " within " +
         number(static_cast<uint64_t>(s.within_ms / 1000)) + " s";
}

void forget_old_failures(State& s) {
  for (auto& [name, node] : s.nodes)
    if (!node.failures_ms.empty() && s.layout.contains(name) &&
        s.committed_step >= node.failed_at_step + s.budget_steps)
      node.failures_ms.clear();
}

}  // namespace simplescale::job
