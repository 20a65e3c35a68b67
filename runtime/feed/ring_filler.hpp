// The dataloader's thread, which keeps all token rings of a node full. It owns their shared-memory
// segment, so tokens survive the trainers, and is the only producer of all rings. It sleeps while
// they are full, and never waits for a trainer. What it will read from a bucket next, it announces
// (data_files.hpp): as many micro-batches again as the rings hold.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/base/retries.hpp"
#include "runtime/feed/sample_order.hpp"
#include "runtime/feed/token_ring.hpp"
#include "runtime/feed/token_sources.hpp"

namespace simplescale {

/// What the rings are to be filled with.
struct FillPlan {
  uint64_t generation = 0;  // grows with every plan
  uint64_t start_step = 0;  // the first step that the trainers will acquire
  BatchLayout layout;
  struct Trainer {
    uint64_t group = 0, shard = 0;
    bool operator==(const Trainer&) const = default;
  };
  std::vector<Trainer> trainers;  // trainers[i] reads ring i; further rings stay empty
  bool operator==(const FillPlan&) const = default;
};

class RingFiller {
 public:
  /// Starts the thread without a plan. order: of the samples of these sources, with the rings'
  /// block_size. on_error: called once per failed plan, on the filler's thread, after the rings
  /// are closed; may be empty.
  RingFiller(TokenRings rings, TokenSources sources, MixedOrder order,
             std::function<void(const Status&)> on_error = {}, Retries retries = {});
  ~RingFiller();  // stop()
  RingFiller(const RingFiller&) = delete;
  RingFiller& operator=(const RingFiller&) = delete;

  /// Empties the rings and fills them for this plan; returns at once. Trainers that acquire tokens
  /// of an earlier generation get Code::aborted; those of this generation wait for theirs. Starting
  /// the newest plan again has no effect. bad_config: the plan does not fit the rings; aborted:
  /// there is a newer plan, or stop() was called. Any thread.
  Status start(const FillPlan& plan);
  /// Ends the thread and closes the rings with Code::aborted. Any thread; may be called again.
  void stop();
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
  Cursor at_batch(Cursor at, uint64_t ring) const;
  uint64_t sample_at(const Cursor& at, uint64_t ring) const;
  void read_ahead();
  bool pause_and_reopen(const Status& error);
  void fail(const Status& status);

  TokenRings rings_;      // only the thread fills them
  TokenSources sources_;  // only the thread uses them
  const DataFiles files_;
  const MixedOrder order_;
  const std::function<void(const Status&)> on_error_;
  const Retries retries_;

  std::mutex mutex_;              // guards next_plan_, newest_ and stopping_
  std::condition_variable wake_;  // ends a pause: there is a new plan, or stop() was called
  std::optional<FillPlan> next_plan_;
  FillPlan newest_;  // the plan of the last start()
  bool stopping_ = false;

  std::optional<FillPlan> plan_;  // only the thread uses these four
  std::vector<Cursor> cursors_;
  /// The micro-batch of each ring that is announced next, and how many are between it and the ring's
  /// cursor.
  struct Announced {
    Cursor next;
    uint64_t batches = 0;
  };
  std::vector<Announced> announced_;
  int failures_ = 0;  // failed reads in a row
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace simplescale
