// Detects that a run folder was deleted or moved during training.
//
// Without the folder, nothing can be recorded, saved or decided, so processes that find it gone
// end. A supervisor and its standby end after 4 s, because they can write nothing. An agent ends
// after cluster.join_timeout_ms: its memory may hold steps that exist nowhere else (JOB-1), and the
// folder may come back, as on a file system that is mounted again. Meanwhile trainers continue, and
// an agent then starts another supervisor. If the file system hangs or returns an error, no process
// ends, because it may recover. The check runs on a thread of its own, which may hang with the file
// system.
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

/// True if the file system reports that control/instance does not exist. Blocks on the file system.
bool folder_is_gone(const RunFolder& run);
/// The message to the user.
std::string run_gone_message(const RunFolder& run);

class FolderWatch {
 public:
  /// The `looks` of an agent, and of its launcher, which waits equally long.
  static int looks_of_agent(int64_t join_timeout_ms) {
    return static_cast<int>(std::clamp<int64_t>(join_timeout_ms / 1000, 4, INT_MAX));
  }
  /// Calls `gone` once, on the watch's thread, after `looks` consecutive checks, `every` apart,
  /// have found no folder. The run must have begun (TermFiles::begin()).
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
