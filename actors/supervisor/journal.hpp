// Writes the run folder's line files (metrics, events, ledger, health) and pages (documents that
// are replaced as a whole) in the background.
//
// The journal's own thread writes all files. Any thread may call the other functions; only flush()
// and the destructor wait for the disk. A disk that fails is logged once and does not stop
// training: the journal repeats a failed write until it succeeds.
//
// The journal only appends whole lines to line files. So a supervisor that lost leadership and
// wakes in the middle of a write can only repeat lines of its own term, which readers ignore
// (records_end.hpp). On NFS, appends of two hosts overwrite each other. There each journal writes
// at its own positions, which begin where the file ended when the journal opened it, and its
// successor leaves a gap there (leave_gap() in records_end.hpp).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "actors/supervisor/records_end.hpp"

namespace simplescale {

class Journal {
 public:
  /// may_write is called on the journal's thread before every write. Once it returns false, the
  /// journal writes nothing any more (LEAD-1: a newer supervisor leads). An error of may_write
  /// counts as a failed write. written is called on the journal's thread after new lines are in the
  /// files. patience_ms: how long the destructor and flush() wait for the disk. appends: the kernel
  /// appends, so that no line of another host is overwritten; unset: depends on the folder's file
  /// system.
  explicit Journal(std::string folder, MayWrite may_write = nullptr, int64_t patience_ms = 10'000,
                   std::function<void()> written = nullptr,
                   std::optional<bool> appends = std::nullopt);
  ~Journal();  // writes the queue; gives up after patience_ms if the disk hangs or refuses it
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  /// Appends one line to <folder>/<file>.
  void append(const std::string& file, const nlohmann::json& line);
  /// Replaces <folder>/<file> as a whole, atomically. durable: the page survives a power failure,
  /// and marked() waits for it. Not durable: for pages that describe a running process only.
  void replace(const std::string& file, std::string text, bool durable = true);
  /// Sets marked() to `step` once all earlier lines and durable pages are on the disk (fdatasync).
  /// Marks are batched: the disk is synced at most every 50 ms. If `step` is lower than the last
  /// mark, it lowers marked() at once: the steps after it were rolled back, and the lines that
  /// follow are not on the disk yet.
  void mark(uint64_t step);
  uint64_t marked() const { return writer_->marked_; }
  /// Calls `done` once, on the journal's thread: with true when all lines appended before are on
  /// the disk, with false if the disk has refused one of them or this journal has stopped.
  void when_written(std::function<void(bool)> done);
  /// What the disk refuses now: the file and the reason, as "metrics.jsonl: No space left on
  /// device"; "": nothing.
  std::string trouble() const;
  /// Waits until the queue is on the disk. Returns false after patience_ms, or if the disk refuses
  /// it.
  bool flush();
  /// Drops the queue. From now on the journal writes nothing.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Kind : unsigned char { line, mark, call };
  struct Job {
    Kind kind;
    std::string file, text;
    uint64_t step = 0, branch = 0;  // of a mark
    std::function<void(bool)> done = nullptr;
    bool lost = false;  // call: a line before this call was dropped
  };
  struct Page {
    std::string text;
    bool durable = true;
  };
  struct LineFile {
    int fd = -1;
    std::string text;                // lines that may not be on the disk
    std::vector<size_t> steps = {};  // the ends in `text` of the lines of each step, in order
    size_t written = 0;              // bytes of `text` in the file
    int64_t begin = -1;              // position of `text` in the file; -1: not opened yet
    bool unsure = false;             // a write failed, or another process has written
  };
  /// The thread's own state. It outlives the journal if the file system hangs.
  struct Writer {
    Writer(std::string folder, MayWrite may_write, std::function<void()> written, bool appends);
    ~Writer();
    void run();
    void push(Job job);
    void push_locked(Job job);
    void mark(uint64_t step);
    bool wait(std::unique_lock<std::mutex>& lock);
    bool may_write();
    std::deque<Job> take_jobs(bool all);
    void accept(std::deque<Job> jobs);
    void end_steps();
    bool write_all();
    bool open_lines(const std::string& name, LineFile& file);
    bool find_written(const std::string& name, LineFile& file, size_t end);
    static size_t piece_end(const LineFile& file);
    bool write_lines(const std::string& name, LineFile& file);
    bool sync_lines(const std::string& name, LineFile& file);
    bool write_page(const std::string& name, const Page& page);
    bool sync();
    void settle(bool written);
    bool unwritten() const;
    bool failed(const std::string& file, const std::string& why);

    const std::string folder_, temporary_;
    const MayWrite may_write_;
    const std::function<void()> written_;
    const bool appends_;
    std::mutex mutex_;
    // mutex_ guards these.
    std::condition_variable wake_, idle_, ended_;
    std::deque<Job> jobs_;
    std::map<std::string, Page> pages_;  // by file: a newer version replaces an older one
    bool stopping_ = false, hurry_ = false, writing_ = false, over_ = false;
    uint64_t newest_mark_ = 0, branch_ = 0;  // branch_: how often a mark was lower than before
    bool dropped_ = false,
         lost_ = false;  // a line did not fit in the queue: ever; since the last call
    std::string trouble_;
    // Read by other threads.
    std::atomic<bool> stopped_ = false, failing_ = false;
    std::atomic<uint64_t> marked_ = 0;
    // Used by the journal's thread only.
    std::map<std::string, LineFile> files_;
    std::map<std::string, Page> unwritten_pages_;
    std::optional<Job> mark_;  // to be set after the next sync
    std::vector<Job> calls_;   // to be answered after the next sync
    Clock::time_point synced_at_, tried_at_;
    bool complained_ = false, news_ = false;
  };
  const int64_t patience_ms_;
  std::shared_ptr<Writer> writer_;
};

/// Seconds since the epoch, in whole milliseconds; the "time" of every line.
double wall_time_s();

}  // namespace simplescale
