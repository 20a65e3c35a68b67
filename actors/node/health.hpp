// A thread that looks at the host's health now and then and tells the node actor. A thread and not
// an actor: a file system or a GPU driver that hangs holds it, and nobody else, not even the end of
// the process.
#pragma once

#include <caf/actor.hpp>
#include <cstdint>
#include <memory>
#include <string>

namespace simplescale {

class HealthReporter {
 public:
  /// Sends NodeHealth{name, ...}, without trainers, every interval_ms until it is destroyed.
  HealthReporter(caf::actor node, std::string name, std::string folder, int64_t interval_ms);
  ~HealthReporter();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace simplescale
