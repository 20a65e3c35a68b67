// Resident experts: a trainer has some experts of each layer, the rows of its micro-batch's tokens go to the
// trainers that have theirs, and what those return comes back. No bit depends on it: an expert's rows of one
// micro-batch are computed alone, and its gradients are leaves of the step's tree.
//
// Trainers exchange rows in rounds. In round r a trainer sends to the one r places after it and computes for
// the one r places before it; in round 0 for itself. Two rounds may be under way: while one is computed, the
// rows of the next are received. So memory does not depend on the number of trainers, nor on what tokens
// choose. Which tokens go where is known from the counts of each micro-batch, which all trainers get first.
//
// All ranks of a group must make the same calls, with or without a micro-batch of their own. The compute
// thread makes them.
#pragma once

#include <array>
#include <deque>
#include <span>
#include <vector>

#include "model/backend.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/program/program.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {

class TokenExchange {
 public:
  /// plan: with rows_sent. The referenced objects must outlive the exchange.
  static Result<TokenExchange> create(const BufferPlan& plan, const EngineOptions& options,
                                      Backend& backend, Collective& shard);

  // These carry out the program's tasks of a unit of experts. has_tokens: this trainer has the micro-batch.
  // compute_ms: grows by the time of the backend's calls.
  Status route(const Task& task, int layer, bool has_tokens, WaitClock& wait, double& compute_ms);
  /// block: the parameters of the block's other unit.
  Status route_backward(const Task& task, int layer, const void* block, bool has_tokens,
                        double& compute_ms);
  /// params: of this trainer's experts.
  Status forward(const Task& task, int layer, const void* params, WaitClock& wait,
                 double& compute_ms);
  /// grad: (S, elements of this trainer's experts): part s becomes the gradient by the micro-batch of trainer
  /// s, if it has one.
  Status backward(const Task& task, int layer, const void* params, void* grad, WaitClock& wait,
                  double& compute_ms);
  Status combine(const Task& task, int layer, bool has_tokens, WaitClock& wait, double& compute_ms);

 private:
  struct Frame {
    TokenRows rows;  // of this trainer's tokens: sent, then overwritten by what is returned
    // Of each layer: (S, E + S), of each trainer the rows for each expert, then the tokens for each trainer.
    std::vector<std::vector<int32_t>> counts;
    std::vector<WorkPtr> returned;  // of each round
  };
  /// Rows that another trainer has sent in a round.
  struct Received {
    TokenRows rows, result;
    WorkPtr arrives;
    WorkPtr* returns = nullptr;  // of the last round that used `result`
  };
  /// A round of a pass of a micro-batch.
  struct Round {
    int frame = 0, layer = 0, number = 0;
    bool backward = false;
  };
  /// Some rows of a frame, of so many tokens.
  struct Range {
    size_t first = 0, count = 0, tokens = 0;
  };

  TokenExchange(const EngineOptions& options, Backend& backend, Collective& shard);
  int after(int round) const { return (shard_->rank() + round) % size_; }
  int before(int round) const { return (shard_->rank() + size_ - round) % size_; }
  /// What trainer `from` has counted.
  std::span<const int32_t> counts(const Round& round, int from) const;
  /// The rows that trainer `from` sends to trainer `to`, and how many those are by expert.
  Range range(const Round& round, int from, int to) const;
  std::span<const int32_t> tokens(const Round& round, int from, int to) const;
  TokenRows at(const TokenRows& rows, size_t first) const;
  /// The parcels of `range` rows. returned: on their way back.
  void add(std::vector<Parcel>& parcels, int rank, const TokenRows& rows, const Range& range,
           bool backward, bool returned) const;
  void queue(const Task& task, int layer, bool backward);
  void start_rounds();
  Status pass(const Task& task, int layer, bool backward, const void* params, char* grad,
              WaitClock& wait, double& compute_ms);
  static Status finish(WorkPtr& work, WaitClock& wait);

  Backend* backend_;
  Collective* shard_;
  int size_;
  ModelShape shape_;
  size_t row_bytes_;            // C elements
  size_t expert_elements_ = 0;  // of this trainer's experts
  size_t element_ = 0;          // bytes
  std::vector<Frame> frames_;
  std::array<Received, 2> received_;
  std::deque<Round> waiting_;  // that are not started yet
  uint64_t started_ = 0, passed_ = 0;
};

}  // namespace simplescale
