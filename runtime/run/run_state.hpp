// The words for the end of a run's start: states in status.json, and kinds of events.
#pragma once

#include <string_view>

namespace simplescale {

/// "finished", "stopped" or "failed": no step follows in this start of the run.
inline bool ends_run(std::string_view word) {
  return word == "finished" || word == "stopped" || word == "failed";
}

}  // namespace simplescale
