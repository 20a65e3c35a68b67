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
constexpr size_t kJobsMax = 100'000;  // beyond that lines are dropped, and it is said
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
  writer_->stopped_ = true;  // should the file system answer after all
  log::error("{} does not take the run's last records; leaving without them", writer_->folder_);
}

Journal::Writer::~Writer() {
  for (const auto& [name, fd] : files_) close(fd);
}

void Journal::Writer::push(Job job) {
  std::lock_guard lock(mutex_);
  if (job.kind == Kind::document)
    for (Job& queued : jobs_) {  // an older document nobody has seen yet is not needed any more
      if (queued.kind != Kind::document || queued.file != job.file) continue;
      queued.text = std::move(job.text);
      return;
    }
  if (job.kind == Kind::call) {
    job.lost = std::exchange(lost_, false);
  } else if (jobs_.size() >= kJobsMax) {
    if (!std::exchange(dropped_, true))
      log::error("the disk does not take {}: {} lines wait, further ones are dropped", folder_,
                 kJobsMax);
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
      // Neighbouring lines of a file go out in one write.
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
      log::error("cannot write {}/{}: {}; training goes on, the run's records have a gap", folder_,
                 jobs[i].file, std::strerror(errno));
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
  // A document that is lost with the machine is of no use to anybody: not synced.
  const std::string path = folder_ + "/" + job.file, temporary = path + ".new";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  if (!(file << job.text << std::flush)) return false;
  return std::rename(temporary.c_str(), path.c_str()) == 0;
}

// --- Mending ---

namespace {

constexpr uint64_t kTailMax = 32 << 20;

/// The end of a file in whole lines; half a last line is cut off the file.
struct Tail {
  std::string path, text;
  uint64_t begin = 0;  // of text in the file
  Status cut(size_t bytes) {
    text.resize(bytes);
    if (truncate(path.c_str(), static_cast<off_t>(begin + bytes)) == 0) return {};
    return Status(Code::io, "cannot cut " + path + ": " + std::strerror(errno));
  }
  /// Begin of the line that ends at `end`.
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

Result<Tail> open_tail(const std::string& path) {
  Tail tail{path, "", 0};
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return tail;
    return Status(Code::io, "cannot read " + path + ": " + std::strerror(errno));
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

}  // namespace

Result<RecordsEnd> mend_records(const std::string& folder, bool ledger, uint64_t global_batch) {
  SS_ASSIGN(Tail events, open_tail(folder + "/events.jsonl"));
  SS_ASSIGN(Tail metrics, open_tail(folder + "/metrics.jsonl"));
  RecordsEnd result;
  SS_ASSIGN(Tail tail, open_tail(folder + "/ledger.jsonl"));
  const size_t last = metrics.line_before(metrics.text.size());
  const bool begun = number(metrics.line(last, metrics.text.size()), "step") > 1;
  if (tail.text.empty() && begun) ledger = false;  // somebody took it away: metrics.jsonl stays
  if (ledger) {
    // The last lines of one step and generation: all its samples, or the step goes.
    for (int tries = 0; tries < 2 && !tail.text.empty() && !result.any; ++tries) {
      size_t from = tail.text.size(), end = from;
      uint64_t step = 0, generation = 0, samples = 0;
      while (end > 0) {
        const size_t begin = tail.line_before(end);
        const nlohmann::json line = tail.line(begin, end);
        if (from != tail.text.size() &&
            (number(line, "step") != step || number(line, "generation") != generation))
          break;
        step = number(line, "step");
        generation = number(line, "generation");
        if (line.is_object() && line.contains("samples") && line["samples"].is_array())
          for (const auto& run : line["samples"])
            if (run.is_array() && run.size() == 2 && run[1].is_number_unsigned())
              samples += run[1].get<uint64_t>();
        from = end = begin;
      }
      if (samples == global_batch) {
        result = {true, step, generation};
      } else {
        SS_RETURN_IF_ERROR(tail.cut(from));
      }
    }
  }
  for (size_t end = metrics.text.size(); end > 0;) {
    const size_t begin = metrics.line_before(end);
    const nlohmann::json line = metrics.line(begin, end);
    const uint64_t step = number(line, "step");
    if (!ledger && !result.any) result = {true, step, number(line, "generation")};
    if (step <= result.step) break;
    SS_RETURN_IF_ERROR(metrics.cut(begin));
    end = begin;
  }
  return result;
}

}  // namespace simplescale
