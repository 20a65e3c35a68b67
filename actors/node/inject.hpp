// Injects faults into this node: every kind of fault_kinds() except kill_supervisor, which the
// supervisor injects itself. A table maps each kind to a function; the caller passes what the
// functions need. Runs in the node actor; never blocks.
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
  std::string node;                                         // this node: "n1"
  std::vector<std::string> trainers;                        // "n1.0", ...
  std::vector<pid_t> processes;                             // all trainer processes
  std::function<pid_t(const std::string& trainer)> pid_of;  // 0: not up
  std::function<void(const std::string& trainer, const InjectFault&)> send_to_trainer;
  std::function<void()> kill_supervisors;  // supervisors and standbys of this node; may be empty
  std::function<void(TransportFault)> inject_network_fault;
  std::shared_ptr<StateStore> states;
  std::function<Status()> corrupt_peer_copies;  // in this node's PeerStore; empty: it has none
  std::shared_ptr<DiskFaults> disk;
  std::string checkpoints;  // folder
};

/// fault.ms = 0: the kind's default duration. not_found: the target is not on this node; bad_data:
/// the kind is unknown, or its target is not a node or trainer.
Status inject(const InjectContext& context, const InjectFault& fault);

/// Flips the bits of one byte in a shard file of the newest checkpoint of a folder.
Status corrupt_newest_checkpoint(const std::string& checkpoints);

}  // namespace simplescale
