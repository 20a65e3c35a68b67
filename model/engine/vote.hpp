// The vote at the end of a step: global gradient norm, mean loss, wishes, disagreements and damaged
// replicas, in two small exchanges (inside the group, then across groups). All ranks of the world
// come to the same verdict from the same numbers.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/engine/engine.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/training/collective.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// What a rank brings to the vote.
struct Ballot {
  uint64_t step = 0;
  uint64_t options_hash = 0;  // all ranks must run the same options
  float learning_rate = 0;
  Hash128 state_hash;  // of what replicas must hold alike: the state of step - 1
  StepControl control;
  Status failure;              // why this rank cannot commit; its numbers do not count then
  std::vector<double> losses;  // of its leaves
  std::vector<double>
      block_squares;  // per block of kShardAlign elements of the own shard's total gradient
};

struct Verdict {
  Status status;  // ok: commit. The same code on every rank; nobody commits otherwise
  double loss = 0, grad_norm = 0;
  StepControl agreed;
  std::optional<Mismatch> mismatch;  // why the status is Code::mismatch, if the states differ
};

/// The first shard whose replicas differ in the state of `step`; hashes: of group 0's shards, then
/// of group 1's, ... Pure.
std::optional<Mismatch> find_mismatch(uint64_t step, size_t shards,
                                      std::span<const Hash128> hashes);

/// One rank's way of voting; pure but for the exchanges.
class Vote {
 public:
  /// rows: K of a step, over all groups.
  Vote(const std::vector<Unit>& units, const ShardLayout& layout, uint64_t rows, Collective& shard,
       Collective& replicate);
  /// An error is a collective's; then there is no verdict.
  Result<Verdict> hold(const Ballot& ballot, WaitClock& wait);
  /// Outside of a step: whether all ranks hold `step`, and replicas the same of it. Only status and
  /// mismatch of the verdict are set.
  Result<Verdict> compare(uint64_t step, const Hash128& state_hash, WaitClock& wait);

 private:
  struct Run {  // real blocks of one unit on one rank
    size_t first = 0, count = 0;
  };
  Run run_of(size_t unit, size_t rank) const;
  void add_squares(const Ballot& ballot, std::vector<double>& record) const;
  double grad_norm(std::span<const double* const> squares_of_rank) const;

  const std::vector<Unit>* units_;
  const ShardLayout* layout_;
  uint64_t rows_;
  size_t most_rows_;  // of a group; records have room for as many
  Collective* shard_;
  Collective* replicate_;
  size_t squares_ = 0;  // doubles of a rank's partial sums of squares, at most
};

}  // namespace simplescale
