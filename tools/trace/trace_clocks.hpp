// Estimates from messages how far the clocks of a trace's hosts differ. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/observe/trace_parts.hpp"

namespace simplescale {

/// Identifies a message at both ends: connection id, number of the message; {0, 0}: unknown.
using MessageKey = std::pair<uint64_t, uint64_t>;
inline MessageKey key_of(const TraceEvent& e) {
  return {e.a, e.b};
}

/// Shifts the events of every host to the clock of the first part's host. Adds a note for each host
/// that it shifts.
void align_clocks(std::vector<TracePart>& parts, std::vector<std::string>& notes);

}  // namespace simplescale
