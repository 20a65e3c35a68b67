// The reduce schedule: gradients of whole units in, the own shard's total over all leaves of the
// step out.
//
// A unit's gradient is reduce-scattered into its slice (partial sums in tree order) while the next
// unit is computed; after the last accumulation the slice is all-reduced across groups while the
// rest of backward goes on. All ranks of a group must make the same calls, replicas likewise; the
// compute thread makes them.
#pragma once

#include <vector>

#include "model/backend.hpp"
#include "model/engine/buffer_plan.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {

class ReduceSchedule {
 public:
  /// rows: K of a step, over all groups. What the references name must outlive it.
  static Result<ReduceSchedule> create(const BufferPlan& plan, const std::vector<Unit>& units,
                                       const ShardLayout& layout, DType precision, uint64_t rows,
                                       Backend& backend, Collective& shard, Collective& replicate);

  /// Forgets all sums.
  void begin_step();
  /// Where backward puts the gradient of `unit`: the whole unit in compute precision. Waits for the
  /// buffer if it is in use.
  Result<void*> gradient(size_t unit, WaitClock& wait);
  /// The gradient of `unit` for accumulation k is in its buffer: starts its reduction, ends the one
  /// of the unit before.
  Status reduce(size_t unit, int k, WaitClock& wait);
  /// Ends all reductions; after the last accumulation total() is complete.
  Status finish(WaitClock& wait);
  /// The own shard of the gradient, fp32, device memory, laid out as the shard.
  float* total() { return total_; }

 private:
  struct Slot {
    size_t pool = 0;
    void* data = nullptr;
    size_t written = 0;  // elements at its front that may not be zero
    size_t unit = kNone;
    bool last = false;  // of the step: goes on across groups
    WorkPtr work;       // the reduce-scatter in flight
  };
  static constexpr size_t kNone = static_cast<size_t>(-1);

  ReduceSchedule(const std::vector<Unit>& units, const ShardLayout& layout, DType precision,
                 RowRange rows, Backend& backend, Collective& shard, Collective& replicate)
      : units_(&units),
        layout_(&layout),
        precision_(precision),
        rows_(rows),
        backend_(&backend),
        shard_(&shard),
        replicate_(&replicate) {}
  Status finish(size_t slot, WaitClock& wait);
  void across(size_t unit);
  void clear_padding(Slot& slot, size_t unit);

  const std::vector<Unit>* units_;
  const ShardLayout* layout_;
  DType precision_;
  RowRange rows_;  // of this group
  Backend* backend_;
  Collective* shard_;
  Collective* replicate_;
  std::vector<size_t> pool_of_unit_;
  std::vector<Slot> slots_;         // empty: gradients go straight into the slices
  size_t pending_ = kNone;          // slot of the newest reduce-scatter
  std::vector<PartialSum> slices_;  // per unit
  std::vector<std::vector<TreeNode>> nodes_of_group_;
  std::vector<WorkPtr> across_;
  float* total_ = nullptr;
};

}  // namespace simplescale
