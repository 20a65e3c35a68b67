// Merges the parts of a trace (trace_parts.hpp) and the run's events into JSON that Perfetto
// (ui.perfetto.dev) and chrome://tracing read.
//
// Every process of the run is a process in the trace, with one track per thread. Collectives
// overlap with the threads' work and have tracks by communicator. Arrows lead from the sending of a
// message to its handling. The first process, "recovery", shows the incidents of events.jsonl with
// their phases, and all other events.
//
// Clocks: all processes of a host share a clock. Hosts whose clock differs from that of the
// supervisor's host are corrected; otherwise messages would arrive before they
// were sent.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/observe/trace_parts.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

struct MergedTrace {
  std::string json;
  size_t processes = 0, events = 0, messages = 0;
  double ms = 0;                   // from the first event to the end of the last one
  std::vector<std::string> notes;  // for the user: corrected clocks, missing events
};

/// events: the lines of events.jsonl. Pure.
MergedTrace merge_trace(std::vector<TracePart> parts, const std::vector<std::string>& events);
/// Reads the parts of a run's trace. not_found: no trace of this name; bad_data: no part is
/// readable. Blocks on the disk.
Result<MergedTrace> merge_trace(const RunFolder& run, const std::string& name);

}  // namespace simplescale
