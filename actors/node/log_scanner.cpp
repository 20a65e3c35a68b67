#include "actors/node/log_scanner.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "runtime/base/log.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/observe/log_merge.hpp"

namespace simplescale {

namespace {

constexpr size_t kLineBytesMax = 4096;                  // the rest of a longer line is ignored
constexpr size_t kTextBytesMax = 400;                   // of LogFinding::text
constexpr auto kRepeatAfter = std::chrono::minutes(1);  // for the same rule and file
constexpr int kKernelRecordsMax = 200;                  // per scan

/// Copies the whole file, including what is written to it meanwhile. Returns the number of bytes;
/// nothing if writing fails.
std::optional<uint64_t> copy_all(int from, int to) {
  off_t at = 0;
  ssize_t count = 0;
  while ((count = sendfile(to, from, &at, 1 << 20)) > 0) {
  }
  return count == 0 ? std::optional(static_cast<uint64_t>(at)) : std::nullopt;
}

/// Removes whole blocks of the first `copied` bytes from the beginning of a file. Does not disturb
/// processes that append to the file. Returns the number of bytes removed; 0 if the file system
/// cannot do this (ext4 and XFS can), or if the file is too short.
uint64_t cut_beginning(int file, uint64_t copied) {
  struct stat info {};
  if (fstat(file, &info) != 0 || info.st_blksize <= 0) return 0;
  const auto block = static_cast<uint64_t>(info.st_blksize);
  const uint64_t bytes = copied > 0 ? (copied - 1) / block * block : 0;  // never all bytes
  if (bytes == 0) return 0;
  const bool cut = fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, static_cast<off_t>(bytes)) == 0;
  return cut ? bytes : 0;
}

/// Counts the newlines in the first `bytes` of a file.
uint64_t lines_before(int file, uint64_t bytes) {
  std::array<char, 16 << 10> chunk;
  uint64_t lines = 0;
  for (uint64_t at = 0; at < bytes;) {
    const ssize_t got = pread(file, chunk.data(), std::min<uint64_t>(chunk.size(), bytes - at),
                              static_cast<off_t>(at));
    if (got <= 0) break;
    lines += static_cast<uint64_t>(std::count(chunk.begin(), chunk.begin() + got, '\n'));
    at += static_cast<uint64_t>(got);
  }
  return lines;
}

}  // namespace

std::optional<int64_t> process_in(const std::string& line) {
  // "Killed process 12 (name)", "name[12]: segfault", "pid=12,", "task=name,pid=12,uid=0"
  for (const std::string_view before : {"process ", "[", "pid="})
    for (size_t at = line.find(before); at != std::string::npos; at = line.find(before, at + 1)) {
      int64_t number = 0;
      const char* begin = line.data() + at + before.size();
      const auto end = std::from_chars(begin, line.data() + line.size(), number);
      if (end.ec != std::errc() || number <= 0) continue;
      if (before != "[" || (*end.ptr == ']' && at > 0 && line[at - 1] != ' ')) return number;
    }
  return std::nullopt;
}

bool LogScanner::is_relevant(const std::string& line, File::Kind kind) {
  using Kind = File::Kind;
  // Slurm's file has the output of srun, slurmstepd and the shell. It also has this program's
  // output, which quotes events of other processes.
  if (kind == Kind::batch && (line.starts_with("incident ") || line.starts_with("simplescale: ")))
    return false;
  // The project's own lines: "<stamp> <process> <level> ...".
  const std::string_view stamp = stamp_of(line);
  if (stamp.empty()) return true;
  const size_t name = stamp.size() + 1;
  const size_t level = line.find(' ', name);
  return kind == Kind::trainer && level != std::string::npos &&
         line.compare(level + 1, 6, "error ") == 0;
}

LogScanner::LogScanner(LogScannerOptions options) : options_(std::move(options)) {
  kernel_.name = "kernel";
  kernel_.source = options_.node;
  if (!options_.kernel_log.empty())
    kernel_.fd = open(options_.kernel_log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (kernel_.fd >= 0) lseek(kernel_.fd, 0, SEEK_END);
  open_new_files(true);
  thread_ = std::thread([this] { run(); });
}

LogScanner::~LogScanner() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  for (auto& [name, file] : files_) close(file.fd);
  if (kernel_.fd >= 0) close(kernel_.fd);
}

void LogScanner::scan_now() {
  {
    std::lock_guard lock(mutex_);
    scan_now_ = true;
  }
  wake_.notify_one();
}

void LogScanner::add_kernel_line(std::string line) {
  {
    std::lock_guard lock(mutex_);
    kernel_lines_.push_back(std::move(line));
    scan_now_ = true;
  }
  wake_.notify_one();
}

void LogScanner::run() {
  pthread_setname_np(pthread_self(), "log scanner");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, options_.scan_interval, [this] { return stopping_ || scan_now_; });
    scan_now_ = false;
    const auto lines = std::exchange(kernel_lines_, {});
    lock.unlock();
    if (kernel_.fd < 0)
      for (const std::string& line : lines) match_rules(kernel_, line);
    open_new_files(false);
    for (auto& [name, file] : files_) read(file);
    read_kernel_log();
    lock.lock();
  }
}

void LogScanner::open_new_files(bool at_start) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options_.folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool batch = !options_.batch.empty() && name == options_.batch;
    if ((!batch && !log_selected(name, options_.node)) || files_.contains(name)) continue;
    File file;
    file.path = entry.path().string();
    file.name = name;
    file.source = batch ? options_.node : name.substr(0, name.size() - 4);
    file.kind = batch                                    ? File::Kind::batch
                : file.source.starts_with("supervisor-") ? File::Kind::supervisor
                : file.source == options_.node           ? File::Kind::agent
                                                         : File::Kind::trainer;
    file.fd = open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file.fd < 0) continue;
    if (at_start) {
      struct stat info {};
      if (fstat(file.fd, &info) == 0) file.offset = static_cast<uint64_t>(info.st_size);
      file.skipped = file.offset > 0;
    }
    files_.emplace(name, std::move(file));
  }
}

void LogScanner::read(File& file) {
  struct stat info {};
  if (fstat(file.fd, &info) != 0) return;
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size < file.offset) file.offset = file.line = 0, file.partial.clear(), file.skipped = false;
  if (size - file.offset > options_.bytes_per_scan_max) {  // too much to read: keep the newest
    file.offset = size - options_.bytes_per_scan_max;
    file.skipped = true;
    file.partial.clear();
  }
  std::array<char, 16 << 10> chunk;
  while (file.offset < size) {
    const ssize_t got =
        pread(file.fd, chunk.data(), std::min<uint64_t>(chunk.size(), size - file.offset),
              static_cast<off_t>(file.offset));
    if (got <= 0) return;
    file.offset += static_cast<uint64_t>(got);
    split_lines(file, {chunk.data(), static_cast<size_t>(got)});
  }
  if (size > options_.file_bytes_max) rotate(file);
}

void LogScanner::split_lines(File& file, std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    if (file.partial.size() < kLineBytesMax)
      file.partial += bytes.substr(0, std::min(end, kLineBytesMax - file.partial.size()));
    if (end == bytes.size()) return;
    ++file.line;
    // The supervisor's log quotes every event; the scanner reads it only to rotate it.
    if (file.kind != File::Kind::supervisor) match_rules(file, file.partial);
    file.partial.clear();
    bytes.remove_prefix(end + 1);
  }
}

void LogScanner::match_rules(File& file, const std::string& line) {
  if (line.empty() || !is_relevant(line, file.kind)) return;
  const LogRule* rule = options_.rules->match(line, &file == &kernel_);
  if (!rule) return;
  const auto now = Clock::now();
  const auto last = file.reported.find(rule->name);
  if (last != file.reported.end() && now - last->second < kRepeatAfter) return;
  file.reported[rule->name] = now;
  options_.found({file.source, file.name, file.skipped ? 0 : file.line,
                  line.substr(0, kTextBytesMax), rule->name, rule->severity, rule->action,
                  rule->hint, rule->root});
}

/// Reads records "priority,sequence,time,flags;text\n key=value\n". read() fails with EPIPE if the
/// next record has been overwritten; the next read() then returns the oldest record left.
void LogScanner::read_kernel_log() {
  if (kernel_.fd < 0) return;
  std::array<char, 8192> record;
  for (int i = 0; i < kKernelRecordsMax; ++i) {
    const ssize_t got = ::read(kernel_.fd, record.data(), record.size());
    if (got < 0 && errno == EPIPE) continue;
    if (got <= 0) return;
    const std::string_view text(record.data(), static_cast<size_t>(got));
    const size_t begin = text.find(';');
    if (begin == std::string_view::npos) continue;
    // The kernel's own lines have facility 0. Lines that programs write have another one.
    if (std::strtoul(record.data(), nullptr, 10) >> 3 != 0) continue;
    const size_t end = std::min(text.find('\n', begin), text.size());
    match_rules(kernel_, std::string(text.substr(begin + 1, end - begin - 1)));
  }
}

void LogScanner::rotate(File& file) {
  const std::string older = file.path + ".1", part = older + ".part";
  const int to = open_output(part, Output::replace);
  const int writable = open(file.path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
  const auto copied = to >= 0 && writable >= 0 ? copy_all(file.fd, to) : std::nullopt;
  uint64_t cut = 0;
  bool done = false;
  if (copied) {
    cut = cut_beginning(writable, *copied);
    done = cut > 0 ? ftruncate(to, static_cast<off_t>(cut)) == 0 : ftruncate(writable, 0) == 0;
    done = std::rename(part.c_str(), older.c_str()) == 0 && done;
  }
  const int error = errno;
  if (writable >= 0) close(writable);
  if (done) {  // bytes written after the last scan are in the older file now: scan them there
    std::array<char, 16 << 10> chunk;
    ssize_t got = 0;
    const uint64_t from = file.offset;
    for (uint64_t at = from;
         at < from + options_.bytes_per_scan_max &&
         (got = pread(to, chunk.data(), chunk.size(), static_cast<off_t>(at))) > 0;
         at += static_cast<uint64_t>(got))
      split_lines(file, {chunk.data(), static_cast<size_t>(got)});
    file.offset = cut > 0 && from > cut ? from - cut : 0;
    file.line = lines_before(file.fd, file.offset);
    if (cut == 0) file.partial.clear();
  }
  if (done) file.skipped = false;
  if (to >= 0) close(to);
  if (done) return;
  unlink(part.c_str());
  if (file.reported.emplace("rotation", Clock::now()).second)
    log::warn("cannot rotate {}: {}", file.path, std::strerror(error));
}

}  // namespace simplescale
