// The vote at the end of a step. It combines the global gradient norm, the mean loss, the ranks'
// requests, failures and disagreements, and finds replicas that differ. It is a fold over the axes:
// one small exchange on each, inside the group, then across groups. All ranks of the world compute the same verdict
// from the same numbers. Runs on the compute thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/engine/engine.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/training/block_tree.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// What one rank contributes to the vote.
struct Ballot {
  uint64_t step = 0;
  Hash128 signature, layout;  // EngineOptions::signature, layout_hash(): the same on all ranks
  float learning_rate = 0;
  Hash128 state_hash;          // of this rank's shard of the state of step - 1
  StepControl control;         // this rank's requests
  Status failure;              // why this rank cannot commit; its numbers are then meaningless
  std::vector<double> losses;  // of this rank's leaves
  uint64_t trained = 0;        // targets of these leaves that count in the loss
  std::vector<int64_t> router_counts;  // of these leaves; the same size on every rank
  // (Vote::square_trees()): sums of squares of this shard's total gradient.
  std::vector<double> squares;
};

struct Verdict {
  Status status;  // ok: every rank commits. Otherwise no rank does; every rank has the same code
  double loss = 0, grad_norm = 0;      // as if all targets of the step counted
  uint64_t trained = 0;                // targets of the step that count in the loss
  std::vector<int64_t> router_counts;  // of the step
  StepControl agreed;
  std::optional<Mismatch> mismatch;  // set if the status is mismatch because states differ
  std::optional<int> suspect;        // as Engine::suspect()
  std::string cause;                 // as Engine::cause()
};

/// The first shard whose replicas differ in the state of `step`. hashes: (G, S), group by group.
/// Pure.
std::optional<Mismatch> find_mismatch(uint64_t step, size_t shards,
                                      std::span<const Hash128> hashes);

/// The rank, group * shards + shard, of the only group that is lost_majority; empty if there is none or
/// more than one. Pure.
std::optional<int> suspect_of(const Mismatch& mismatch, size_t shards);
/// The only rank with a loss that is not finite; empty if there is none or more than one. losses:
/// of all leaves, in leaf order. Pure.
std::optional<int> suspect_of(std::span<const double> losses, const Shares& shares);

/// One rank's side of the vote. Keeps nothing from one vote to the next.
class Vote {
 public:
  /// shares: of the current step. axes: the shards first; the others together are the groups. The
  /// referenced objects must outlive the vote.
  Vote(const std::vector<Unit>& units, const ShardLayout& layout, const Shares& shares, Axes axes);
  /// The blocks of this rank's shard whose sums of squares a ballot has: as few trees as possible,
  /// without padding.
  const std::vector<BlockTree>& square_trees() const { return trees_; }
  /// Votes on a step. All ranks of the world call it together. An error is a collective's; then
  /// there is no verdict.
  Result<Verdict> hold(const Ballot& ballot, WaitClock& wait);
  /// Outside of a step: checks that all ranks hold `step` and that replicas hold the same bits.
  /// Sets only status and mismatch of the verdict. Errors as hold().
  Result<Verdict> compare(uint64_t step, const Hash128& state_hash, WaitClock& wait);
  /// Before the first step: checks that all ranks have the same layout_hash(). Sets only the status
  /// of the verdict. Errors as hold().
  Result<Verdict> compare_layouts(const Hash128& layout, WaitClock& wait);

 private:
  struct Run {  // the blocks of one unit on one rank, without padding
    size_t first = 0, count = 0;
  };
  Run run_of(size_t unit, size_t rank) const;
  double grad_norm(std::span<const double* const> squares_of_rank) const;
  std::vector<double> of_group(const std::vector<double>& numbers, size_t counts) const;

  const std::vector<Unit>* units_;
  const ShardLayout* layout_;
  const Shares* shares_;
  Axes axes_;
  std::vector<BlockTree> trees_;
  size_t squares_ = 0;  // the most sums of squares that any rank sends
};

}  // namespace simplescale
