// The dataloader's thread: keeps all token rings of a node full. It owns the segment (tokens
// survive every trainer of the node), is the one producer of all its rings, sleeps while they are
// full, and never waits for a trainer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/data/sample_order.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/data/token_ring.hpp"

namespace simplescale {

/// What to fill the rings with from now on.
struct FillPlan {
  uint64_t generation = 0;  // grows with every plan
  uint64_t start_step = 0;  // the first step that the trainers will ask for
  BatchLayout layout;
  struct Trainer {
    uint64_t group = 0, shard = 0;
    bool operator==(const Trainer&) const = default;
  };
  std::vector<Trainer> trainers;  // ring i is read by trainers[i]; rings beyond stay empty
  bool operator==(const FillPlan&) const = default;
};

/// How often tokens that cannot be read are tried again, and after which pause, which doubles.
struct ReadRetries {
  int tries = 5;
  std::chrono::milliseconds first_pause{100};
};

class RingFiller {
 public:
  /// Starts the thread, idle. order.samples() is source.samples(block_size of the rings).
  /// on_error, if given, is called once for each failed plan, on the filler's thread, after the
  /// rings were closed.
  RingFiller(TokenRings rings, TokenSource source, SampleOrder order,
             std::function<void(const Status&)> on_error = {}, ReadRetries retries = {});
  /// stop()
  ~RingFiller();
  RingFiller(const RingFiller&) = delete;
  RingFiller& operator=(const RingFiller&) = delete;

  /// Drops what the rings hold and fills them for this plan; returns at once. Trainers of an
  /// earlier generation get Code::aborted, those of this one wait until their tokens come.
  /// The newest plan once more changes nothing. bad_config: a plan that does not fit the rings;
  /// aborted: an older one. Any thread.
  Status start(const FillPlan& plan);
  /// Ends the thread and closes the rings with Code::aborted. Any thread, more than once.
  void stop();
  /// Why the current plan's filling ended; ok while it goes on. Any thread.
  Status status() const;
  /// The segment's name, for TokenRings::open() in a trainer.
  const std::string& name() const { return rings_.name(); }

 private:
  struct Cursor {
    uint64_t step = 0, accumulation = 0;
  };
  void run();
  void begin_plan(FillPlan plan);
  Result<bool> fill_one_slot_each();
  Status fill(int32_t* tokens, uint64_t first);
  bool pause_and_reopen(const Status& error);
  void fail(const Status& status);

  TokenRings rings_;    // filled by the thread alone
  TokenSource source_;  // the thread's own
  const SampleOrder order_;
  const std::function<void(const Status&)> on_error_;
  const ReadRetries retries_;

  mutable std::mutex mutex_;      // the next four
  std::condition_variable wake_;  // for a pause: a plan has come, or the end
  std::optional<FillPlan> next_plan_;
  FillPlan newest_;  // of those that came
  Status status_;
  bool stopping_ = false;

  std::optional<FillPlan> plan_;  // the thread's own
  std::vector<Cursor> cursors_;
  int failures_ = 0;  // to read, in a row
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace simplescale
