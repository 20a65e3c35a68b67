// Examining nodes: who measures links to whom, what the nodes found, also beside what others found,
// and what follows. When a node is examined, and what becomes of one that fails, decide() says.
// Functions on the supervisor actor's state, run by that actor.
#pragma once

#include <caf/all.hpp>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct JobState;

/// What a supervisor knows of examinations; a successor begins with none.
struct Diagnosis {
  std::map<std::string, nlohmann::json> checks;  // the newest by node
  /// Of the nodes that are examined together, until all have told.
  std::map<std::string, NodeChecked> reports;
  int64_t reports_since_ms = 0;                  // the first of them
  std::map<std::string, nlohmann::json> judged;  // what became of them
  /// The examination of a node's links: with which agents, and whether they failed it before.
  struct Links {
    std::vector<std::pair<std::string, int32_t>> others;  // node, pid
    bool failed_before = false;
  };
  std::map<std::string, Links> links;  // by node
};

namespace diagnosis {

using Self = caf::stateful_actor<JobState>;

/// Has a node examine itself and its links to others.
void examine(Self* self, const job::CheckNode& check);
/// A node tells what it found: judged at once, or together with those examined at the same time.
void node_checked(Self* self, const NodeChecked& checked);
/// Nodes that are examined together are judged together, as soon as all have told, or some for a
/// while, which is less than what decide() waits for them.
void judge_if_due(Self* self);

}  // namespace diagnosis
}  // namespace simplescale
