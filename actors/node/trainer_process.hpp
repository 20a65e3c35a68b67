// The life of one trainer process, as an actor: a child in the node's supervision tree. The actor
// starts the process and quits when the process ends, with `normal` after exit code 0 and with an
// error otherwise. An actor that is told to exit first kills its process. The tree restarts a
// process with a new actor.
#pragma once

#include <caf/all.hpp>
#include <memory>
#include <string>

#include "actors/local.hpp"
#include "runtime/base/process.hpp"

namespace simplescale {

struct TrainerProcessState {
  static inline const char* name = "trainer_process";
  pid_t pid = 0;
  bool ended = false;
};

/// Sends local::ProcessStarted to the node, and local::ProcessEnded before it quits. id: "n1/p2".
caf::behavior trainer_process(caf::stateful_actor<TrainerProcessState>* self, caf::actor node,
                              std::shared_ptr<ProcessWatcher> watcher, std::string id,
                              SpawnOptions command);

}  // namespace simplescale
