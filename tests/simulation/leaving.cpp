// Nodes that leave a run which has no supervisor, with the real LeaderSearch; and a launcher that
// dies. As in actors/node/supervisor_link.cpp and runtime/run/agent_lock.hpp.
#include <algorithm>

#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

bool Cluster::holds_state(int index) const {
  const auto holds = [](const auto& entry) { return !entry.second.empty(); };
  const auto first = trainers.begin() + index * options.trainers;
  return std::ranges::any_of(nodes[index].peer, holds) ||
         std::any_of(first, first + options.trainers,
                     [](const Trainer& trainer) { return !trainer.copies.empty(); });
}

/// A node has looked for a supervisor in vain.
void Cluster::leave_if_alone(int index) {
  const Node& node = nodes[index];
  if (!node.up || hung(node) || ended) return;
  const bool stays = options.bug != Bug::leaves_with_memory && holds_state(index);
  if (node.search.verdict(join_timeout_ms, stays, false, now / ms) == LeaderSearch::Verdict::leave)
    leave_run(index, "no supervisor has answered");
}

/// Its launcher, or Slurm, starts it again some time later.
void Cluster::leave_run(int index, const std::string& reason) {
  ++faults["left"];
  if (logging()) log_line(nodes[index].name + ": leaves the run: " + reason);
  invariants->node_leaves(index);
  kill_node(index, random.between(1, 5) * second);
}

/// LOCK-1: a start begins only while no agent of an earlier start lives.
void Cluster::train_again() {
  if (ended || options.bug != Bug::second_start_deposes) return;
  for (int n = 0; n < options.nodes; ++n)
    if (nodes[n].up && !hung(nodes[n])) leave_run(n, "the run was started again");
}

}  // namespace simplescale::simulation
