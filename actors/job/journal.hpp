// Writes the run folder's line files (metrics, events, ledger) and the status page in the
// background, in order.
//
// One thread owns the files; append() and replace() never block on the disk. A disk that does not
// take the lines is said once and does not stop training.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

namespace simplescale {

class Journal {
 public:
  explicit Journal(std::string folder);
  ~Journal();  // writes what is queued
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  /// Adds one line to <folder>/<file>.
  void append(const std::string& file, const nlohmann::json& line);
  /// Replaces <folder>/<file> as a whole, atomically.
  void replace(const std::string& file, std::string text);

 private:
  struct Job {
    std::string file, text;
    bool whole;
  };
  void run();
  void write(const Job& job);
  const std::string folder_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool stopping_ = false, complained_ = false;
  std::map<std::string, std::ofstream> files_;
  std::thread thread_;
};

/// Seconds since the epoch with milliseconds, as the "time" of every line.
double wall_time_s();

}  // namespace simplescale
