// Ends a command that gets a signal before it trains.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <initializer_list>
#include <map>

namespace simplescale {

/// While an object exists, these signals end the process at once, with a sentence and the exit code
/// of a stopped run. The process may end at any time: it publishes what it prepares by renaming,
/// and the kernel releases its locks.
class StopsEarly {
 public:
  explicit StopsEarly(std::initializer_list<int> signals) {
    struct sigaction action {};
    action.sa_handler = [](int) {
      constexpr char text[] =
          "simplescale: stopped by a signal before the run began; nothing was trained: the same "
          "command starts again\n";
      [[maybe_unused]] const auto written = write(STDERR_FILENO, text, sizeof text - 1);
      _exit(75);  // Code::requeue; exit_code() may not be called here
    };
    for (const int signal : signals) sigaction(signal, &action, &before_[signal]);
  }
  ~StopsEarly() {
    for (const auto& [signal, before] : before_) sigaction(signal, &before, nullptr);
  }
  StopsEarly(const StopsEarly&) = delete;
  StopsEarly& operator=(const StopsEarly&) = delete;

 private:
  std::map<int, struct sigaction> before_;
};

}  // namespace simplescale
