#include "actors/job/journal.hpp"

#include <chrono>
#include <cmath>
#include <filesystem>

#include "runtime/base/log.hpp"

namespace simplescale {

namespace {
constexpr size_t kJobsMax = 100'000;  // beyond that lines are dropped, and it is said
}

double wall_time_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) /
         1e3;
}

Journal::Journal(std::string folder) : folder_(std::move(folder)), thread_([this] { run(); }) {}

Journal::~Journal() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Journal::append(const std::string& file, const nlohmann::json& line) {
  std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::lock_guard lock(mutex_);
  if (jobs_.size() < kJobsMax) jobs_.push_back({file, std::move(text), false});
  wake_.notify_one();
}

void Journal::replace(const std::string& file, std::string text) {
  std::lock_guard lock(mutex_);
  for (Job& job : jobs_) {  // an older page nobody has seen yet is not needed any more
    if (!job.whole || job.file != file) continue;
    job.text = std::move(text);
    return;
  }
  jobs_.push_back({file, std::move(text), true});
  wake_.notify_one();
}

void Journal::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::deque<Job> jobs;
    jobs.swap(jobs_);
    lock.unlock();
    for (const Job& job : jobs) write(job);
    for (auto& [name, file] : files_) file.flush();
    lock.lock();
  }
}

void Journal::write(const Job& job) {
  const std::string path = folder_ + "/" + job.file;
  bool good;
  if (job.whole) {
    const std::string temporary = path + ".new";
    std::ofstream file(temporary, std::ios::trunc);
    good = static_cast<bool>(file << job.text << std::flush);
    std::error_code error;
    if (good) std::filesystem::rename(temporary, path, error);
    good = good && !error;
  } else {
    std::ofstream& file = files_[job.file];
    if (!file.is_open()) file.open(path, std::ios::app);
    good = static_cast<bool>(file << job.text);
    if (!good) file.clear();
  }
  if (!good && !complained_) {
    complained_ = true;
    log::error(
        "cannot write {}: disk full or folder gone; training goes on, the run's records have a gap",
        path);
  }
}

}  // namespace simplescale
