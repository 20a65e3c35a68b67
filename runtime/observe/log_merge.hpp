// Reads the log files of many processes as one log, ordered by time stamp, while the files grow and
// are rotated (n1.log.1 is the older part of n1.log). Blocks on the disk; one thread.
//
// A line without a stamp belongs to the line before it in its file. The lines of a file keep their
// order even if their stamps decrease, because a clock may have been set back.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace simplescale {

/// A line with a stamp and the lines without one that follow it.
struct LogRecord {
  std::string stamp;       // "2026-11-21T06:48:27.123"; "": before the first stamp of its file
  std::string text;        // whole lines
  bool continued = false;  // continues the record before it in its file, which was still growing
};

/// The stamp at the beginning of a line, or "".
std::string_view stamp_of(std::string_view line);

/// The level that a log line names: "info", "warning", ...; "" for lines of other programs.
std::string_view level_of(std::string_view line);
/// 1: debug and less, 2: info and lines without a level, 3: warning, 4: error, critical.
int severity_of(std::string_view level);

/// Splits the contents of a file into records; the bytes may come in pieces of any size.
class LogSplitter {
 public:
  void add(std::string_view bytes);
  /// Completes the last record with the whole lines so far. half_line: also with an unfinished
  /// line.
  void flush(bool half_line);
  std::deque<LogRecord> records;  // complete ones; the caller takes them out

 private:
  void add_line(std::string_view line);
  std::string partial_;     // the unfinished line
  LogRecord record_;        // the unfinished record
  std::string last_stamp_;  // the highest stamp of the file so far
};

/// True if a log file is one of those that `wanted` names:
///   ""              all
///   "n1"            those of node n1: its agent, trainers and supervisor
///   "n1.0"          that of trainer n1.0
///   "supervisor"    those of all supervisors
///   "NAME"          NAME.log or NAME.out
bool log_selected(const std::string& file_name, const std::string& wanted);

/// Merges the log files of a folder.
class LogMerger {
 public:
  /// name: of the file, without its suffix. Returns false to stop.
  using Use = std::function<bool(const std::string& name, const LogRecord& record)>;
  LogMerger(std::string folder, std::string wanted)
      : folder_(std::move(folder)), wanted_(std::move(wanted)) {}
  ~LogMerger();
  LogMerger(const LogMerger&) = delete;
  LogMerger& operator=(const LogMerger&) = delete;
  /// Calls `use` for every record that was added since the last call, in order. more: another call
  /// will follow, so an unfinished last line is left for it.
  void read(bool more, const Use& use);
  /// Names of the files found so far: "n1", "n1.0", "supervisor-n0".
  std::vector<std::string> names() const;

 private:
  struct Source {
    std::string path;
    int fd = -1;
    uint64_t offset = 0;
    std::deque<int> older;  // rotated files to read first, each from its file position on
    LogSplitter splitter;
  };
  void look_for_files();
  static bool fill(Source& source);
  const std::string folder_, wanted_;
  std::map<std::string, Source> sources_;
};

}  // namespace simplescale
