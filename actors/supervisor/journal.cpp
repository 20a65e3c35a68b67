#include "actors/supervisor/journal.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"

namespace simplescale {

namespace {
constexpr size_t kJobsMax = 100'000;  // in the queue; further lines are dropped
}

double wall_time_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) /
         1e3;
}

Journal::Journal(std::string folder, std::function<bool()> may_write, int64_t patience_ms,
                 std::function<void()> written)
    : patience_ms_(patience_ms),
      writer_(
          std::make_shared<Writer>(std::move(folder), std::move(may_write), std::move(written))) {
  std::thread([writer = writer_] { writer->run(); }).detach();
}

Journal::~Journal() {
  std::unique_lock lock(writer_->mutex_);
  writer_->stopping_ = true;
  writer_->wake_.notify_all();
  if (writer_->ended_.wait_for(lock, std::chrono::milliseconds(patience_ms_),
                               [this] { return writer_->over_; }))
    return;
  writer_->stopped_ = true;  // writes nothing if the file system answers later
  log::error("the run's last records could not be written to {}: it did not answer within {} ms",
             writer_->folder_, patience_ms_);
}

Journal::Writer::~Writer() {
  for (const auto& [name, fd] : files_) close(fd);
}

void Journal::Writer::push(Job job) {
  std::lock_guard lock(mutex_);
  if (job.kind == Kind::document)
    for (Job& queued : jobs_) {  // it replaces an older version that is not written yet
      if (queued.kind != Kind::document || queued.file != job.file) continue;
      queued.text = std::move(job.text);
      return;
    }
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

void Journal::append(const std::string& file, const nlohmann::json& line) {
  writer_->push({Kind::line, file, json_text(line) + "\n", 0});
}

void Journal::replace(const std::string& file, std::string text) {
  writer_->push({Kind::document, file, std::move(text), 0});
}

void Journal::mark(uint64_t step) {
  writer_->push({Kind::mark, "", "", step});
}

void Journal::when_written(std::function<void(bool)> done) {
  writer_->push({Kind::call, "", "", 0, std::move(done)});
}

bool Journal::flush() {
  std::unique_lock lock(writer_->mutex_);
  return writer_->idle_.wait_for(lock, std::chrono::milliseconds(patience_ms_),
                                 [this] { return writer_->jobs_.empty() && !writer_->writing_; });
}

void Journal::stop() {
  writer_->stopped_ = true;
}

void Journal::Writer::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) break;
    std::deque<Job> jobs;
    jobs.swap(jobs_);
    writing_ = true;
    lock.unlock();
    if (!stopped_ && may_write_ && !may_write_()) stopped_ = true;
    for (size_t i = 0; i < jobs.size() && !stopped_; ++i) {
      // Consecutive lines of the same file are written at once.
      const size_t first = i;
      while (jobs[i].kind == Kind::line && i + 1 < jobs.size() && jobs[i + 1].kind == Kind::line &&
             jobs[i + 1].file == jobs[i].file)
        jobs[first].text += jobs[++i].text;
      if (jobs[i].kind == Kind::call) {
        std::exchange(jobs[i].done, nullptr)(std::exchange(whole_, true) && !jobs[i].lost);
        continue;
      }
      if (write(jobs[first])) continue;
      whole_ = whole_ && jobs[i].kind != Kind::line;
      if (std::exchange(complained_, true)) continue;
      log::error("cannot write {}/{}: {}; training continues, the run's records have a gap",
                 folder_, jobs[i].file, std::strerror(errno));
    }
    for (const Job& job : jobs)
      if (job.kind == Kind::call && job.done && stopped_) job.done(false);
    if (written_ && !stopped_) written_();
    lock.lock();
    writing_ = false;
    idle_.notify_all();
  }
  over_ = true;
  ended_.notify_all();
}

bool Journal::Writer::write_lines(const std::string& file, const std::string& text) {
  auto found = files_.find(file);
  if (found == files_.end()) {
    const int fd =
        open((folder_ + "/" + file).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return false;
    found = files_.emplace(file, fd).first;
  }
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(found->second, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

bool Journal::Writer::write(const Job& job) {
  if (job.kind == Kind::mark) {
    marked_ = job.step;
    return true;
  }
  if (job.kind == Kind::line) return write_lines(job.file, job.text);
  // Not synced: a document that describes a running process is useless after the machine fails.
  const std::string path = folder_ + "/" + job.file, temporary = path + ".new";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  if (!(file << job.text << std::flush)) return false;
  return std::rename(temporary.c_str(), path.c_str()) == 0;
}

// --- Repair ---

namespace {

constexpr uint64_t kTailMax = 32 << 20;

/// The last kTailMax bytes of a file, without a partial last line.
struct Tail {
  std::string path, text;
  uint64_t begin = 0;  // offset of `text` in the file
  /// Shortens `text` to this many bytes, and the file accordingly.
  Status cut(size_t bytes) {
    text.resize(bytes);
    if (truncate(path.c_str(), static_cast<off_t>(begin + bytes)) == 0) return {};
    return system_error("cannot cut", path, errno);
  }
  /// Where the line begins that ends at `end`.
  size_t line_before(size_t end) const {
    if (end < 2) return 0;
    const size_t newline = text.rfind('\n', end - 2);
    return newline == std::string::npos ? 0 : newline + 1;
  }
  nlohmann::json line(size_t from, size_t end) const {
    return nlohmann::json::parse(text.begin() + static_cast<long>(from),
                                 text.begin() + static_cast<long>(end), nullptr, false);
  }
};

/// Also cuts a partial last line off the file. An empty Tail if there is no file.
Result<Tail> open_tail(const std::string& path) {
  Tail tail{path, "", 0};
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return tail;
    return system_error("cannot read", path, errno);
  }
  const auto size = static_cast<uint64_t>(lseek(fd, 0, SEEK_END));
  tail.begin = size > kTailMax ? size - kTailMax : 0;
  tail.text.resize(size - tail.begin);
  const ssize_t got = pread(fd, tail.text.data(), tail.text.size(), static_cast<off_t>(tail.begin));
  close(fd);
  if (got != static_cast<ssize_t>(tail.text.size()))
    return Status(Code::io, "cannot read the end of " + path);
  const size_t whole = tail.text.rfind('\n') + 1;  // npos + 1 = 0: no whole line
  if (whole < tail.text.size()) SS_RETURN_IF_ERROR(tail.cut(whole));
  return tail;
}

uint64_t number(const nlohmann::json& line, const char* key) {
  return line.is_object() && line.contains(key) && line[key].is_number_unsigned()
             ? line[key].get<uint64_t>()
             : 0;
}

/// The ledger lines of the newest step and generation.
struct LedgerStep {
  size_t begin = 0;  // offset in the tail's text
  uint64_t step = 0, generation = 0, samples = 0;
};

LedgerStep last_step(const Tail& ledger) {
  LedgerStep last{ledger.text.size()};
  while (last.begin > 0) {
    const size_t begin = ledger.line_before(last.begin);
    const nlohmann::json line = ledger.line(begin, last.begin);
    const uint64_t step = number(line, "step"), generation = number(line, "generation");
    const bool first = last.begin == ledger.text.size();
    if (!first && (step != last.step || generation != last.generation)) break;
    last.step = step;
    last.generation = generation;
    if (line.is_object() && line.contains("samples") && line["samples"].is_array())
      for (const auto& run : line["samples"])
        if (run.is_array() && run.size() == 2 && run[1].is_number_unsigned())
          last.samples += run[1].get<uint64_t>();
    last.begin = begin;
  }
  return last;
}

/// The number of the newest incident in events.jsonl.
uint64_t newest_incident(const Tail& events) {
  for (size_t end = events.text.size(); end > 0;) {
    const size_t begin = events.line_before(end);
    if (const uint64_t incident = number(events.line(begin, end), "incident")) return incident;
    end = begin;
  }
  return 0;
}

}  // namespace

Result<RecordsEnd> repair_records(const std::string& folder, bool ledger, uint64_t global_batch) {
  SS_ASSIGN(const Tail events, open_tail(folder + "/events.jsonl"));
  SS_ASSIGN(Tail metrics, open_tail(folder + "/metrics.jsonl"));
  SS_ASSIGN(Tail samples, open_tail(folder + "/ledger.jsonl"));
  RecordsEnd end;
  end.incidents = newest_incident(events);
  // A user may have removed the ledger of a run that has trained; metrics.jsonl counts then.
  const size_t newest = metrics.line_before(metrics.text.size());
  if (samples.text.empty() && number(metrics.line(newest, metrics.text.size()), "step") > 1)
    ledger = false;
  // At most one step is incomplete.
  for (int tries = 0; ledger && tries < 2 && !samples.text.empty() && !end.any; ++tries) {
    const LedgerStep last = last_step(samples);
    if (last.samples == global_batch)
      end = {true, last.step, last.generation, end.incidents};
    else
      SS_RETURN_IF_ERROR(samples.cut(last.begin));
  }
  while (!metrics.text.empty()) {
    const size_t begin = metrics.line_before(metrics.text.size());
    const nlohmann::json line = metrics.line(begin, metrics.text.size());
    const uint64_t step = number(line, "step");
    if (!ledger && !end.any) end = {true, step, number(line, "generation"), end.incidents};
    if (step <= end.step) break;
    SS_RETURN_IF_ERROR(metrics.cut(begin));
  }
  return end;
}

}  // namespace simplescale
