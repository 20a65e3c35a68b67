// Reads what a node's processes write into their log files, as it is written, holds it against the
// rules (runtime/observe/log_rules.hpp), and keeps the files from growing for ever. A thread of its
// own, so a slow file system delays nobody else.
//
// Bounded: so many bytes a look of a file (beyond that it skips to the newest), one finding a
// minute of a rule in a file. Our own lines below "error" are left out: the supervisor hears their
// news by itself, and they quote what happened elsewhere; so do all of ours in Slurm's file.
//
// Of a file that has grown too long, since writers hold it open, the beginning is copied to FILE.1
// and cut off; FILE.1 and FILE together are all that was written, a line may begin in one and end
// in the other. Where the file system cannot do that (NFS; ext4 and XFS can), the file is copied
// and emptied, and what is written in the moment between the two is lost.
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
  std::string source;  // "n1.0", a process "n1.p2", or the node: its agent, the kernel, Slurm
  std::string file;    // within the run's logs; "kernel"
  uint64_t line = 0;   // in it; 0: unknown, lines were skipped
  std::string text;    // of it, cut
  std::string rule, severity, action, hint;
  bool root = false;
};

/// The process that a line of the kernel's log is about, if it names one.
std::optional<int64_t> process_in(const std::string& kernel_line);

struct LogScannerOptions {
  std::string folder;  // the run's logs
  std::string node;    // "n1": its files are n1.log, n1.*.log, supervisor-n1.log
  std::string batch;   // and this one: what Slurm, srun and the batch script say; "": none
  std::shared_ptr<const LogRules> rules;
  uint64_t file_bytes_max = 64 << 20;
  std::string kernel_log = "/dev/kmsg";   // "": not read
  std::function<void(LogFinding)> found;  // on the thread
  std::chrono::milliseconds every{250};   // between two looks
  uint64_t bytes_per_look_max = 1 << 20;  // of a file
};

class LogScanner {
 public:
  /// What the files hold already is not news.
  explicit LogScanner(LogScannerOptions options);
  ~LogScanner();
  LogScanner(const LogScanner&) = delete;
  LogScanner& operator=(const LogScanner&) = delete;
  /// Something has happened: looks at once. Any thread.
  void look_now();
  /// A line as of the kernel's log, heard of in another way; left out where that log is read. Any
  /// thread.
  void kernel_line(std::string line);

 private:
  using Clock = std::chrono::steady_clock;
  struct File {
    std::string path, name, source;
    enum class Kind : unsigned char { trainer, agent, supervisor, batch } kind = Kind::trainer;
    int fd = -1;
    uint64_t offset = 0, line = 0;
    bool skipped = false;
    std::string partial;
    std::map<std::string, Clock::time_point> told;  // by rule
  };
  void run();
  void look_for_files(bool at_start);
  void read(File& file);
  void read_kernel_log();
  void add(File& file, std::string_view bytes);
  static bool of_interest(const std::string& line, File::Kind kind);
  void judge(File& file, const std::string& line);
  void rotate(File& file);

  const LogScannerOptions options_;
  std::map<std::string, File> files_;  // by name
  File kernel_;
  std::mutex mutex_;
  std::vector<std::string> kernel_lines_;
  std::condition_variable wake_;
  bool stopping_ = false, now_ = false;
  std::thread thread_;
};

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::LogFinding)
