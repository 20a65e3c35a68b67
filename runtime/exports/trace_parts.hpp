// The files of a trace: RUN/traces/<name>/<who>.jsonl, one from every node and one from the
// supervisor, each with the events of the processes that it could look at. `trace`
// (trace_merge.hpp) makes one file of them. All functions block on the disk.
//
// Lines: a header {"trace":1,"who","host","begin_ns","end_ns"}; for every process a line
// {"process","pid","full","threads":[..]} and after it its events
// [begin_ns,duration_ns,kind,thread,number,a,b,"name","detail"]. Times are of the wall clock, in
// ns. An event that had not ended when it was read ends there, and its kind is negative: -1 - kind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// The part of the time that a trace is about; wall clock.
struct TraceWindow {
  std::string name;  // "step-00000012"
  int64_t begin_ns = 0, end_ns = 0;
  bool operator==(const TraceWindow&) const = default;
};

struct TraceSource {
  std::string process;  // "n1.0"
  int64_t pid = 0;
  std::shared_ptr<const trace::Reader> reader;
  int64_t ended_ns = 0;  // monotonic: when the process was seen to be dead; 0: it lives
};

/// Names of traces that recoveries leave behind begin so; of these only the newest are kept.
inline constexpr const char* kRecoveryTraces = "recovery-";
inline constexpr size_t kRecoveryTracesKept = 32;

/// Letters, digits, '-': nothing that could lead out of the folder.
bool is_trace_name(const std::string& name);

/// Reads the rings, and writes what of their events lies in the window. who: "n1", "supervisor".
Status write_trace_part(const RunFolder& run, const TraceWindow& window, const std::string& who,
                        const std::vector<TraceSource>& sources);

/// The ring of this process alone. What goes wrong is logged.
void write_own_trace(const RunFolder& run, const TraceWindow& window, const std::string& who);

struct TraceEvent {
  trace::Kind kind = trace::Kind::span;
  bool unfinished = false;
  int64_t begin_ns = 0, duration_ns = 0;  // wall clock
  uint16_t thread = 0;
  int64_t number = -1;
  uint64_t a = 0, b = 0;
  std::string name, detail;
};

struct TraceProcess {
  std::string name;
  int64_t pid = 0;
  bool full = false;  // events at the beginning may have been overwritten
  std::vector<std::string> threads;
  std::vector<TraceEvent> events;
};

struct TracePart {
  std::string who, host;
  int64_t begin_ns = 0, end_ns = 0;
  std::vector<TraceProcess> processes;
};

/// bad_data: says which line; not_found.
Result<TracePart> read_trace_part(const std::string& path);

/// Of a run, the newest last.
std::vector<std::string> trace_names(const RunFolder& run);

}  // namespace simplescale
