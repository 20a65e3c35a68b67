// Actors without which their process is of no use.
#pragma once

#include <caf/actor.hpp>
#include <caf/sec.hpp>
#include <cstdlib>
#include <string>

#include "runtime/base/log.hpp"

namespace simplescale {

/// Ends the process if an exception ends the actor: whoever started the process replaces one that
/// dies, but waits for one that only lacks its actor. Any thread.
inline void end_process_with(const caf::actor& actor, const std::string& name) {
  actor->attach_functor([name](const caf::error& reason) {
    if (reason != caf::sec::runtime_error) return;
    log::error("the {} actor was ended by an exception, so this process ends", name);
    std::abort();
  });
}

}  // namespace simplescale
