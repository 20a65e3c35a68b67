#include "model/engine/optimizer.hpp"

#include <algorithm>

#include "runtime/base/state_hash.hpp"

namespace simplescale {

constexpr size_t kHashedParts = 16;

std::vector<DecayRun> decay_runs(const std::vector<Unit>& units, const ShardLayout& layout,
                                 size_t shard) {
  std::vector<DecayRun> runs;
  auto add = [&](size_t first, size_t end, bool decay) {
    if (first >= end) return;
    if (!runs.empty() && runs.back().decay == decay)
      runs.back().count += end - first;
    else
      runs.push_back({first, end - first, decay});
  };
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const size_t first = shard * layout.count[unit], end = first + layout.count[unit];
    auto to_shard = [&](size_t element) {
      return std::clamp(element, first, end) - first + layout.offset[unit];
    };
    for (const Parameter& parameter : units[unit].parameters)
      add(to_shard(parameter.offset), to_shard(parameter.offset + parameter.count),
          parameter.is_matrix());
    add(to_shard(units[unit].count), to_shard(end), false);
  }
  return runs;
}

Result<ShardOptimizer> ShardOptimizer::create(const BufferPlan& plan, std::vector<DecayRun> runs,
                                              size_t total, Backend& backend, Collective& shard,
                                              TrainState& state) {
  ShardOptimizer optimizer(std::move(runs), total, backend, state);
  if (plan.device_state) {
    SS_ASSIGN(void* device, shard.allocate(3 * total * sizeof(float)));
    optimizer.device_ = static_cast<float*>(device);
  }
  return optimizer;
}

void ShardOptimizer::load() {
  const TrainState::Side side = state_->committed();
  params_ = side.params.data();
  if (!device_) return;
  const size_t bytes = total_ * sizeof(float);
  backend_->copy_to_device(device_, side.params.data(), bytes);
  backend_->copy_to_device(device_ + total_, side.exp_avg.data(), bytes);
  backend_->copy_to_device(device_ + 2 * total_, side.exp_avg_sq.data(), bytes);
  backend_->synchronize();
  params_ = device_;
}

Hash128 ShardOptimizer::hash_of(const TrainState::Side& side) const {
  return state_hash(side, [this](size_t tasks, const std::function<void(size_t)>& body) {
    backend_->parallel(tasks, body);
  });
}

Hash128 ShardOptimizer::whole_hash() const {
  return hash_of(state_->committed());
}

bool ShardOptimizer::intact(const Hash128& whole_hash) const {
  const Hash128 then = state_->committed_hash();
  return device_ || then == Hash128{} || then == whole_hash;
}

Hash128 ShardOptimizer::hash_for_vote() const {
  if (!device_) return whole_hash();
  const TrainState::Side side = state_->committed();
  const uint64_t step = state_->step();
  const size_t part = total_ / kShardAlign / kHashedParts * kShardAlign + kShardAlign;
  const size_t first = std::min(total_, step % kHashedParts * part),
               count = std::min(part, total_ - first);
  uint64_t hashes[4] = {step};
  for (int kind = 0; kind < 3; ++kind) {
    const float* values = (kind == 0   ? side.params
                           : kind == 1 ? side.exp_avg
                                       : side.exp_avg_sq)
                              .data();
    hashes[kind + 1] = hash128(values + first, count * sizeof(float)).low;
  }
  return hash128(hashes, sizeof(hashes));
}

Status ShardOptimizer::apply(const AdamW& options, const float* gradient, int state_timeout_ms,
                             bool check_source) {
  const TrainState::Side from = state_->committed();
  SS_ASSIGN(const TrainState::Side to, state_->begin_write(state_timeout_ms));
  if (device_) {
    float *const params = device_, *const avg = device_ + total_,
                 *const avg_sq = device_ + 2 * total_;
    backend_->adamw(options, runs_, gradient, params, avg, avg_sq, params, avg, avg_sq);
    const size_t bytes = total_ * sizeof(float);
    backend_->copy_to_host(to.params.data(), params, bytes);
    backend_->copy_to_host(to.exp_avg.data(), avg, bytes);
    backend_->copy_to_host(to.exp_avg_sq.data(), avg_sq, bytes);
  } else {
    backend_->adamw(options, runs_, gradient, from.params.data(), from.exp_avg.data(),
                    from.exp_avg_sq.data(), to.params.data(), to.exp_avg.data(),
                    to.exp_avg_sq.data());
    params_ = to.params.data();
  }
  backend_->synchronize();
  if (check_source && !intact(hash_of(from)))
    return {Code::mismatch, "the state has changed in memory while the next was made of it"};
  state_->commit(options.step, device_ ? Hash128{} : hash_of(to));
  return {};
}

}  // namespace simplescale
