// The reduce schedule: takes the gradients of whole units, and yields this shard's total gradient
// over all leaves of the step.
//
// A unit's gradient is reduce-scattered into its slice (partial sums in tree order) while the next
// unit is computed. After the last turn the slice is all-reduced across groups while the
// rest of the backward pass continues. All ranks of a group must make the same calls, and so must
// all replicas of a shard. The compute thread makes them.
#pragma once

#include <utility>
#include <vector>

#include "model/backend.hpp"
#include "model/engine/buffer_plan.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {

class ReduceSchedule {
 public:
  /// The referenced objects must outlive the schedule. shares: of the current step.
  static Result<ReduceSchedule> create(const BufferPlan& plan, const std::vector<Unit>& units,
                                       const ShardLayout& layout, DType precision, Backend& backend,
                                       Collective& shard, Collective& replicate,
                                       const Shares& shares);

  /// Clears all sums.
  void begin_step();
  /// The buffer into which the backward pass writes the gradient of `unit`: the whole unit in
  /// compute precision. Waits if the buffer is in use.
  Result<void*> gradient(size_t unit, WaitClock& wait);
  /// Starts the reduction of `unit`, whose gradient of turn k is in its buffer (if this rank has no
  /// leaf in that turn: none is), and waits for the reduction that was started before.
  Status reduce(size_t unit, int k, WaitClock& wait);
  /// True if every element that reduce() was given since the last call was finite. In device memory
  /// always true.
  bool take_finite() { return std::exchange(finite_, true); }
  /// Waits for all reductions. After the last turn total() is then complete.
  Status finish(WaitClock& wait);
  /// This shard's total gradient: (layout.total) fp32, device memory.
  float* total() { return total_; }

 private:
  struct Slot {
    size_t pool = 0;
    void* data = nullptr;
    size_t written = 0;  // elements at the front that may differ from zero
    size_t unit = kNone;
    bool last = false;  // the step's last turn: the all-reduce across groups follows
    WorkPtr work;       // the reduce-scatter in flight
  };
  static constexpr size_t kNone = static_cast<size_t>(-1);

  ReduceSchedule(const std::vector<Unit>& units, const ShardLayout& layout, DType precision,
                 Backend& backend, Collective& shard, Collective& replicate, const Shares& shares)
      : units_(&units),
        layout_(&layout),
        precision_(precision),
        backend_(&backend),
        shard_(&shard),
        replicate_(&replicate),
        shares_(&shares) {}
  Status finish(size_t slot, WaitClock& wait);
  void sum_across_groups(size_t unit);
  void clear_padding(Slot& slot, size_t unit);
  void check_finite(const void* gradient, size_t count);

  const std::vector<Unit>* units_;
  const ShardLayout* layout_;
  DType precision_;
  Backend* backend_;
  Collective* shard_;
  Collective* replicate_;
  const Shares* shares_;
  std::vector<size_t> pool_of_unit_;
  std::vector<Slot> slots_;         // empty: backward writes straight into the slices
  size_t pending_ = kNone;          // the slot whose reduce-scatter was started last
  std::vector<PartialSum> slices_;  // per unit
  std::vector<WorkPtr> across_;     // all-reduces in flight
  float* total_ = nullptr;
  bool finite_ = true;
};

}  // namespace simplescale
