// The sums of gradients: takes the gradients of whole units, and yields this shard's total gradient
// over all leaves of the step. The program (program.hpp) says when, and in which buffers.
//
// A unit's gradient is reduce-scattered into its slice (partial sums in tree order) while the next
// unit is computed. Of tied embeddings lm_head's part is a unit of its own, tied_head(): it is known
// a whole backward pass before the embeddings' part, so each has its tree, and finish() adds the two
// totals. After the last accumulation the slice is all-reduced across groups while the
// rest of the backward pass continues. All ranks of a group must make the same calls, and so must
// all replicas of a shard. The compute thread makes them.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "model/backend.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/program/program.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {

class GradientSums {
 public:
  /// The referenced objects must outlive the sums. shares: of the current step.
  static Result<GradientSums> create(const BufferPlan& plan, const std::vector<Unit>& units,
                                     const ShardLayout& layout, DType precision, Backend& backend,
                                     Collective& shard, Collective& replicate,
                                     const Shares& shares);
  /// lm_head's part of the gradient of tied embeddings, for gradient() and reduce().
  size_t tied_head() const { return units_; }

  /// Clears all sums.
  void begin_step();
  /// Where the backward pass writes the gradient of `unit`: the whole unit in compute precision, in
  /// this buffer, which no reduction uses.
  void* gradient(size_t unit, size_t slot);
  // These carry out the program's tasks; where this trainer has no leaf, a buffer counts as zero.
  /// Adds the gradient of a micro-batch to its wave's.
  void add(const Task& task);
  /// Adds the gradients of a turn to the sum of this trainer's shard, or starts to.
  void reduce(const Task& task);
  /// Waits until that sum is made.
  Status reduced(const Task& task, WaitClock& wait);
  /// Starts the sum over all groups of `unit`, whose slice holds all leaves of this group. With one
  /// group adds the slice's nodes in place.
  void exchange(size_t unit);
  /// True if every element that reduce() was given since the last call was finite. In device memory
  /// always true.
  bool take_finite() { return std::exchange(finite_, true); }
  /// With a state in host memory (BufferPlan::through_host): waits for that sum, and starts its sums of
  /// squares and to copy it to host_total(). Backend::finish_copies() waits for the copies.
  Status download(size_t unit, WaitClock& wait);
  /// What follows waits for the unit's copy: its window may then hold another unit's sums.
  void downloaded(size_t unit);
  /// Waits for all exchanges: total() is then complete, and its sums of squares are started.
  Status finish(WaitClock& wait);
  /// This shard's total gradient: (layout.total) fp32, device memory. Null if there are windows.
  float* total() { return total_; }
  /// Where download() copies it: (layout.total) fp32, host memory; null if it does not.
  float* host_total() { return host_total_; }

 private:
  struct Slot {
    void* data = nullptr;
    size_t written = 0;  // elements at the front that may differ from zero
    WorkPtr work;        // the reduce-scatter in flight
  };

  GradientSums(const BufferPlan& plan, size_t units, const ShardLayout& layout, DType precision,
               Backend& backend, Collective& shard, Collective& replicate, const Shares& shares)
      : plan_(&plan),
        units_(units),
        layout_(layout),
        precision_(precision),
        backend_(&backend),
        shard_(&shard),
        replicate_(&replicate),
        shares_(&shares) {}
  struct Sum {
    std::vector<float*> digits;
    // The wave's; of resident experts each trainer's, one behind the other.
    std::vector<PartialSum> waves;
    WorkPtr work;
  };
  /// Buffers of one unit's sums.
  struct Window {
    std::vector<float*> digits;
    float* total = nullptr;  // null: that of the first digit
  };
  Status make_windows(const BufferPlan& plan);
  Status wait_for_sum(size_t unit, WaitClock& wait);
  void add_tied_head();
  TreeNode leaf_of(const Task& task) const {
    return leaf_of(task, static_cast<size_t>(shard_->rank()));
  }
  /// The leaf of another trainer's micro-batch.
  TreeNode leaf_of(const Task& task, size_t shard) const;
  /// Elements of a gradient's leaf: of resident experts there is one for each trainer.
  size_t part(size_t unit) const {
    return layout_.count[unit] * (plan_->is_resident(unit) ? 1 : layout_.shards);
  }
  void reduce_resident(const Task& task);
  uint64_t group() const { return static_cast<uint64_t>(replicate_->rank()); }
  void clear_padding(Slot& slot, size_t unit);
  void check_finite(const void* gradient, size_t count);

  const BufferPlan* plan_;
  size_t units_;
  ShardLayout layout_;            // with tied_head() at its end, if there is one
  std::vector<size_t> elements_;  // of each unit of layout_, without padding
  size_t own_total_ = 0;          // elements of the shard, without tied_head()
  DType precision_;
  bool in_background_ = false;  // BufferPlan::sums_in_background
  Backend* backend_;
  Collective* shard_;
  Collective* replicate_;
  const Shares* shares_;
  std::vector<Slot> slots_;         // empty: backward writes straight into the slices
  std::vector<Sum> sums_;           // of waves
  std::vector<PartialSum> slices_;  // per unit
  std::vector<float*> totals_;      // per unit
  std::vector<Window> windows_;
  std::vector<Backend::PendingCopy> downloads_;  // per unit: that no call waits for yet
  std::vector<WorkPtr> across_;                  // per unit: its all-reduce in flight
  float *total_ = nullptr, *host_total_ = nullptr;
  bool finite_ = true;
};

}  // namespace simplescale
