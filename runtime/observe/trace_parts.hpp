// The parts of a trace: RUN/traces/<name>/<who>.jsonl, one file from every node and one from the
// supervisor, with the events of the processes whose memory the writer can read. `trace`
// (trace_merge.hpp) merges them. All functions block on the disk.
//
// Lines of a file (docs/formats.md):
//   {"trace":1,"who","host","begin_ns","end_ns"}                       header
//   {"process","pid","full","threads":[..]}                            a process; its events follow
//   [begin_ns,duration_ns,kind,thread,number,a,b,"name","detail"]      an event
// Times are ns of the wall clock. An event that had not ended when it was read ends at that time
// and has the kind -1 - kind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// Name and time span of a trace, by the wall clock.
struct TraceWindow {
  std::string name;  // "step-00000012"
  int64_t begin_ns = 0, end_ns = 0;
  bool operator==(const TraceWindow&) const = default;
};

struct TraceSource {
  std::string process;  // "n1.0"
  int64_t pid = 0;
  std::shared_ptr<const trace::Reader> reader;
  int64_t ended_ns = 0;  // monotonic clock: when the process was found dead; 0: it is alive
};

/// Prefix of the names of recovery traces, and how many of the newest are kept.
inline constexpr const char* kRecoveryTraces = "recovery-";
inline constexpr size_t kRecoveryTracesKept = 32;

/// True for 1 to 64 lower-case letters, digits and '-': the name cannot lead out of the folder.
bool is_trace_name(const std::string& name);

/// Writes the events of the sources that overlap the window. who: "n1", "supervisor".
Status write_trace_part(const RunFolder& run, const TraceWindow& window, const std::string& who,
                        const std::vector<TraceSource>& sources);

/// Writes the events of this process only. Errors are logged.
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
  bool full = false;  // true: the oldest events may have been overwritten
  std::vector<std::string> threads;
  std::vector<TraceEvent> events;
};

struct TracePart {
  std::string who, host;
  int64_t begin_ns = 0, end_ns = 0;
  std::vector<TraceProcess> processes;
};

/// bad_data: the message names the line; not_found.
Result<TracePart> read_trace_part(const std::string& path);

/// The traces of a run, newest last.
std::vector<std::string> trace_names(const RunFolder& run);

}  // namespace simplescale
