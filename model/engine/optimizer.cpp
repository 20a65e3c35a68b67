#include "model/engine/optimizer.hpp"

#include <algorithm>
#include <future>
#include <memory>
#include <utility>

#include "model/cpu/shard.hpp"
#include "runtime/training/state_hash.hpp"

namespace simplescale {

std::vector<ParameterRun> parameter_runs(const std::vector<Unit>& units, const ShardLayout& layout,
                                         size_t shard, std::span<const ParameterGroup> groups,
                                         float weight_decay, Optimizer optimizer,
                                         float router_bias_rate) {
  std::vector<ParameterRun> runs;
  // element_at: the element of the model that lies at 0 of the shard
  auto add = [&](size_t first, size_t end, uint64_t element_at, const ParameterRates& rates,
                 float muon_scale, float sign_step = 0) {
    if (first >= end) return;
    const uint64_t element = element_at + first;
    if (!runs.empty() && runs.back().element + runs.back().count == element &&
        runs.back().rate_factor == rates.rate_factor &&
        runs.back().weight_decay == rates.weight_decay && runs.back().muon_scale == muon_scale &&
        runs.back().sign_step == sign_step)
      runs.back().count += end - first;
    else
      runs.push_back({first, end - first, rates.rate_factor, rates.weight_decay, muon_scale,
                      sign_step, element});
  };
  const std::vector<MuonMatrix> matrices =
      optimizer == Optimizer::muon ? muon_matrices(units) : std::vector<MuonMatrix>();
  auto matrix = matrices.begin();  // the next one in the order of parameters
  uint64_t before = 0;             // elements of the model before the unit
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const size_t first = shard * layout.count[unit], end = first + layout.count[unit];
    const uint64_t element_at = before + first - layout.offset[unit];  // wraps around
    auto to_shard = [&](size_t element) {
      return std::clamp(element, first, end) - first + layout.offset[unit];
    };
    for (const Parameter& parameter : units[unit].parameters) {
      float scale = 0;
      if (matrix != matrices.end() && matrix->unit == unit && matrix->offset == parameter.offset)
        scale = (matrix++)->update_scale();
      add(to_shard(parameter.offset), to_shard(parameter.offset + parameter.count), element_at,
          rates_of(parameter, groups, weight_decay), scale,
          parameter.is_router_bias() ? router_bias_rate : 0);
    }
    add(to_shard(units[unit].count), to_shard(end), element_at, {}, 0);
    before += shard_count(units[unit].count, 1);
  }
  return runs;
}

ShardOptimizer::ShardOptimizer(std::vector<ParameterRun> runs, size_t total,
                               const EngineOptions& options, Backend& backend, TrainState& state)
    : runs_(std::move(runs)),
      total_(total),
      precision_(options.precision),
      average_weight_(options.ema_decay > 0 ? static_cast<float>(1 - options.ema_decay) : 0),
      updates_all_(options.optimizer != Optimizer::muon),
      backend_(&backend),
      state_(&state) {}

Result<ShardOptimizer> ShardOptimizer::create(const BufferPlan& plan,
                                              std::vector<ParameterRun> runs, size_t total,
                                              const EngineOptions& options, Backend& backend,
                                              Collective& shard, TrainState& state) {
  ShardOptimizer optimizer(std::move(runs), total, options, backend, state);
  if (plan.device_state > 0) {
    const size_t values = plan.device_state * total / sizeof(float);
    SS_ASSIGN(void* device, shard.allocate(values * sizeof(float)));
    optimizer.device_ = TrainState::Side::over({static_cast<float*>(device), values}, total,
                                               state.format().moments);
  }
  return optimizer;
}

void ShardOptimizer::load() {
  SS_ASSERT(!copying_);
  unstored_ = false;
  const TrainState::Side side = state_->committed();
  params_ = side.params.data();
  if (!on_device()) return;
  const auto parts = side.parts(), to = device_.parts();
  for (size_t i = 0; i < to.size(); ++i)
    if (!to[i].empty())
      backend_->copy_to_device(to[i].data(), parts[i].data(), parts[i].size_bytes());
  backend_->synchronize();
  params_ = device_.params.data();
  step_ = state_->step();
  hash_ = state_->committed_hash();
}

Hash128 ShardOptimizer::hash_of(const TrainState::Side& side) const {
  return state_hash(side, backend_->host_threads());
}

Hash128 ShardOptimizer::host_hash() const {
  return hash_of(state_->committed());
}

void ShardOptimizer::settle_hash() {
  if (made_) hash_ = std::exchange(made_, nullptr)();
}

void ShardOptimizer::start_hash() {
  settle_hash();
  if (on_device()) {
    current_ = backend_->start_state_hash(device_);
    return;
  }
  const auto hash = [this, side = state_->committed()] { return hash_of(side); };
  if (backend_->host_memory()) {  // whose threads compute
    current_ = hash;
    return;
  }
  // The device computes; the host's threads wait. At its end the future waits for its thread.
  const auto made = std::make_shared<std::future<Hash128>>(std::async(std::launch::async, hash));
  current_ = [made] { return made->get(); };
}

Hash128 ShardOptimizer::current_hash() {
  if (!current_) start_hash();
  return std::exchange(current_, nullptr)();
}

bool ShardOptimizer::matches_commit(const Hash128& current_hash) const {
  const Hash128 at_commit = on_device() ? hash_ : state_->committed_hash();
  return at_commit == Hash128{} || at_commit == current_hash;
}

Status ShardOptimizer::begin_write(int state_timeout_ms, WaitClock& wait) {
  SS_ASSERT(!copying_);
  unstored_ = false;
  if (on_device()) return {};
  from_ = state_->committed();
  const Waiting waiting(wait);
  SS_ASSIGN(to_, state_->begin_write(state_timeout_ms));
  return {};
}

void ShardOptimizer::apply(const AdamW& options, const float* gradient, void* rounded,
                           const Written& written) {
  applied_step_ = options.step;
  if (on_device() || !updates_all_) {
    const StateUpdate u = update();
    backend_->adamw(options, runs_, gradient, u.from_params, u.from_avg, u.from_avg_sq, u.to_params,
                    u.to_avg, u.to_avg_sq, rounded);
    if (written) written(total_);
    return;
  }
  constexpr size_t kParts = 32;  // that are uploaded one after the other
  cpu::HostUpdate made({.options = options,
                        .runs = runs_,
                        .gradient = gradient,
                        .from = from_,
                        .to = to_,
                        .average_weight = average_weight_,
                        .precision = precision_,
                        .rounded = rounded},
                       backend_->host_threads());
  const size_t part = written ? total_ / kParts + 1 : total_;
  for (size_t done = 0; done < total_;) {
    done = made.up_to(std::min(total_, done + part));
    if (written) written(done);
  }
  hashed_ = {made.hash_of_from(), made.hash_of_to()};
}

StateUpdate ShardOptimizer::update() const {
  const TrainState::Side &from = on_device() ? device_ : from_, &to = on_device() ? device_ : to_;
  return {from.params.data(),   from.exp_avg.data(), from.exp_avg_sq.data(),
          from.ema.data(),      to.params.data(),    to.exp_avg.data(),
          to.exp_avg_sq.data(), to.ema.data(),       state_->format().moments};
}

void ShardOptimizer::average() {
  if (average_weight_ == 0 || hashed_) return;  // or apply() has done it
  const StateUpdate u = update();
  backend_->average(average_weight_, total_, u.to_params, u.from_ema, u.to_ema);
}

Status ShardOptimizer::commit() {
  if (on_device()) {
    step_ = applied_step_;
    made_ = backend_->start_state_hash(device_);
    unstored_ = true;
    return {};
  }
  params_ = to_.params.data();
  backend_->synchronize();
  const auto hashed = std::exchange(hashed_, {});
  // ENGINE-5: it may have changed after the vote
  if (!matches_commit(hashed ? hashed->from : hash_of(from_)))
    return {Code::mismatch, "the state has changed in memory during the optimizer update"};
  state_->commit(applied_step_, hashed ? hashed->to : hash_of(to_));
  return {};
}

Status ShardOptimizer::start_store(int timeout_ms, WaitClock& wait) {
  if (!unstored_) return {};
  const Waiting waiting(wait);
  SS_ASSIGN(const TrainState::Side side, state_->begin_write(timeout_ms));
  const auto parts = device_.parts(), to = side.parts();
  for (size_t i = 0; i < to.size(); ++i)
    if (!to[i].empty()) backend_->start_copy(to[i].data(), parts[i].data(), to[i].size_bytes());
  unstored_ = false;
  copying_ = true;
  return {};
}

void ShardOptimizer::finish_store(WaitClock& wait) {
  if (!copying_) return;
  settle_hash();
  {
    const Waiting waiting(wait);
    backend_->finish_copies();
  }
  copying_ = false;
  state_->commit(step_, hash_);
}

}  // namespace simplescale
