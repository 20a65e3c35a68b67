// The gather schedule: whole units of parameters in compute precision, from every rank's fp32
// shard, one unit ahead.
//
// A small cache of unit buffers: with a slot for every unit it is shard_grad_op, with two rotating
// block slots full_shard, with no slots at all (one shard in fp32) the master parameters themselves
// are handed out. All ranks of a group must make the same calls; the compute thread makes them.
#pragma once

#include <vector>

#include "model/backend.hpp"
#include "model/engine/buffer_plan.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {

class GatherSchedule {
 public:
  /// precision: of the gathered parameters. layout and what the references name must outlive it.
  static Result<GatherSchedule> create(const BufferPlan& plan, const ShardLayout& layout,
                                       DType precision, Backend& backend, Collective& shard);

  /// The parameters have changed: forgets all buffers. master: the own shard, fp32, device memory.
  void reset(const float* master);

  /// Starts the gather of `unit` unless its buffer is there; gives up the buffer used longest ago,
  /// but not `current`.
  void prefetch(size_t unit, size_t current = kNone);

  /// The whole unit, valid until prefetch() needs its buffer; starts the gather of `next`
  /// meanwhile.
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
  const float* master_ = nullptr;
  uint64_t uses_ = 0;
};

}  // namespace simplescale
