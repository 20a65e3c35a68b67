// The vote at the end of a step: global gradient norm, mean loss, wishes and disagreements, in two
// small exchanges (inside the group, then across groups). All ranks of the world come to the same
// verdict from the same numbers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/engine/engine.hpp"
#include "runtime/base/collective.hpp"
#include "runtime/base/model_shape.hpp"

namespace simplescale {

/// What a rank brings to the vote.
struct Ballot {
  uint64_t step = 0;
  uint64_t options_hash = 0;  // all ranks must run the same options
  float learning_rate = 0;
  uint64_t state_hash = 0;  // of what replicas must hold alike
  StepControl control;
  Status failure;              // why this rank cannot commit; its numbers do not count then
  std::vector<double> losses;  // of its A leaves
  std::vector<double>
      block_squares;  // per block of kShardAlign elements of the own shard's total gradient
};

struct Verdict {
  Status status;  // ok: commit. The same code on every rank; nobody commits otherwise
  double loss = 0, grad_norm = 0;
  StepControl agreed;
};

/// One rank's way of voting; pure but for the exchanges.
class Vote {
 public:
  Vote(const std::vector<Unit>& units, const ShardLayout& layout, int accumulation,
       Collective& shard, Collective& replicate);
  /// An error is a collective's; then there is no verdict.
  Result<Verdict> hold(const Ballot& ballot, double& wait_ms);

 private:
  struct Run {  // real blocks of one unit on one rank
    size_t first = 0, count = 0;
  };
  Run run_of(size_t unit, size_t rank) const;
  void add_squares(const Ballot& ballot, std::vector<double>& record) const;
  double grad_norm(std::span<const double* const> squares_of_rank) const;

  const std::vector<Unit>* units_;
  const ShardLayout* layout_;
  size_t accumulation_;
  Collective* shard_;
  Collective* replicate_;
  size_t squares_ = 0;  // doubles of a rank's partial sums of squares, at most
};

}  // namespace simplescale
