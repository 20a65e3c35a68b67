// Writes the run folder's line files (metrics, events, ledger) and its documents in the background, in
// the order given.
//
// One thread owns the files; append(), replace() and mark() never block on the disk. A disk that
// does not take the lines is said once and does not stop training.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "runtime/base/status.hpp"

namespace simplescale {

class Journal {
 public:
  /// may_write is asked on the thread before what has gathered is written; once it says no, nothing
  /// is written any more (LEAD-1: a deposed supervisor). written is called on the thread after each
  /// writing.
  /// patience_ms: how long the destructor and flush() wait for the disk.
  explicit Journal(std::string folder, std::function<bool()> may_write = nullptr,
                   int64_t patience_ms = 10'000, std::function<void()> written = nullptr);
  ~Journal();  // writes what is queued; what a file system that hangs does not take is lost
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  /// Adds one line to <folder>/<file>.
  void append(const std::string& file, const nlohmann::json& line);
  /// Replaces <folder>/<file> as a whole, atomically.
  void replace(const std::string& file, std::string text);
  /// marked() is `step` as soon as all that was appended before is in the files.
  void mark(uint64_t step);
  uint64_t marked() const { return writer_->marked_; }
  /// Called once, on the thread, when all that was appended before is in the files (true), or will
  /// not be (false).
  void when_written(std::function<void(bool)> done);
  /// Waits until all that was given before is in the files; false: the disk hangs.
  bool flush();
  /// Nothing is written any more, whatever is queued.
  void stop();

 private:
  enum class Kind : unsigned char { line, document, mark, call };
  struct Job {
    Kind kind;
    std::string file, text;
    uint64_t step;
    std::function<void(bool)> done = nullptr;
    bool lost = false;  // of a call: lines that it asks for were dropped
  };
  /// What the thread has; it outlives the journal if the file system hangs.
  struct Writer {
    Writer(std::string folder, std::function<bool()> may_write, std::function<void()> written)
        : folder_(std::move(folder)),
          may_write_(std::move(may_write)),
          written_(std::move(written)) {}
    ~Writer();
    void run();
    void push(Job job);
    bool write(const Job& job);
    bool write_lines(const std::string& file, const std::string& text);
    const std::string folder_;
    const std::function<bool()> may_write_;
    const std::function<void()> written_;
    std::mutex mutex_;
    std::condition_variable wake_, idle_, ended_;
    std::deque<Job> jobs_;
    bool stopping_ = false, writing_ = false, over_ = false, complained_ = false;
    bool dropped_ = false, lost_ = false;  // lines, for lack of room: ever; since the last call
    bool whole_ = true;                    // the thread's: all lines since the last call are there
    std::atomic<bool> stopped_ = false;
    std::atomic<uint64_t> marked_ = 0;
    std::map<std::string, int> files_;
  };
  const int64_t patience_ms_;
  std::shared_ptr<Writer> writer_;
};

/// Seconds since the epoch with milliseconds, as the "time" of every line.
double wall_time_s();

/// Where the records of a run end. A supervisor that died may have left half a line, or a step of
/// which only some trainers' lines are there: those are cut off, so that its successor goes on
/// after the last whole step. Blocks; nobody else may write. ledger: the run keeps one.
struct RecordsEnd {
  bool any = false;
  uint64_t step = 0, generation = 0;  // the last step, and in which generation it was made
};
Result<RecordsEnd> mend_records(const std::string& folder, bool ledger, uint64_t global_batch);

}  // namespace simplescale
