// Faults on purpose, as a node causes them (interface.md lists the kinds; kill_supervisor is the
// supervisor's own). One table, kind -> function; whoever calls tells what the node has. No handler
// blocks. The node actor's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/checkpoint/disk_faults.hpp"
#include "actors/checkpoint/state_store.hpp"
#include "runtime/base/status.hpp"
#include "transport/caf/transport.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct InjectContext {
  std::string node;                   // "n1"
  std::vector<std::string> trainers;  // "n1.0", ...
  std::vector<pid_t> processes;       // all of this node, but for the agent's own
  std::function<pid_t(const std::string& trainer)> pid_of;  // 0: it is not up
  std::function<void(const std::string& trainer, const InjectFault&)> pass_on;
  std::function<void(TransportFault)> transport;
  std::shared_ptr<StateStore> states;
  std::function<Status()>
      damage_peers_copies;  // those that the node keeps for others; may be empty
  std::shared_ptr<DiskFaults> disk;
  std::string checkpoints;  // folder
};

/// fault.ms 0: as long as is usual for the kind. not_found: the target is not here; bad_data: a
/// kind that a node does not know.
Status inject(const InjectContext& context, const InjectFault& fault);

/// Flips bits in the first shard file of the newest checkpoint of a folder.
Status damage_newest_checkpoint(const std::string& checkpoints);

}  // namespace simplescale
