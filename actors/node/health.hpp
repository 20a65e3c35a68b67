// A thread that samples the host's health at intervals and sends it to the node actor. It is a
// detached thread and not an actor: a file system or a GPU driver that hangs blocks only this
// thread and does not keep the agent from exiting.
#pragma once

#include <caf/actor.hpp>
#include <cstdint>
#include <memory>
#include <string>

namespace simplescale {

class HealthReporter {
 public:
  /// Sends NodeHealth of node `name`, with empty `trainers`, every interval_ms until destruction.
  /// folder: its file system is sampled.
  HealthReporter(caf::actor node, std::string name, std::string folder, int64_t interval_ms);
  ~HealthReporter();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace simplescale
