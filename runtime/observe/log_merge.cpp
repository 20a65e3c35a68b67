#include "runtime/observe/log_merge.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace simplescale {

namespace {

constexpr size_t kChunkBytes = 64 << 10;
constexpr size_t kRecordBytesMax = 256 << 10;  // a longer one is returned in parts
constexpr std::string_view kStamp = "0000-00-00T00:00:00.000";

int open_to_read(const std::string& path) {
  std::error_code ignored;  // a pipe may block, and a device may have no end
  if (!std::filesystem::is_regular_file(path, ignored)) return -1;
  return open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

uint64_t size_of(int fd) {
  struct stat info {};
  return fd >= 0 && fstat(fd, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

}  // namespace

std::string_view stamp_of(std::string_view line) {
  if (line.size() < kStamp.size()) return {};
  for (size_t i = 0; i < kStamp.size(); ++i) {
    const bool digit = line[i] >= '0' && line[i] <= '9';
    if (kStamp[i] == '0' ? !digit : line[i] != kStamp[i]) return {};
  }
  return line.substr(0, kStamp.size());
}

std::string_view level_of(std::string_view line) {
  if (stamp_of(line).empty()) return {};
  const size_t name = line.find(' '), level = line.find(' ', name + 1);  // STAMP NAME LEVEL TEXT
  if (name == std::string_view::npos || level == std::string_view::npos) return {};
  const std::string_view rest = line.substr(level + 1);
  return rest.substr(0, std::min(rest.find(' '), rest.find('\n')));
}

int severity_of(std::string_view level) {
  if (level == "debug" || level == "trace") return 1;
  if (level == "warning") return 3;
  return level == "error" || level == "critical" ? 4 : 2;
}

void LogSplitter::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      partial_ += bytes;
      if (partial_.size() > kRecordBytesMax) flush(true);
      return;
    }
    if (partial_.empty()) {
      add_line(bytes.substr(0, end + 1));
    } else {
      partial_ += bytes.substr(0, end + 1);
      const std::string line = std::move(partial_);
      partial_.clear();
      add_line(line);
    }
    bytes.remove_prefix(end + 1);
  }
}

void LogSplitter::add_line(std::string_view line) {
  const std::string_view stamp = stamp_of(line);
  if (!stamp.empty() || record_.text.size() + line.size() > kRecordBytesMax) flush(false);
  if (!stamp.empty()) {
    if (last_stamp_ < stamp) last_stamp_ = stamp;
    record_.continued = false;
  }
  record_.stamp = last_stamp_;
  record_.text += line;
}

void LogSplitter::flush(bool half_line) {
  if (half_line && !partial_.empty()) {
    const std::string line = std::move(partial_) + "\n";
    partial_.clear();
    add_line(line);
  }
  if (record_.text.empty()) return;
  records.push_back(std::move(record_));
  record_ = {.stamp = last_stamp_, .text = "", .continued = true};
}

bool log_selected(const std::string& file_name, const std::string& wanted) {
  if (!file_name.ends_with(".log") && !file_name.ends_with(".out")) return false;
  const std::string name = file_name.substr(0, file_name.size() - 4);
  if (wanted.empty() || name == wanted) return true;
  if (wanted == "supervisor") return name.starts_with("supervisor-");
  const bool node = wanted.find('.') == std::string::npos;
  return node && (name.starts_with(wanted + ".") || name == "supervisor-" + wanted);
}

LogMerger::~LogMerger() {
  for (auto& [name, source] : sources_) {
    if (source.fd >= 0) close(source.fd);
    for (int fd : source.older) close(fd);
  }
}

std::vector<std::string> LogMerger::names() const {
  std::vector<std::string> list;
  for (const auto& [name, source] : sources_) list.push_back(name);
  return list;
}

void LogMerger::look_for_files() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string file = entry.path().filename().string();
    if (!log_selected(file, wanted_)) continue;
    const std::string name = file.substr(0, file.size() - 4);
    if (sources_.contains(name)) continue;
    const int fd = open_to_read(entry.path().string());
    if (fd < 0) continue;
    Source source;
    source.path = entry.path().string();
    source.fd = fd;
    if (const int older = open_to_read(source.path + ".1"); older >= 0)
      source.older.push_back(older);
    sources_.emplace(name, std::move(source));
  }
}

/// Reads a chunk of a source. False at its end.
bool LogMerger::fill(Source& source) {
  std::array<char, kChunkBytes> chunk;
  while (!source.older.empty()) {
    const ssize_t got = ::read(source.older.front(), chunk.data(), chunk.size());
    if (got > 0) {
      source.splitter.add({chunk.data(), static_cast<size_t>(got)});
      return true;
    }
    close(source.older.front());
    source.older.pop_front();
  }
  if (size_of(source.fd) < source.offset) {  // rotated: its first part is in the older file now
    const int older = open_to_read(source.path + ".1");
    const uint64_t cut = size_of(older);
    if (older >= 0 && cut > source.offset &&
        lseek(older, static_cast<off_t>(source.offset), SEEK_SET) >= 0)
      source.older.push_back(older);
    else if (older >= 0)
      close(older);
    source.offset -= std::min(source.offset, older >= 0 ? cut : source.offset);
    if (source.offset > size_of(source.fd)) source.offset = 0;
    if (!source.older.empty()) return fill(source);
  }
  const ssize_t got =
      pread(source.fd, chunk.data(), chunk.size(), static_cast<off_t>(source.offset));
  if (got <= 0) return false;
  source.offset += static_cast<uint64_t>(got);
  source.splitter.add({chunk.data(), static_cast<size_t>(got)});
  return true;
}

void LogMerger::read(bool more, const Use& use) {
  look_for_files();
  while (true) {
    std::pair<const std::string, Source>* first = nullptr;
    for (auto& entry : sources_) {
      std::deque<LogRecord>& records = entry.second.splitter.records;
      while (records.empty() && fill(entry.second)) {
      }
      if (records.empty()) entry.second.splitter.flush(!more);
      if (records.empty()) continue;
      if (!first || records.front().stamp < first->second.splitter.records.front().stamp)
        first = &entry;
    }
    if (!first) return;
    std::deque<LogRecord>& records = first->second.splitter.records;
    const LogRecord record = std::move(records.front());
    records.pop_front();
    if (!use(first->first, record)) return;
  }
}

}  // namespace simplescale
