// The node actor: carries out the supervisor's commands on one host. It runs the node's supervision
// tree (dataloader, checkpoint, trainer processes), assigns processes to trainer slots, and relays
// the supervisor's commands to its trainers and their reports to the supervisor. It kills trainers
// that hang, and reports what their shared memory holds. Trainers talk to no other actor.
//
// Runs on a CAF worker. No handler blocks. Its handlers are in node_*.cpp, by subject
// (node_parts.hpp).
#pragma once

#include <caf/all.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/checkpoint/disk_faults.hpp"
#include "actors/checkpoint/state_store.hpp"
#include "actors/find_node.hpp"
#include "actors/node/liveness.hpp"
#include "actors/node/log_scanner.hpp"
#include "actors/node/slots.hpp"
#include "actors/node/trace_rings.hpp"
#include "actors/peer/peer_copies.hpp"
#include "runtime/base/cpu_affinity.hpp"
#include "runtime/base/lifeline.hpp"
#include "runtime/base/process.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/feed/ring_filler.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/training/names.hpp"
#include "transport/caf/message_types.hpp"
#include "transport/caf/transport.hpp"

namespace simplescale {

struct NodeOptions {
  int index = 0;  // "n<index>"
  Config config;
  Plan plan;
  RunFolder run;
  std::string instance;  // of this start of the run
  std::string address;   // of the agent's transport, for the trainers
  std::shared_ptr<ProcessWatcher> watcher;
  std::shared_ptr<StateStore> states;
  std::shared_ptr<RingFiller> filler;
  std::shared_ptr<DiskFaults> disk = std::make_shared<DiskFaults>();
  std::function<void(TransportFault)> inject_network_fault;         // into the agent's transport
  std::function<void(int exit_code, std::string reason)> finished;  // called once, at the end
  FindNode find;
  std::shared_ptr<DataPlane> plane;  // the agent's; null: the agent sends no states
  std::shared_ptr<PeerTier> peers;   // uses the same plane; null: no copies on peers
  std::shared_ptr<const LogRules> log_rules = std::make_shared<LogRules>();
  std::string batch_log;        // Slurm's log file, in the run's logs folder; "": not read
  std::vector<CpuList> places;  // CPUs of each slot; empty: all CPUs of the agent
  InstructionSet instructions = InstructionSet::automatic;      // NodeHello's
  InstructionSet run_instructions = InstructionSet::automatic;  // the run's, if they are known
  std::function<void()> kill_supervisors;  // those of this agent, for the drill kill_agent
  std::string name() const { return node_name(index); }
};

struct NodeState {
  static inline const char* name = "node";
  NodeOptions options;
  caf::actor supervisor, tree;
  caf::actor dataloader, checkpoint, peers;  // null while they are down
  SlotTable table;
  LivenessMonitor liveness{LivenessOptions{}};
  LifelineWatcher lifelines;
  FillPlan fill;  // for the newest generation in which trainers of this node train
  InstructionSet instructions = InstructionSet::automatic;  // the run's; automatic: not known
  uint64_t ended = 0;              // the newest that has ended: a trainer that dies has left it
  std::vector<ShardSaved> saving;  // failure reports, kept for the saves under way
  struct {
    std::unique_ptr<LogScanner> logs;  // null: logs are not scanned
    TraceRings traces;
    std::map<std::string, TrainerTimes> step_times;  // of each trainer's newest step
    std::map<size_t, uint64_t> xids;                 // newest number reported, by GPU
  } observed;
  std::optional<Shutdown> shutdown;  // set once the node stops
};

/// supervisor: this agent's supervisor_link.
caf::behavior node_actor(caf::stateful_actor<NodeState>* self, caf::actor supervisor,
                         NodeOptions options);

}  // namespace simplescale
