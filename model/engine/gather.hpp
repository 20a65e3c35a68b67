// The gather schedule: assembles whole units of parameters in compute precision from every rank's
// fp32 shard, one unit ahead of the computation.
//
// It is a small cache of unit buffers: with one slot per unit it implements shard_grad_op, with two
// rotating block slots full_shard, and with no slots (one shard in fp32) it hands out the master
// parameters themselves. All ranks of a group must make the same calls, on the compute thread.
#pragma once

#include <vector>

#include "model/backend.hpp"
#include "model/engine/buffer_plan.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {

class GatherSchedule {
 public:
  /// precision: of the gathered parameters. The referenced objects must outlive the schedule.
  static Result<GatherSchedule> create(const BufferPlan& plan, const ShardLayout& layout,
                                       DType precision, Backend& backend, Collective& shard);

  /// With one shard and a buffer for each unit: all units, (layout.total) in the precision, for a
  /// caller that writes them while it changes the parameters. Else null.
  void* whole() const { return whole_; }
  /// The parameters have changed: discards all gathered units, unless whole() was `written` with
  /// them. master: this shard's parameters, (layout.total) fp32, device memory.
  void reset(const float* master, bool written);

  /// Starts the gather of `unit` unless it is cached or in flight; evicts the least recently used
  /// unit, but not `current`.
  void prefetch(size_t unit, size_t current = kNone);

  /// Waits for `unit`, then starts the gather of `next`. Returns the whole unit, valid until
  /// prefetch() evicts it.
  Result<const void*> use(size_t unit, size_t next, WaitClock& wait);

  static constexpr size_t kNone = static_cast<size_t>(-1);

 private:
  struct Slot {
    size_t pool = 0;
    void* data = nullptr;
    size_t unit = kNone;
    uint64_t last_use = 0;
    WorkPtr work;  // the gather in flight
  };

  GatherSchedule(const ShardLayout& layout, DType precision, Backend& backend, Collective& shard)
      : layout_(&layout), precision_(precision), backend_(&backend), shard_(&shard) {}
  Slot* find(size_t unit);
  void start(Slot& slot, size_t unit);

  const ShardLayout* layout_;
  DType precision_;
  Backend* backend_;
  Collective* shard_;
  std::vector<size_t> pool_of_unit_;
  std::vector<Slot> slots_;
  void* whole_ = nullptr;
  const float* master_ = nullptr;
  uint64_t uses_ = 0;
};

}  // namespace simplescale
