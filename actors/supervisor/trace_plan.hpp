// Plans which windows of time are written as traces: chosen steps, and each recovery with the step
// before it and the step after it.
// Plain data. Owned by the supervisor actor, which reports events and orders the traces of the
// windows that are returned. Every process records continuously, so a window is requested after it
// is over. Times are arguments, in ns of the wall clock.
// over. Times are arguments, in ns of the wall clock.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/observe/trace_parts.hpp"

namespace simplescale {

class TracePlan {
 public:
  TracePlan() = default;
  /// steps: steps to trace. recoveries: whether each recovery is traced.
  TracePlan(const std::vector<int64_t>& steps, bool recoveries);

  /// Traces `count` steps from `first` on. Consecutive steps become one trace.
  void choose(uint64_t first, uint64_t count);
  /// Chosen steps whose trace is incomplete; replicated to the standby.
  const std::set<uint64_t>& chosen() const { return chosen_; }
  void set_chosen(std::set<uint64_t> chosen) { chosen_ = std::move(chosen); }

  /// Nodes have been ordered to begin a generation.
  void generation_begun(int64_t at_ns);
  /// `node` has failed in `generation`. Failures until incident_ended() belong to the same trace.
  void incident_begun(uint64_t generation, uint64_t incident, const std::string& node,
                      int64_t at_ns);
  /// Training continues in this generation.
  void incident_ended(uint64_t generation, uint64_t incident);
  /// ended_ns: when the first trainer ended the step. Returns the windows that are complete.
  std::vector<TraceWindow> committed(uint64_t step, int64_t ended_ns, int64_t at_ns);
  /// The run ends. Returns the windows that have begun, including that of an unfinished recovery.
  std::vector<TraceWindow> end(int64_t at_ns);

  /// The nodes that write a window. For chosen steps: all of `nodes`. For a recovery: the nodes
  /// that failed and some others, at most kRecoveryNodes, because otherwise thousands of nodes
  /// would write gigabytes at the same time in each recovery.
  std::vector<std::string> writers(const TraceWindow& window,
                                   const std::vector<std::string>& nodes) const;
  static constexpr size_t kRecoveryNodes = 16;

 private:
  struct Steps {
    uint64_t first, last;
    int64_t begin_ns;
  };
  struct Recovery {
    int64_t begin_ns;
    uint64_t generation, incident;
    bool over = false;
  };
  void end_steps(int64_t at_ns, std::vector<TraceWindow>& windows);
  void end_recovery(int64_t at_ns, std::vector<TraceWindow>& windows);

  std::set<uint64_t> chosen_;
  bool recoveries_ = false;
  int64_t last_ns_ = 0, before_ns_ = 0;  // when the last two steps ended; 0: unknown
  std::optional<Steps> steps_;
  std::optional<Recovery> recovery_;
  std::set<std::string> failed_;  // nodes that failed in the newest recovery
};

}  // namespace simplescale
