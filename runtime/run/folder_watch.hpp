// Detects that a run folder was deleted or moved during training.
//
// Without it nothing can be recorded, saved or decided, so processes that find it gone end: a
// supervisor and its standby after 4 s, since they can write nothing; an agent, whose memory may
// hold steps that are nowhere else (JOB-1), after cluster.join_timeout_ms, since the folder may come
// back, as on a file system that is mounted again. Trainers train on meanwhile, and an agent then
// starts another supervisor. A file system that hangs or returns an error is a different case: it
// may recover, and no process ends. The check runs on a thread of its own, which may hang with the
// file system.
#pragma once

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// True if the file system says that control/instance does not exist. Blocks on the file system.
bool folder_is_gone(const RunFolder& run);
/// The message to the user.
std::string run_gone_message(const RunFolder& run);

class FolderWatch {
 public:
  /// The `looks` of an agent, and of its launcher, which stay as long.
  static int looks_of_agent(int64_t join_timeout_ms) {
    return static_cast<int>(std::clamp<int64_t>(join_timeout_ms / 1000, 4, INT_MAX));
  }
  /// Calls `gone` once, on the watch's thread, after `looks` checks in a row, `every` apart, have
  /// found no folder. The run must have begun (EpochFiles::begin()).
  FolderWatch(RunFolder run, std::function<void()> gone,
              std::chrono::milliseconds every = std::chrono::seconds(1), int looks = 4);
  ~FolderWatch();  // does not wait for the file system
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace simplescale
