// Detects that a run folder was deleted or moved during training.
//
// Without it nothing can be recorded, saved or decided, so processes that find it gone end. A file
// system that hangs or returns an error is a different case: it may recover, and training continues
// meanwhile. The check runs on a thread of its own, which may hang with the file system.
#pragma once

#include <chrono>
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
