// A shard's state in host memory: AdamW, the average of the parameters, and the hashes of what was
// read and of what was written, in one pass over memory. One AdamW for CPU trainers and for GPUs whose
// state is in host memory. The compute thread makes all calls; the threads of a Parallel do the work,
// and no bit depends on their number.
#pragma once

#include <span>
#include <vector>

#include "model/backend.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/parallel.hpp"

namespace simplescale::cpu {

/// As Backend::cast(). to: (count) in `precision`.
void cast(const Parallel& threads, DType precision, const float* from, void* to, size_t count);
/// As Backend::adamw(), of host memory. rounded: in `precision`.
void adamw(const Parallel& threads, DType precision, const AdamW& options,
           std::span<const ParameterRun> runs, const float* gradient, const float* from_params,
           const void* from_avg, const void* from_avg_sq, float* to_params, void* to_avg,
           void* to_avg_sq, void* rounded);
/// As Backend::average(), of host memory.
void average(const Parallel& threads, float weight, size_t count, const float* params,
             const float* from, float* to);

/// An update of a whole shard. from, to: different memory; their number of elements is even.
struct ShardUpdate {
  AdamW options;
  std::span<const ParameterRun> runs;  // all elements, in order
  const float* gradient = nullptr;
  TrainState::Side from, to;
  float average_weight = 0;  // of Backend::average(), if the state has an average
  DType precision = DType::f32;
  void* rounded = nullptr;  // as of Backend::adamw()
};

class HostUpdate {
 public:
  /// What `update` refers to must outlive this object.
  HostUpdate(const ShardUpdate& update, Parallel threads);
  /// Updates all elements before `end`, and some more, that are not updated yet. Returns how many are.
  size_t up_to(size_t end);
  /// state_hash() of both sides, once all elements are updated.
  Hash128 hash_of_from() const { return hash_of(from_hashes_); }
  Hash128 hash_of_to() const { return hash_of(to_hashes_); }

 private:
  /// Of each part its blocks' hashes, as state_hash() has them.
  using Hashes = std::vector<std::vector<Hash128>>;
  void update_tile(size_t first, size_t end);
  void hash_tile(size_t first, size_t end, const TrainState::Side& side, Hashes& hashes) const;
  static Hash128 hash_of(const Hashes& hashes);

  const ShardUpdate update_;
  const Parallel threads_;
  const size_t total_;
  const size_t
      tile_;  // elements that a thread updates at a time: whole blocks of all parts' hashes
  size_t done_ = 0;
  Hashes from_hashes_, to_hashes_;
};

}  // namespace simplescale::cpu
