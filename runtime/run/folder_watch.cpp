#include "runtime/run/folder_watch.hpp"

#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace simplescale {

bool folder_is_gone(const RunFolder& run) {
  return access(run.instance().c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

std::string run_gone_message(const RunFolder& run) {
  return "the run folder " + run.path +
         " is gone: it was deleted or moved during training, so nothing can be saved";
}

struct FolderWatch::Shared {
  RunFolder run;
  std::function<void()> gone;
  std::chrono::milliseconds every{};
  int looks = 0;
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;

  void watch() {
    std::unique_lock lock(mutex);
    for (int missing = 0; !wake.wait_for(lock, every, [this] { return stopping; });) {
      lock.unlock();
      missing = folder_is_gone(run) ? missing + 1 : 0;
      lock.lock();
      if (missing < looks) continue;
      // Called under the lock, so that it is not running when the destructor returns.
      if (!stopping) gone();
      return;
    }
  }
};

FolderWatch::FolderWatch(RunFolder run, std::function<void()> gone, std::chrono::milliseconds every,
                         int looks)
    : shared_(std::make_shared<Shared>()) {
  shared_->run = std::move(run);
  shared_->gone = std::move(gone);
  shared_->every = every;
  shared_->looks = looks;
  std::thread([shared = shared_] { shared->watch(); }).detach();
}

FolderWatch::~FolderWatch() {
  const std::lock_guard lock(shared_->mutex);
  shared_->stopping = true;
  shared_->gone = nullptr;
  shared_->wake.notify_all();
}

}  // namespace simplescale
