// Actors without which their process is of no use.
#pragma once

#include <caf/scheduled_actor.hpp>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>

#include "runtime/base/limits.hpp"
#include "runtime/base/log.hpp"

namespace simplescale {

/// Ends this process if an exception ends the actor `self`, and logs why. The first call of the
/// actor's function. The parent process replaces a child that dies, but does not notice a child
/// whose actor alone has ended.
inline void end_process_with(caf::scheduled_actor* self, const std::string& name) {
  self->set_exception_handler([name](std::exception_ptr& thrown) -> caf::error {
    try {
      try {
        std::rethrow_exception(thrown);
      } catch (const std::exception& error) {
        log::error("an exception ended the {} actor, so this process ends: {}", name,
                   exception_status(error).message());
      }
    } catch (const std::bad_alloc&) {
      tell_no_memory();
    } catch (...) {
    }
    std::abort();
  });
}

}  // namespace simplescale
