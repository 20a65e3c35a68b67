// Decides whether a node's trainer processes live and make progress. Each process sends a
// TrainerProgress message several times a second. A process has to be killed if it is
//
//   stopped  silent for silence_ms, and the operating system says that it is stopped
//   silent   silent for 3 x silence_ms (10 x if it is warm): a process that only lacks CPU time on a
//            loaded machine must survive
//   stuck    in a generation, not waiting in a collective, and no unit computed for
//            progress_timeout_ms and for 20 x its slowest recent step
//
// If check() itself was not called for a time (the node was stopped), that time does not count as
// silence. Pure except for the callback that asks the operating system. Used by one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/process.hpp"
#include "transport/protocol/reason.hpp"

namespace simplescale {

struct LivenessOptions {
  int64_t heartbeat_ms = 100, silence_ms = 1000, progress_timeout_ms = 120'000;
};

class LivenessMonitor {
 public:
  explicit LivenessMonitor(LivenessOptions options) : options_(options) {}

  /// The process has sent its TrainerHello. now_ms: of any monotonic clock.
  void add(int64_t now_ms, const std::string& process, pid_t pid);
  void remove(const std::string& process) { monitored_.erase(process); }
  /// The process got a slot, so it is no longer warm.
  void set_in_slot(const std::string& process);
  void add_progress(int64_t now_ms, const std::string& process, const TrainerProgress& progress);
  void add_step(const std::string& process, double step_ms);

  struct Verdict {
    std::string process;
    Reason reason;
  };
  /// What the processes in `generation` do. In the result, `trainer` is the id of the process.
  std::vector<TrainerProgress> progress(int64_t now_ms, uint64_t generation) const;

  /// Returns the processes to kill, each only once. Call it every heartbeat_ms.
  std::vector<Verdict> check(int64_t now_ms, const std::function<ProcessState(pid_t)>& state);

 private:
  struct Monitored {
    pid_t pid = 0;  // 0: no hello yet
    bool in_slot = false, condemned = false;
    int64_t heard_ms = 0;     // when its last message came
    int64_t progress_ms = 0;  // when it last made progress, or needed none
    int64_t unit_ms = 0;      // when it last made progress
    TrainerProgress last;
    std::deque<double> steps_ms;  // of its recent steps
  };
  std::optional<Reason> reason_to_kill(int64_t now_ms, const Monitored& process,
                                       const std::function<ProcessState(pid_t)>& state) const;

  LivenessOptions options_;
  int64_t checked_ms_ = -1;
  std::map<std::string, Monitored> monitored_;
};

}  // namespace simplescale
