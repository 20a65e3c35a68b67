// The clocks of the hosts of a trace, as far as messages tell how far they are apart. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/exports/trace_parts.hpp"

namespace simplescale {

/// A message as both ends know it: the connection, and its number there; {0, 0}: unknown.
using MessageKey = std::pair<uint64_t, uint64_t>;
inline MessageKey key_of(const TraceEvent& e) {
  return {e.a, e.b};
}

/// Moves the events of every host to the clock of the first part's host; says by how much.
void put_clocks_right(std::vector<TracePart>& parts, std::vector<std::string>& notes);

}  // namespace simplescale
