#include "runtime/base/epoch.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "runtime/base/files.hpp"
#include "runtime/base/run_key.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

Status failed(const std::string& what, const std::string& path) {
  return Status(Code::io, "cannot " + what + " " + path + ": " + std::strerror(errno));
}

/// Names in a folder that begin with `prefix`.
Result<std::vector<std::string>> names(const std::string& folder, const std::string& prefix) {
  DIR* open = opendir(folder.c_str());
  if (!open) return failed("read", folder);
  std::vector<std::string> found;
  while (const dirent* entry = readdir(open))
    if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) == 0)
      found.push_back(entry->d_name);
  closedir(open);
  return found;
}

/// The number after `prefix`, 0 if that is none ("epoch-x-3.new-17" is a file in the making).
uint64_t number_of(const std::string& name, const std::string& prefix) {
  char* end = nullptr;
  const uint64_t number = std::strtoull(name.c_str() + prefix.size(), &end, 10);
  return *end == 0 ? number : 0;
}

}  // namespace

EpochFiles::EpochFiles(RunFolder run, std::string instance)
    : run_(std::move(run)), instance_(std::move(instance)), prefix_("epoch-" + instance_ + "-") {}

std::string EpochFiles::path(uint64_t number) const {
  return run_.control() + "/" + prefix_ + std::to_string(number);
}

Status EpochFiles::begin() const {
  SS_RETURN_IF_ERROR(make_run_key(run_));
  SS_RETURN_IF_ERROR(write_file_atomic(run_.instance(), instance_ + "\n"));
  for (const char* kind : {"epoch-", "state-"}) {
    SS_ASSIGN(const auto old, names(run_.control(), kind));
    for (const std::string& name : old) unlink((run_.control() + "/" + name).c_str());
  }
  unlink(run_.end().c_str());
  return {};
}

bool EpochFiles::current() const {
  const auto text = read_text(run_.instance());
  return !text.ok() || *text == instance_ + "\n";
}

Result<Epoch> EpochFiles::newest() const {
  SS_ASSIGN(const auto found, names(run_.control(), prefix_));
  Epoch epoch;
  for (const std::string& name : found)
    epoch.number = std::max(epoch.number, number_of(name, prefix_));
  if (epoch.number == 0) return epoch;
  const auto text = read_text(path(epoch.number));
  const json page = text.ok() ? json::parse(*text, nullptr, false) : json();
  if (!page.is_object()) return epoch;
  try {
    epoch.node = page.value("node", "");
    epoch.pid = page.value("pid", 0);
    epoch.address = page.value("address", "");
    epoch.generation = page.value("generation", uint64_t{0});
  } catch (const json::exception&) {  // a value of another type
  }
  return epoch;
}

Result<bool> EpochFiles::claim(const Epoch& epoch) const {
  const json page = {{"epoch", epoch.number},
                     {"node", epoch.node},
                     {"pid", epoch.pid},
                     {"address", epoch.address},
                     {"generation", epoch.generation}};
  const std::string whole = path(epoch.number);
  std::string temporary = whole + ".new-XXXXXX";
  const int fd = mkstemp(temporary.data());
  if (fd < 0) return failed("write", temporary);
  const std::string text = page.dump(1) + "\n";
  bool good = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  good = fchmod(fd, 0644) == 0 && good;
  good = fsync(fd) == 0 && good;
  close(fd);
  // link() is exclusive where O_EXCL is not, and whoever sees the name sees all of the file.
  const int linked = good ? link(temporary.c_str(), whole.c_str()) : -1;
  const int error = errno;
  struct stat status {};
  // Over NFS the answer may be lost though the link was made: two names tell.
  const bool ours =
      linked == 0 || (good && stat(temporary.c_str(), &status) == 0 && status.st_nlink == 2);
  unlink(temporary.c_str());
  errno = error;
  if (ours) return true;
  if (good && error == EEXIST) return false;
  return failed("create", whole);
}

Status EpochFiles::touch(uint64_t number) const {
  if (utimensat(AT_FDCWD, path(number).c_str(), nullptr, 0) == 0) return {};
  return failed("touch", path(number));
}

int64_t EpochFiles::touched_ns(uint64_t number) const {
  struct stat status {};
  if (stat(path(number).c_str(), &status) != 0) return 0;
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

// --- The thread ---

struct EpochWatch::Shared {
  using Clock = std::chrono::steady_clock;
  explicit Shared(EpochFiles f) : files(std::move(f)) {}
  const EpochFiles files;
  std::mutex mutex;
  std::condition_variable wake;
  std::function<void(const EpochView&)> on_view;
  std::vector<std::function<void(const EpochView&)>> asked;
  int64_t every_ms = 0;
  uint64_t leading = 0;
  bool stopping = false, changed = false;
  // The thread's own.
  uint64_t beat_of = 0;
  int64_t beat_ns = 0;
  Clock::time_point beat_at, touched_at;

  EpochView look() {
    EpochView view;
    auto newest = files.newest();
    view.answered = newest.ok();
    if (!newest.ok()) return view;
    view.newest = *newest;
    view.current = files.current();
    const int64_t beat = files.touched_ns(view.newest.number);
    const auto now = Clock::now();
    if (beat != beat_ns || view.newest.number != beat_of) beat_at = now;
    beat_ns = beat;
    beat_of = view.newest.number;
    view.beat_age_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - beat_at).count();
    return view;
  }

  void run() {
    std::unique_lock lock(mutex);
    auto next = Clock::now();
    while (!stopping) {
      if (changed) next = Clock::now();
      changed = false;
      if (asked.empty() && Clock::now() < next) {
        wake.wait_until(lock, next);
        continue;
      }
      if (asked.empty() && every_ms == 0) {
        wake.wait(lock, [this] { return stopping || changed || !asked.empty(); });
        continue;
      }
      auto questions = std::move(asked);
      asked.clear();
      const uint64_t mine = leading;
      lock.unlock();
      if (mine > 0 && Clock::now() - touched_at >= std::chrono::milliseconds(450)) {
        (void)files.touch(mine).ok();  // whether it leads is another question
        touched_at = Clock::now();
      }
      const EpochView view = look();
      for (auto& done : questions) done(view);
      lock.lock();
      next = Clock::now() + std::chrono::milliseconds(every_ms);
      // Called under the lock, so that it has ended when the destructor returns.
      if (!stopping && on_view) on_view(view);
    }
  }
};

EpochWatch::EpochWatch(EpochFiles files, std::function<void(const EpochView&)> on_view)
    : shared_(std::make_shared<Shared>(std::move(files))) {
  shared_->on_view = std::move(on_view);
  std::thread([shared = shared_] { shared->run(); }).detach();
}

EpochWatch::~EpochWatch() {
  std::lock_guard lock(shared_->mutex);
  shared_->stopping = true;
  shared_->on_view = nullptr;
  shared_->asked.clear();
  shared_->wake.notify_all();
}

void EpochWatch::every(int64_t ms) {
  std::lock_guard lock(shared_->mutex);
  if (shared_->every_ms == ms) return;
  shared_->every_ms = ms;
  shared_->changed = ms > 0;
  shared_->wake.notify_all();
}

void EpochWatch::look(std::function<void(const EpochView&)> done) {
  std::lock_guard lock(shared_->mutex);
  shared_->asked.push_back(std::move(done));
  shared_->wake.notify_all();
}

void EpochWatch::lead(uint64_t number) {
  std::lock_guard lock(shared_->mutex);
  shared_->leading = number;
}

}  // namespace simplescale
