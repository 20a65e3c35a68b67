// The log files of many processes read as one, in the order of their time stamps, while they grow
// and are rotated (n1.log.1 is what n1.log held before). Blocks on the disk; one thread.
//
// A line without a stamp belongs to the line before it in its file. The lines of a file stay in
// their order, whatever their stamps say: a clock may have been set back.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace simplescale {

/// A line with a stamp and those that belong to it.
struct LogRecord {
  std::string stamp;       // "2026-11-21T06:48:27.123"; "": before the first one of its file
  std::string text;        // whole lines
  bool continued = false;  // its beginning was told before: it was still growing
};

/// The stamp that a line of ours begins with, or "".
std::string_view stamp_of(std::string_view line);

/// Cuts what a file holds into records, however the bytes arrive.
class LogSplitter {
 public:
  void add(std::string_view bytes);
  /// There is no more for now: what there is of the last record counts, in whole lines.
  /// half_line: also an unfinished line does.
  void flush(bool half_line);
  std::deque<LogRecord> records;  // that are ready

 private:
  void add_line(std::string_view line);
  std::string partial_;     // a line in the making
  LogRecord record_;        // the same of a record
  std::string last_stamp_;  // the highest of the file so far
};

/// Which log files somebody means: "" all, "n1" its agent, trainers and supervisor, "n1.0",
/// "supervisor", or a file's own name without ".log".
bool log_selected(const std::string& file_name, const std::string& wanted);

/// Merges the files of a folder of logs.
class LogMerger {
 public:
  /// Returns whether to go on.
  using Use = std::function<bool(const std::string& name, const LogRecord& record)>;
  LogMerger(std::string folder, std::string wanted)
      : folder_(std::move(folder)), wanted_(std::move(wanted)) {}
  ~LogMerger();
  LogMerger(const LogMerger&) = delete;
  LogMerger& operator=(const LogMerger&) = delete;
  /// Tells everything that has been added since the last call, in order. more: another call will
  /// follow, so an unfinished last line is left to it.
  void read(bool more, const Use& use);
  /// Names of the sources found so far: "n1", "n1.0", "supervisor-n0".
  std::vector<std::string> names() const;

 private:
  struct Source {
    std::string path;
    int fd = -1;
    uint64_t offset = 0;
    std::deque<int> older;  // rotated files that are to be read before, each from its position on
    LogSplitter splitter;
  };
  void look_for_files();
  static bool fill(Source& source);
  const std::string folder_, wanted_;
  std::map<std::string, Source> sources_;
};

}  // namespace simplescale
