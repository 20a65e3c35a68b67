// One life of a trainer's process, as an actor: a child of the node's supervisor. The actor starts
// the process, and quits when it ends, with `normal` after exit code 0 and an error otherwise;
// asked to quit, it ends the process first.
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

/// node gets local::ProcessStarted, and local::ProcessEnded before this actor quits. id: "n1/p2".
caf::behavior trainer_process(caf::stateful_actor<TrainerProcessState>* self, caf::actor node,
                              std::shared_ptr<ProcessWatcher> watcher, std::string id,
                              SpawnOptions command);

}  // namespace simplescale
