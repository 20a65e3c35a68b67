// The node actor: the supervisor's arm on one host. It runs the node's supervision tree
// (dataloader, checkpoint, one process a trainer), passes the supervisor's commands to its trainers
// and their reports back, and answers for what their shared memory holds. Trainers talk to nobody
// else.
//
// Runs on the transport thread or a CAF worker; no handler blocks.
#pragma once

#include <caf/all.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/checkpoint/state_store.hpp"
#include "actors/local.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/run_folder.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/data/ring_filler.hpp"

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
  std::function<void(int exit_code, std::string reason)> finished;  // called once, at the end
  std::string name() const { return "n" + std::to_string(index); }
};

struct NodeState {
  static inline const char* name = "node";
  struct Local {
    TrainerPlace place;
    uint64_t ring = 0;
    int32_t pid = 0;
    caf::actor handle;        // invalid while it is not up
    uint64_t generation = 0;  // told to join
    bool restarted = false;   // and has committed nothing since
  };
  NodeOptions options;
  caf::actor supervisor, tree, dataloader, checkpoint;
  local::FillRings fill{};  // of the newest generation
  std::map<std::string, Local> trainers;
  bool stopping = false;
  int exit_code = 0;
  std::string exit_reason;
};

caf::behavior node_actor(caf::stateful_actor<NodeState>* self, caf::actor supervisor,
                         NodeOptions options);

}  // namespace simplescale
