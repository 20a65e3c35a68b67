// Which parts of a run's time become traces: chosen steps, and recoveries with a step before and
// after. Plain data and pure functions; time is an argument, in ns of the wall clock.
//
// The supervisor tells what happens; when something that was chosen is over, it is told which
// window of time to have written. All processes record all the time, so nobody needs to be told
// beforehand.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/exports/trace_parts.hpp"

namespace simplescale {

class TracePlan {
 public:
  TracePlan() = default;
  /// recoveries: each becomes a trace.
  TracePlan(const std::vector<int64_t>& steps, bool recoveries);

  /// count steps from `first` on; those that follow each other become one trace.
  void choose(uint64_t first, uint64_t count);
  /// What is chosen and not complete; a successor goes on with that.
  const std::set<uint64_t>& chosen() const { return chosen_; }
  void go_on_with(std::set<uint64_t> chosen) { chosen_ = std::move(chosen); }

  /// A generation is told to begin.
  void begun(int64_t at_ns);
  /// generation: the one that fails, on this node. Whatever fails before it ends is of the same
  /// trace.
  void incident_begun(uint64_t generation, uint64_t incident, const std::string& node,
                      int64_t at_ns);
  /// Training goes on, in this generation.
  void incident_ended(uint64_t generation, uint64_t incident);
  /// ended_ns: when the first trainer was done with it. Returns what is complete now.
  std::vector<TraceWindow> committed(uint64_t step, int64_t ended_ns, int64_t at_ns);
  /// Nothing more will be committed: what was under way, also a recovery that did not come to an
  /// end.
  std::vector<TraceWindow> over(int64_t at_ns);

  /// Who writes a window: all nodes what was chosen, of a recovery those that it happened to and
  /// some of the others, at most kRecoveryNodes. Thousands of nodes would write gigabytes, each
  /// time and at the same moment.
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
  std::set<std::string> hurt_;  // the nodes of the newest recovery
};

}  // namespace simplescale
