// One trace from its parts (trace_parts.hpp) and the run's events: the JSON that Perfetto
// (ui.perfetto.dev) and chrome://tracing read.
//
// A process of the run is a process there, with a track for each thread; collectives, which go on
// beside the threads, have tracks by communicator. Arrows go from where a message was sent to where
// it was handled. The first process, "recovery", has the incidents of events.jsonl with their
// phases, and all other events.
//
// Clocks: on one host all times are of one clock. A host whose clock differs from that of the
// supervisor's host would have messages arrive before they were sent; what its messages to and from
// that host tell of the difference (half of the two directions' shortest times) is taken out.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/exports/trace_parts.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

struct MergedTrace {
  std::string json;
  size_t processes = 0, events = 0, messages = 0;
  double ms = 0;                   // from its first event to the end of its last
  std::vector<std::string> notes;  // what a reader should know: clocks put right, events missing
};

/// events: lines of events.jsonl. Pure.
MergedTrace merge_trace(std::vector<TracePart> parts, const std::vector<std::string>& events);
/// not_found: the run has no trace of that name; bad_data: no part of it can be read. Blocks.
Result<MergedTrace> merge_trace(const RunFolder& run, const std::string& name);

}  // namespace simplescale
