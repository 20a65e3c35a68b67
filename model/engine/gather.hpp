// The gathered units: assembles whole units of parameters in compute precision from every rank's fp32
// shard. The program (program.hpp) says when, and into which buffer.
//
// With one buffer per unit this is shard_grad_op, with two for all blocks full_shard, and with none
// (one shard in fp32) the master parameters themselves are handed out. With a state in host memory a
// rank's part is uploaded from there, for each gather. All ranks of a group must make the same calls,
// on the compute thread.
#pragma once

#include <vector>

#include "model/backend.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/program/buffer_plan.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {

class GatheredUnits {
 public:
  /// precision: of the gathered parameters. The referenced objects must outlive the schedule.
  static Result<GatheredUnits> create(const BufferPlan& plan, const ShardLayout& layout,
                                      DType precision, Backend& backend, Collective& shard);

  /// With one shard and a buffer for each unit: all units, (layout.total) in the precision, for a
  /// caller that writes them while it changes the parameters. Else null.
  void* whole() const { return whole_; }
  /// The parameters have changed: discards all gathered units, unless whole(), or the buffer of
  /// upload(), was `written` with them. master: this shard's parameters, (layout.total) fp32, where
  /// the state is.
  void reset(const float* master, bool written);

  /// With a state in host memory (BufferPlan::through_host): where the rounded parameters are
  /// written, (layout.total) in the precision, host memory. Else null.
  void* to_upload() const { return host_; }
  /// The first `elements` of them are written: if whole(), starts to upload the units that lie in them.
  void upload(size_t elements);

  /// Starts to gather `unit` into a buffer, unless it holds the unit. Of resident experts only this rank's
  /// part is read.
  void start(size_t slot, size_t unit);
  /// Waits for `unit`. Returns the whole unit, valid until its buffer gets another one.
  Result<const void*> use(size_t unit, WaitClock& wait);

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  struct Slot {
    void* data = nullptr;
    size_t unit = kNone;
    WorkPtr work;                           // the gather in flight
    Backend::PendingCopy upload = nullptr;  // that no call waits for yet
  };

  GatheredUnits(const BufferPlan& plan, const ShardLayout& layout, DType precision,
                Backend& backend, Collective& shard)
      : plan_(&plan), layout_(&layout), precision_(precision), backend_(&backend), shard_(&shard) {}

  size_t bytes(size_t elements) const { return elements * bytes_of(precision_); }
  const void* rounded(size_t unit) const {
    return static_cast<const char*>(host_) + bytes(layout_->offset[unit]);
  }
  static void await_upload(Slot& slot);

  const BufferPlan* plan_;
  const ShardLayout* layout_;
  DType precision_;
  Backend* backend_;
  Collective* shard_;
  std::vector<Slot> slots_;
  void* whole_ = nullptr;
  void* host_ = nullptr;  // with a state in host memory: this rank's part of all units
  size_t uploaded_ = 0;   // units that upload() began with since the parameters changed
  const float* master_ = nullptr;
};

}  // namespace simplescale
