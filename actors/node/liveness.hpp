// Whether a node's trainer processes live and get on: what they say of themselves, several times a
// second, and how long ago. Pure but for the question how the operating system sees a process,
// which the caller answers. Used by one thread.
//
//   stopped  silent for silence_ms, and the operating system says that it is stopped
//   silent   silent for three times as long (ten times, if nobody waits for it): one that is only
//            short of time on a loaded machine is not accused
//   stuck    in a generation, not waiting for others, and its units do not grow for
//            progress_timeout_ms and for 20 times its slowest recent step
//
// Time in which the watch itself did not run is nobody's silence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/process.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct WatchOptions {
  int64_t heartbeat_ms = 100, silence_ms = 1000, progress_timeout_ms = 120'000;
};

class TrainerWatch {
 public:
  explicit TrainerWatch(WatchOptions options) : options_(options) {}

  /// A process has said that it is up. now_ms: any monotonic clock.
  void up(int64_t now_ms, const std::string& process, pid_t pid);
  void gone(const std::string& process) { watched_.erase(process); }
  /// Others wait for it.
  void needed(const std::string& process);
  void heard(int64_t now_ms, const std::string& process, const TrainerProgress& progress);
  void step_took(const std::string& process, double step_ms);

  struct Verdict {
    std::string process, reason;
  };
  /// To be called every heartbeat_ms. Each process is accused once.
  std::vector<Verdict> look(int64_t now_ms, const std::function<ProcessState(pid_t)>& state);

 private:
  struct Watched {
    pid_t pid = 0;
    bool needed = false, accused = false;
    int64_t heard_ms = 0, moved_ms = 0;
    TrainerProgress last;
    std::deque<double> steps_ms;  // recent
  };
  std::string accuse(int64_t now_ms, const Watched& watched,
                     const std::function<ProcessState(pid_t)>& state) const;

  WatchOptions options_;
  int64_t looked_ms_ = -1;
  std::map<std::string, Watched> watched_;
};

}  // namespace simplescale
