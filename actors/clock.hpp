// The clock on which actors base decisions: it never jumps, and tests may replace it.
#pragma once

#include <caf/actor_clock.hpp>
#include <caf/local_actor.hpp>
#include <chrono>
#include <cstdint>

namespace simplescale {

/// Milliseconds since an arbitrary moment before the process started.
inline int64_t now_ms(const caf::actor_clock& clock) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(clock.now().time_since_epoch())
      .count();
}

/// The same, called by the actor itself.
inline int64_t now_ms(caf::local_actor* self) {
  return now_ms(self->clock());
}

}  // namespace simplescale
