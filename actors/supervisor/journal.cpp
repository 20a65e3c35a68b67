#include "actors/supervisor/journal.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/sync_path.hpp"
#include "runtime/base/write_whole.hpp"

namespace simplescale {

namespace {

using namespace std::chrono_literals;

constexpr size_t kJobsMax = 100'000;  // in the queue; further lines are dropped
constexpr auto kSyncEvery = 50ms;     // the longest time that a mark waits for its batch
constexpr auto kRetryEvery = 200ms;   // after a write that failed

/// Creates or replaces a file. Fails also if close() fails: a network file system may report a full
/// disk only there.
bool write_file(const std::string& path, std::string_view text, bool durable) {
  const int fd = open_output(path, Output::replace);
  if (fd < 0) return false;
  size_t done = 0;
  const bool good = write_whole(fd, text, done) && (!durable || fdatasync(fd) == 0);
  const int error = errno;
  if (close(fd) != 0) return false;
  errno = error;
  return good;
}

}  // namespace

double wall_time_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) /
         1e3;
}

Journal::Journal(std::string folder, MayWrite may_write, int64_t patience_ms,
                 std::function<void()> written, std::optional<bool> appends)
    : patience_ms_(patience_ms),
      writer_(std::make_shared<Writer>(folder, std::move(may_write), std::move(written),
                                       appends.value_or(hosts_can_append(folder)))) {
  std::thread([writer = writer_] { writer->run(); }).detach();
}

Journal::~Journal() {
  std::unique_lock lock(writer_->mutex_);
  writer_->stopping_ = true;
  writer_->wake_.notify_all();
  if (writer_->ended_.wait_for(lock, std::chrono::milliseconds(patience_ms_),
                               [this] { return writer_->over_; }))
    return;
  writer_->stopped_ = true;  // the thread writes nothing if the file system answers later
  log::error("the run's last records could not be written to {} within {} ms", writer_->folder_,
             patience_ms_);
}

void Journal::append(const std::string& file, const nlohmann::json& line) {
  writer_->push({.kind = Kind::line, .file = file, .text = json_text(line) + "\n"});
}

void Journal::replace(const std::string& file, std::string text, bool durable) {
  std::lock_guard lock(writer_->mutex_);
  writer_->pages_[file] = {std::move(text), durable};
  writer_->wake_.notify_one();
}

void Journal::mark(uint64_t step) {
  writer_->mark(step);
}

void Journal::when_written(std::function<void(bool)> done) {
  writer_->push({.kind = Kind::call, .done = std::move(done)});
}

bool Journal::flush() {
  std::unique_lock lock(writer_->mutex_);
  Writer& writer = *writer_;
  writer.hurry_ = true;
  writer.wake_.notify_one();
  return writer.idle_.wait_for(lock, std::chrono::milliseconds(patience_ms_),
                               [&] { return !writer.hurry_ && !writer.writing_; }) &&
         !writer.failing_ && !writer.stopped_;
}

std::string Journal::trouble() const {
  std::lock_guard lock(writer_->mutex_);
  return writer_->trouble_;
}

void Journal::stop() {
  writer_->stopped_ = true;
}

// --- The thread ---

Journal::Writer::Writer(std::string folder, MayWrite may_write, std::function<void()> written,
                        bool appends)
    : folder_(std::move(folder)),
      // The name is unique: a supervisor that lost leadership never writes into the temporary file
      // of another one.
      temporary_(".new-" + std::to_string(getpid()) + "-" +
                 std::to_string(std::chrono::system_clock::now().time_since_epoch().count())),
      may_write_(std::move(may_write)),
      written_(std::move(written)),
      appends_(appends) {}

Journal::Writer::~Writer() {
  for (const auto& [name, file] : files_)
    if (file.fd >= 0) close(file.fd);
}

void Journal::Writer::mark(uint64_t step) {
  std::lock_guard lock(mutex_);
  if (step < newest_mark_) {
    ++branch_;
    marked_ = std::min(marked_.load(), step);
  }
  newest_mark_ = step;
  push_locked({Kind::mark, "", "", step, branch_});
}

void Journal::Writer::push(Job job) {
  std::lock_guard lock(mutex_);
  push_locked(std::move(job));
}

void Journal::Writer::push_locked(Job job) {
  if (job.kind == Kind::call) {
    job.lost = std::exchange(lost_, false);
  } else if (jobs_.size() >= kJobsMax) {
    if (!std::exchange(dropped_, true))
      log::error("cannot write to {} fast enough: {} lines wait, further lines are dropped",
                 folder_, kJobsMax);
    lost_ = lost_ || job.kind == Kind::line;
    return;
  }
  jobs_.push_back(std::move(job));
  wake_.notify_one();
}

/// Waits until there is work. Returns false when the journal ends.
bool Journal::Writer::wait(std::unique_lock<std::mutex>& lock) {
  const auto asked = [this] { return stopping_ || hurry_; };
  const auto work = [&] { return asked() || !jobs_.empty() || !pages_.empty(); };
  if (stopped_ || !unwritten())
    wake_.wait(lock, work);
  else if (failing_)
    wake_.wait_until(lock, tried_at_ + kRetryEvery, [this] { return hurry_; });
  else
    wake_.wait_until(lock, synced_at_ + kSyncEvery, work);
  return !stopping_ || !jobs_.empty() || !pages_.empty() || (unwritten() && !stopped_);
}

void Journal::Writer::run() {
  std::unique_lock lock(mutex_);
  while (wait(lock)) {
    const bool now = hurry_ || stopping_;
    std::deque<Job> jobs = take_jobs(now);
    for (auto& [name, page] : pages_) unwritten_pages_[name] = std::move(page);
    pages_.clear();
    writing_ = true;
    lock.unlock();
    accept(std::move(jobs));
    bool written = write_all();
    const bool urgent = now || failing_ || !calls_.empty();
    const bool due = urgent || Clock::now() - synced_at_ >= kSyncEvery;
    if (written && due) written = sync();
    if (!written || due) settle(written);
    if (written_ && written && std::exchange(news_, false)) written_();
    lock.lock();
    writing_ = false;
    hurry_ = hurry_ && !now;
    idle_.notify_all();
  }
  over_ = true;
  ended_.notify_all();
}

/// While the disk refuses lines, later lines wait in the queue, which is bounded. Calls are
/// answered.
std::deque<Journal::Job> Journal::Writer::take_jobs(bool all) {
  if (all || !failing_) return std::exchange(jobs_, {});
  std::deque<Job> calls;
  for (Job& job : jobs_)
    if (job.kind == Kind::call) {
      job.lost = true;
      calls.push_back(std::move(job));
    }
  std::erase_if(jobs_, [](const Job& job) { return job.kind == Kind::call; });
  return calls;
}

bool Journal::Writer::unwritten() const {
  return mark_ || !calls_.empty() || !unwritten_pages_.empty() ||
         std::ranges::any_of(files_, [](const auto& file) { return !file.second.text.empty(); });
}

void Journal::Writer::accept(std::deque<Job> jobs) {
  for (Job& job : jobs) {
    if (job.kind == Kind::line) files_[job.file].text += job.text;
    if (job.kind == Kind::mark) {
      end_steps();
      mark_ = std::move(job);
    }
    if (job.kind == Kind::call) calls_.push_back(std::move(job));
    news_ = news_ || job.kind == Kind::line;
  }
  end_steps();
}

void Journal::Writer::end_steps() {
  for (auto& [name, file] : files_)
    if (file.text.size() > (file.steps.empty() ? 0 : file.steps.back()))
      file.steps.push_back(file.text.size());
}

bool Journal::Writer::may_write() {
  const Result<bool> may = stopped_ ? false : may_write_ ? may_write_() : true;
  if (!may.ok()) return failed("control", may.status().message());  // LEAD-1: asked again later
  if (!*may) stopped_ = true;
  return !stopped_;
}

/// Writes all lines and pages that are not written yet. The other files wait for events.jsonl: no
/// file has a line that names a generation before the event that began the generation. Lines come
/// before pages, so that no reader finds the page of the run's end before the event of the end.
bool Journal::Writer::write_all() {
  const auto events = files_.find("events.jsonl");
  bool good = events == files_.end() || write_lines(events->first, events->second);
  if (good)
    for (auto& [name, file] : files_) good = write_lines(name, file) && good;
  std::erase_if(unwritten_pages_,
                [&](const auto& entry) { return write_page(entry.first, entry.second); });
  return good && unwritten_pages_.empty() && !stopped_;
}

/// Opens a line file. Reads its end before it asks may_write(): if this process still leads then,
/// no successor has written at or after that position.
bool Journal::Writer::open_lines(const std::string& name, LineFile& file) {
  file.fd = open_output(folder_ + "/" + name, appends_ ? Output::append : Output::keep);
  if (file.fd < 0) return failed(name, std::strerror(errno));
  const int64_t end = lseek(file.fd, 0, SEEK_END);
  Status good = end < 0 ? system_error("cannot read the end of", name, errno) : Status();
  // Syncing a new file does not make its name durable, so sync the folder.
  if (end == 0) good = sync_path(folder_);
  if (!good.ok()) {
    close(std::exchange(file.fd, -1));
    return failed(name, good.message());
  }
  if (file.begin < 0) file.begin = end;
  return true;
}

/// Finds out how much was written: a network file system may write a part and still report an
/// error. A line that follows half a line would be unreadable.
bool Journal::Writer::find_written(const std::string& name, LineFile& file, size_t end) {
  const auto found =
      bytes_appended(folder_ + "/" + name, std::string_view(file.text).substr(0, end), file.written,
                     [this] { return may_write(); });
  if (!found.ok()) return failed(name, found.status().message());
  file.written = *found;
  file.unsure = false;
  file.begin = lseek(file.fd, 0, SEEK_END) - static_cast<int64_t>(file.written);
  return true;
}

/// The end of the piece that the next write takes: whole lines of one step, at most
/// kRecordsWriteMax bytes unless a line is longer. A supervisor that lost leadership and wakes in
/// the middle of a write may spoil one line. If lines of later steps followed in the same write,
/// they would hide that this step is missing.
size_t Journal::Writer::piece_end(const LineFile& file) {
  const size_t begin = file.written, step = *std::ranges::upper_bound(file.steps, begin);
  if (step - begin <= kRecordsWriteMax) return step;
  const size_t before = file.text.rfind('\n', begin + kRecordsWriteMax - 1);
  if (before != std::string::npos && before >= begin) return before + 1;
  return file.text.find('\n', begin) + 1;
}

bool Journal::Writer::write_lines(const std::string& name, LineFile& file) {
  while (file.written < file.text.size()) {
    if (file.fd < 0 && !open_lines(name, file)) return false;
    if (!may_write()) return false;  // LEAD-1: asked before each write, which is bounded
    const size_t end = piece_end(file);
    // Keep the unsynced bytes small enough for the gap that a successor leaves.
    if (!appends_ && file.written > 0 && end > kRecordsWriteMax) {
      if (!sync_lines(name, file)) return false;
      continue;
    }
    // A supervisor that lost leadership may have left half a line when it woke in the middle of a
    // write.
    if (appends_ && lseek(file.fd, 0, SEEK_END) != file.begin + static_cast<int64_t>(file.written))
      file.unsure = true;
    if (file.unsure && appends_ && !find_written(name, file, end)) return false;
    // A write may succeed in part, as on a full disk. The next attempt continues after that part,
    // so that no half line stays in the file.
    if (!write_whole(file.fd, std::string_view(file.text).substr(0, end), file.written,
                     file.begin)) {
      file.unsure = true;
      return failed(name, std::strerror(errno));
    }
  }
  return true;
}

bool Journal::Writer::write_page(const std::string& name, const Page& page) {
  if (!may_write()) return false;
  const std::string path = folder_ + "/" + name, temporary = path + temporary_;
  if (!write_file(temporary, page.text, page.durable)) {
    (void)failed(name, std::strerror(errno));
    unlink(temporary.c_str());
    return false;
  }
  // LEAD-1: ask after the sync, because a successor may take over during it.
  if (!may_write()) {
    unlink(temporary.c_str());
    return false;
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return failed(name, std::strerror(errno));
  if (!page.durable) return true;
  const Status synced = sync_path(path.substr(0, path.rfind('/')));
  return synced.ok() || failed(name, synced.message());
}

bool Journal::Writer::sync() {
  synced_at_ = Clock::now();
  bool good = true;
  for (auto& [name, file] : files_) good = (file.text.empty() || sync_lines(name, file)) && good;
  return good;
}

/// Syncs the lines that were written. If that fails, the lines since the last sync may be lost.
/// They are written again, and readers ignore lines that are there twice.
bool Journal::Writer::sync_lines(const std::string& name, LineFile& file) {
  if (fdatasync(file.fd) == 0 || errno == EINVAL) {  // EINVAL: it cannot be synced, like a pipe
    file.text.erase(0, file.written);
    std::erase_if(file.steps, [&](size_t end) { return end <= file.written; });
    for (size_t& end : file.steps) end -= file.written;
    file.begin += static_cast<int64_t>(std::exchange(file.written, 0));
    return true;
  }
  (void)failed(name, std::strerror(errno));
  file.written = 0;
  close(std::exchange(file.fd, -1));
  return false;
}

void Journal::Writer::settle(bool written) {
  tried_at_ = Clock::now();
  // LEAD-1: a line written after a successor has looked at the file's end may be spoiled, so ask
  // again.
  written = written && may_write();
  failing_ = !written && !stopped_;
  if (written) {
    std::lock_guard lock(mutex_);
    trouble_.clear();
  }
  if (written && mark_) {
    const Job mark = *std::exchange(mark_, std::nullopt);
    std::lock_guard lock(mutex_);
    if (mark.branch == branch_) marked_ = mark.step;
  }
  for (Job& call : std::exchange(calls_, {})) call.done(written && !call.lost);
  if (!stopped_) return;
  for (auto& [name, file] : files_) file = {file.fd};  // drop the lines
  unwritten_pages_.clear();
  mark_.reset();
}

/// Logs the first failure. Returns false.
bool Journal::Writer::failed(const std::string& file, const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    trouble_ = file + ": " + why;
  }
  if (!std::exchange(complained_, true))
    log::error(
        "cannot write {}/{}: {}; training continues; what is not written is tried again, and no "
        "checkpoint is published meanwhile",
        folder_, file, why);
  return false;
}

}  // namespace simplescale
