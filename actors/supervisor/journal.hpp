// Writes the run folder's line files (metrics, events, ledger, health) and documents in the
// background, in the order given, and repairs the line files after a crash.
//
// The journal's own thread writes all files. All other functions may be called from any thread;
// only flush() and the destructor wait for the disk. A disk that fails is logged once and does not
// stop training.
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
  /// may_write is called on the journal's thread before each batch is written; once it returns
  /// false, nothing is written any more (LEAD-1: a deposed supervisor). written is called on that
  /// thread after each batch. patience_ms: how long the destructor and flush() wait for the disk.
  explicit Journal(std::string folder, std::function<bool()> may_write = nullptr,
                   int64_t patience_ms = 10'000, std::function<void()> written = nullptr);
  ~Journal();  // writes the queue; gives up after patience_ms if the file system hangs
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  /// Appends one line to <folder>/<file>.
  void append(const std::string& file, const nlohmann::json& line);
  /// Replaces <folder>/<file> as a whole, atomically.
  void replace(const std::string& file, std::string text);
  /// Sets marked() to `step` once all lines appended before are in the files.
  void mark(uint64_t step);
  uint64_t marked() const { return writer_->marked_; }
  /// Calls `done` once, on the journal's thread: true when all lines appended before are in the
  /// files, false if some of them never will be.
  void when_written(std::function<void(bool)> done);
  /// Waits until the queue is written; false: not within patience_ms.
  bool flush();
  /// Drops the queue; nothing is written from now on.
  void stop();

 private:
  enum class Kind : unsigned char { line, document, mark, call };
  struct Job {
    Kind kind;
    std::string file, text;
    uint64_t step;
    std::function<void(bool)> done = nullptr;
    bool lost = false;  // call: a line before it was dropped
  };
  /// The thread's own state; it outlives the journal if the file system hangs.
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
    bool dropped_ = false,
         lost_ = false;  // a line did not fit the queue: ever; since the last call
    bool whole_ = true;  // all lines since the last call are written; the thread's alone
    std::atomic<bool> stopped_ = false;
    std::atomic<uint64_t> marked_ = 0;
    std::map<std::string, int> files_;
  };
  const int64_t patience_ms_;
  std::shared_ptr<Writer> writer_;
};

/// Seconds since the epoch, in whole milliseconds; the "time" of every line.
double wall_time_s();

/// The last step and incident in the records of a run.
struct RecordsEnd {
  bool any = false;                   // there is a step
  uint64_t step = 0, generation = 0;  // the last one, and the generation that made it
  uint64_t incidents = 0;             // number of the last one
};
/// Makes the line files end with a whole step, so that a new supervisor continues after it: cuts
/// off a partial last line, and steps of which the lines of some trainers are missing. ledger: the
/// run keeps ledger.jsonl. global_batch: samples of a step. io: a file cannot be read or cut.
/// Blocks; no other process may write meanwhile.
Result<RecordsEnd> repair_records(const std::string& folder, bool ledger, uint64_t global_batch);

}  // namespace simplescale
