// Muon's part of an update: momentum of this rank's shard, then the orthogonalization of whole
// matrices, which the ranks of the world share (muon_plan.hpp), then the update of the shard.
//
//   1. Each rank computes the momentum of its shard, and with it the update to be orthogonalized.
//   2. Unit by unit, each group gathers the update; the owner of a matrix keeps it.
//   3. Each rank orthogonalizes the matrices that it owns.
//   4. Unit by unit, a buffer that is zero except for the rank's own matrices is summed over the
//      world, so that each rank receives its shard of every matrix. Each element is a sum of one
//      value and zeros, so the bits do not depend on the layout (ENGINE-3).
//
// Runs after the vote, between ShardOptimizer::apply() and commit(): it writes the uncommitted side
// and buffers only. All calls come from the compute thread.
#pragma once

#include <functional>
#include <vector>

#include "model/backend.hpp"
#include "model/engine/optimizer.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/program/buffer_plan.hpp"
#include "runtime/training/collective.hpp"
#include "runtime/training/muon_plan.hpp"

namespace simplescale {

class MuonSchedule {
 public:
  /// runs: those of the shard that Muon updates. The referenced objects must outlive the schedule.
  static Result<MuonSchedule> create(const BufferPlan& plan, const std::vector<Unit>& units,
                                     const ShardLayout& layout, std::vector<ParameterRun> runs,
                                     DType precision, Backend& backend, Collective& shard,
                                     Collective& replicate);
  /// Writes the elements of the runs in state.to_*. gradient: (total) fp32, device memory; those
  /// elements are overwritten. computed: called after each matrix; its error ends the update.
  /// Errors otherwise: a collective's.
  Status apply(const Muon& options, float* gradient, const StateUpdate& state,
               const std::function<Status()>& computed, WaitClock& wait);

 private:
  /// A matrix that this rank owns.
  struct Owned {
    MuonMatrix matrix;
    char* data;  // (rows, columns) in compute precision
  };

  MuonSchedule(const ShardLayout& layout, DType precision, Backend& backend, Collective& shard,
               Collective& replicate)
      : layout_(&layout),
        precision_(precision),
        backend_(&backend),
        shard_(&shard),
        replicate_(&replicate) {}
  Status finish(WorkPtr work, WaitClock& wait);
  Status gather(size_t unit, const float* update, WaitClock& wait);
  Status scatter(size_t unit, WaitClock& wait);

  const ShardLayout* layout_;
  DType precision_;
  Backend* backend_;
  Collective* shard_;
  Collective* replicate_;
  std::vector<ParameterRun> runs_;                  // of the shard
  std::vector<std::vector<ParameterRun>> of_unit_;  // of each unit's part of the shard
  std::vector<Owned> owned_;
  char* unit_ = nullptr;  // a whole padded unit in compute precision
  char* part_ = nullptr;  // this rank's part of it
};

}  // namespace simplescale
