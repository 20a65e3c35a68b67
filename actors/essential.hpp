// Actors without which their process is of no use.
#pragma once

#include <caf/actor.hpp>
#include <caf/sec.hpp>
#include <cstdlib>
#include <string>

#include "runtime/base/log.hpp"

namespace simplescale {

/// Ends this process if an exception ends `actor`. The parent process replaces a child that dies,
/// but does not notice a child whose actor alone has ended. Any thread.
inline void end_process_with(const caf::actor& actor, const std::string& name) {
  actor->attach_functor([name](const caf::error& reason) {
    if (reason != caf::sec::runtime_error) return;
    log::error("the {} actor was ended by an exception, so this process ends", name);
    std::abort();
  });
}

}  // namespace simplescale
