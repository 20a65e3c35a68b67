// Which lost nodes have agents whose processes have ended. A function of its arguments; any thread.
#pragma once

#include <string>
#include <vector>

#include "actors/supervisor/agent_registry.hpp"
#include "actors/supervisor/decision/decide.hpp"
#include "runtime/base/process.hpp"

namespace simplescale::job {

/// The events that tell so, one for each lost node of which decide() does not know it. A killed
/// process loses its connections before the kernel reports its end. On other hosts, and in other pid
/// namespaces, an end is not seen. state: process_state().
template <class StateOf>
std::vector<NodeLost> ended_agents(const State& job, const AgentRegistry& agents, StateOf&& state) {
  std::vector<NodeLost> ended;
  for (const auto& [name, node] : job.nodes) {
    if (node.state != NodeState::lost || node.ended) continue;
    const auto agent = agents.find(name);
    if (agent == agents.end() || agent->second.connected || agent->second.pid != node.pid) continue;
    if (agent->second.visible_pid > 0 && state(agent->second.visible_pid) == ProcessState::gone)
      ended.push_back({name, {"its agent has ended", ReasonKind::process_ended}});
  }
  return ended;
}

}  // namespace simplescale::job
