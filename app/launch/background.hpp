// A launcher that continues without its terminal, because of `--detach` or because the terminal is
// gone.
#pragma once

#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// The background part of `train --detach`. Only with one thread.
class Background {
 public:
  /// Forks this process. The child gets a session of its own, and logs/train.log instead of its
  /// terminal. io.
  static Result<Background> start(const RunFolder& run);
  Background(Background&& other) noexcept;
  Background& operator=(Background&&) = delete;
  ~Background();
  /// True in the process that the user has started, which only waits and ends.
  bool is_parent() const { return child_ > 0; }
  /// In the parent: waits until the child has called started(). internal: it ended before that.
  Status wait(const RunFolder& run);
  /// In the child: the run has started.
  void started();

 private:
  Background(pid_t child, int pipe) : child_(child), pipe_(pipe) {}
  pid_t child_ = 0;
  int pipe_ = -1;  // the child writes a byte into it when the run has started
};

/// Replaces stdin by /dev/null, and stdout and stderr by logs/train.log. keep_files: keeps those
/// that are files, because only a terminal, or the reader of a pipe, can disappear.
void leave_terminal(const RunFolder& run, bool keep_files);

}  // namespace simplescale
