// Notices that a run's folder is not there any more: deleted or moved while it is trained in.
//
// Nothing can be recorded, saved or decided without it, so processes that find it gone end. A file
// system that does not answer, or answers with an error, is another thing: it may come back, and
// training goes on meanwhile. A thread of its own looks, which may hang with the file system.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// The file system says that there is no such run (control/instance is not there). Blocks on it.
bool folder_is_gone(const RunFolder& run);
/// The same in words.
std::string run_gone_message(const RunFolder& run);

class FolderWatch {
 public:
  /// `gone` is called once, on the thread, when all of so many looks in a row have found no folder.
  /// Only begun once the run has begun (epoch.hpp).
  FolderWatch(RunFolder run, std::function<void()> gone,
              std::chrono::milliseconds every = std::chrono::seconds(1), int looks = 4);
  ~FolderWatch();  // waits for no file system
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace simplescale
