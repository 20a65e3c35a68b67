// The node actor: the supervisor's arm on one host. It runs the node's supervision tree
// (dataloader, checkpoint, trainer processes), gives processes to its trainers' slots, passes the
// supervisor's commands to its trainers and their reports back, watches that they live and get on,
// and answers for what their shared memory holds. Trainers talk to nobody else.
//
// Runs on the transport thread or a CAF worker; no handler blocks.
#pragma once

#include <caf/all.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/checkpoint/state_store.hpp"
#include "actors/diagnosis/node_check.hpp"
#include "actors/local.hpp"
#include "actors/node/inject.hpp"
#include "actors/node/log_scanner.hpp"
#include "actors/node/slots.hpp"
#include "actors/node/trace_rings.hpp"
#include "actors/node/watch.hpp"
#include "actors/peer/peer_copies.hpp"
#include "runtime/base/lifeline.hpp"
#include "runtime/base/process.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/data/ring_filler.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/training/names.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct NodeOptions {
  int index = 0;  // "n<index>"
  Config config;
  Plan plan;
  RunFolder run;
  std::string instance;  // of this start of the run
  std::string address;   // of this process's transport, for the trainers
  std::shared_ptr<ProcessWatcher> watcher;
  std::shared_ptr<StateStore> states;
  std::shared_ptr<RingFiller> filler;
  std::shared_ptr<DiskFaults> disk = std::make_shared<DiskFaults>();
  std::function<void(TransportFault)> inject_network_fault;         // of the transport
  std::function<void(int exit_code, std::string reason)> finished;  // called once, at the end
  FindNode find;                                                    // other agents
  std::shared_ptr<PeerTier> peers;                                  // null: no copies on peers
  std::shared_ptr<const LogRules> log_rules = std::make_shared<LogRules>();
  std::string batch_log;                 // Slurm's, within the run's logs, if it is ours to read
  std::vector<std::vector<int>> places;  // the CPUs of each slot; empty: those of the node
  std::string name() const { return node_name(index); }
};

struct NodeState {
  static inline const char* name = "node";
  NodeOptions options;
  caf::actor supervisor, tree, dataloader, checkpoint, peers;
  std::vector<ShardSaved> saving;  // asked of the checkpoint actor, and not answered yet
  local::FillRings fill{};         // of the newest generation in which this node trains
  SlotTable table;
  std::map<std::string, caf::actor> handles;       // of processes that are up
  std::map<std::string, std::string> accusations;  // why a process was killed
  std::map<std::string, bool> unproven;            // processes that have committed nothing yet
  TrainerWatch watch{WatchOptions{}};
  std::map<std::string, TrainerTimes> times;  // of each trainer's newest step
  std::map<size_t, uint64_t> xids;            // told of so far, by GPU
  LifelineWatcher lifelines;
  std::unique_ptr<LogScanner> logs;
  TraceRings traces;
  std::deque<std::pair<pid_t, std::string>> ended;  // the newest processes, and who they were
  bool stopping = false;
  int exit_code = 0;
  std::string exit_reason;
};

caf::behavior node_actor(caf::stateful_actor<NodeState>* self, caf::actor supervisor,
                         NodeOptions options);

}  // namespace simplescale
