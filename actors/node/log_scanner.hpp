// Reads the log files of a node's processes while they are written, matches their lines against the
// log rules (runtime/observe/log_rules.hpp), and rotates the files. A thread of its own does all
// this, so a slow file system delays no other part of the agent.
//
// Bounds: at most bytes_per_scan_max of a file per scan (beyond that the scanner skips to the
// newest bytes), and one finding per rule, file and minute.
//
// Of this program's own log lines, the scanner matches only a trainer's errors. Its other lines
// quote events of other processes, which the supervisor learns without the log.
//
// Rotation: writers hold the file open, so it cannot be renamed. The scanner copies the beginning
// of a long file to FILE.1, which replaces an older FILE.1, and cuts it off. No byte is lost, but a
// line may begin in FILE.1 and end in FILE. ext4 and XFS can cut a file's beginning. On other file
// systems, as NFS, the scanner copies the whole file and truncates it: bytes written between the
// two are lost.
#pragma once

#include <caf/allowed_unsafe_message_type.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/observe/log_rules.hpp"

namespace simplescale {

struct LogFinding {
  std::string source;  // trainer "n1.0", process "n1.p2", or node (its agent, the kernel, Slurm)
  std::string file;    // name in the run's logs folder, or "kernel"
  uint64_t line = 0;   // number in the file, from 1; 0: unknown, because lines were skipped
  std::string text;    // the line, at most 400 bytes
  std::string rule, severity, action, hint;
  bool root = false;  // the rule names the cause of an incident, not a consequence
};

/// The pid that a line of the kernel's log names; nothing if it names none.
std::optional<int64_t> process_in(const std::string& line);

struct LogScannerOptions {
  std::string folder;  // the run's logs
  std::string node;    // "n1": its files are n1.log, n1.*.log, supervisor-n1.log
  std::string batch;   // Slurm's log file, also scanned; "": none
  std::shared_ptr<const LogRules> rules;
  uint64_t file_bytes_max = 64 << 20;     // a longer file is rotated
  std::string kernel_log = "/dev/kmsg";   // "": not read
  std::function<void(LogFinding)> found;  // called on the scanner's thread
  std::chrono::milliseconds scan_interval{250};
  uint64_t bytes_per_scan_max = 1 << 20;  // of a file
};

class LogScanner {
 public:
  /// Starts the thread. Ignores the lines that the files already have.
  explicit LogScanner(LogScannerOptions options);
  ~LogScanner();
  LogScanner(const LogScanner&) = delete;
  LogScanner& operator=(const LogScanner&) = delete;
  /// Scans at once. Any thread.
  void scan_now();
  /// Treats `line` like a line of the kernel's log. Does nothing if the scanner reads that log,
  /// which then has the line. Any thread.
  void add_kernel_line(std::string line);

 private:
  using Clock = std::chrono::steady_clock;
  struct File {
    std::string path, name, source;
    enum class Kind : unsigned char { trainer, agent, supervisor, batch } kind = Kind::trainer;
    int fd = -1;
    uint64_t offset = 0;                                // the file has been read up to here
    uint64_t line = 0;                                  // number of the last whole line read
    bool skipped = false;                               // lines were skipped: `line` is unknown
    std::string partial;                                // the line that is still incomplete
    std::map<std::string, Clock::time_point> reported;  // when each rule was reported last
  };
  void run();
  void open_new_files(bool at_start);
  void read(File& file);
  void read_kernel_log();
  void split_lines(File& file, std::string_view bytes);
  static bool is_relevant(const std::string& line, File::Kind kind);
  void match_rules(File& file, const std::string& line);
  void rotate(File& file);

  const LogScannerOptions options_;
  std::map<std::string, File> files_;  // by name
  File kernel_;
  std::mutex mutex_;
  std::vector<std::string> kernel_lines_;
  std::condition_variable wake_;
  bool stopping_ = false, scan_now_ = false;
  std::thread thread_;
};

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::LogFinding)
