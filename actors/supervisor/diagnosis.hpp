// Examinations of nodes: chooses which links a node measures, and judges whether the results mean
// that the node is unfit, also in comparison with other nodes. decide() says when a node is
// examined, and what happens to a node that fails.
//
// Owned by the supervisor actor, called on its thread. Sends no message: the actor sends what the
// calls return. A successor does not take over this state.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/supervisor/agent_registry.hpp"
#include "actors/supervisor/decision/decide.hpp"
#include "runtime/diagnostics/diagnose.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// A node's report after it was compared with other nodes.
struct Examined {
  std::string node;
  std::vector<CheckResult> checks;
  std::string wrong;  // empty: the node is fit
};

class Diagnosis {
 public:
  /// Makes the order to a node to examine itself and its links to other nodes that are up or
  /// examined.
  CheckNode examine(const job::CheckNode& check, const job::State& job,
                    const AgentRegistry& agents);
  /// Takes a node's report and returns the nodes that are judged now: this node alone, or, if
  /// several nodes are examined together, the result of take_due().
  std::vector<Examined> report(const NodeChecked& checked, const job::State& job,
                               const AgentRegistry& agents, int64_t now_ms);
  /// Nodes that are examined together are judged together: once all have reported, or 30 s after
  /// the first report. That is before decide() gives up on the missing ones.
  std::vector<Examined> take_due(const job::State& job, const AgentRegistry& agents,
                                 int64_t now_ms);
  /// True if only the node's links failed and they must be measured again, because all its peers
  /// have been lost meanwhile, or because this was the first failure. Call it once for each judged
  /// node.
  bool retry_links(const Examined& examined, const job::State& job, const AgentRegistry& agents);
  /// Returns and forgets the checks of the nodes that were judged since the last call, by node.
  std::map<std::string, nlohmann::json> take_judged() { return std::exchange(judged_, {}); }

 private:
  struct Links {
    std::vector<std::pair<std::string, int32_t>> peers;  // node, pid of its agent
    bool failed_before = false;
  };
  using Reports = std::map<std::string, NodeChecked>;  // by node
  std::vector<Examined> judge(const Reports& reports, const AgentRegistry& agents);

  Reports waiting_;                                        // of nodes that are examined together
  int64_t waiting_since_ms_ = 0;                           // when the first of them reported
  std::map<std::string, nlohmann::json> newest_, judged_;  // checks by node
  std::map<std::string, Links> links_;                     // by node
};

}  // namespace simplescale
