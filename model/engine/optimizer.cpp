#include "model/engine/optimizer.hpp"

#include <algorithm>

#include "runtime/training/state_hash.hpp"

namespace simplescale {

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
  SS_ASSERT(!copying_);
  const TrainState::Side side = state_->committed();
  params_ = side.params.data();
  if (!device_) return;
  const size_t bytes = total_ * sizeof(float);
  backend_->copy_to_device(device_, side.params.data(), bytes);
  backend_->copy_to_device(device_ + total_, side.exp_avg.data(), bytes);
  backend_->copy_to_device(device_ + 2 * total_, side.exp_avg_sq.data(), bytes);
  backend_->synchronize();
  params_ = device_;
  step_ = state_->step();
  hash_ = state_->committed_hash();
}

Hash128 ShardOptimizer::hash_of(const TrainState::Side& side) const {
  return backend_->state_hash(side.params.data(), side.exp_avg.data(), side.exp_avg_sq.data(),
                              total_);
}

Hash128 ShardOptimizer::whole_hash() const {
  if (!device_) return hash_of(state_->committed());
  return backend_->state_hash(device_, device_ + total_, device_ + 2 * total_, total_);
}

Hash128 ShardOptimizer::copy_hash() const {
  return state_hash(state_->committed(),
                    [this](size_t tasks, const auto& body) { backend_->parallel(tasks, body); });
}

bool ShardOptimizer::intact(const Hash128& whole_hash) const {
  const Hash128 then = device_ ? hash_ : state_->committed_hash();
  return then == Hash128{} || then == whole_hash;
}

Status ShardOptimizer::apply(const AdamW& options, const float* gradient, int state_timeout_ms,
                             bool check_source) {
  SS_RETURN_IF_ERROR(settle());
  const TrainState::Side from = state_->committed();
  SS_ASSIGN(const TrainState::Side to, state_->begin_write(state_timeout_ms));
  if (device_) {
    float *const params = device_, *const avg = device_ + total_,
                 *const avg_sq = device_ + 2 * total_;
    backend_->adamw(options, runs_, gradient, params, avg, avg_sq, params, avg, avg_sq);
    step_ = options.step;
    hash_ = whole_hash();
    const size_t bytes = total_ * sizeof(float);
    backend_->start_copy(to.params.data(), params, bytes);
    backend_->start_copy(to.exp_avg.data(), avg, bytes);
    backend_->start_copy(to.exp_avg_sq.data(), avg_sq, bytes);
    copying_ = true;
    return {};
  }
  backend_->adamw(options, runs_, gradient, from.params.data(), from.exp_avg.data(),
                  from.exp_avg_sq.data(), to.params.data(), to.exp_avg.data(),
                  to.exp_avg_sq.data());
  params_ = to.params.data();
  backend_->synchronize();
  if (check_source && !intact(hash_of(from)))
    return {Code::mismatch, "the state has changed in memory while the next was made of it"};
  state_->commit(options.step, hash_of(to));
  return {};
}

Status ShardOptimizer::settle() {
  if (!copying_) return {};
  backend_->finish_copies();
  copying_ = false;
  state_->commit(step_, hash_);
  return {};
}

}  // namespace simplescale
