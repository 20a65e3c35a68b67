#include "runtime/program/buffer_plan.hpp"

#include <algorithm>
#include <bit>

#include "runtime/training/train_state.hpp"

namespace simplescale {
namespace {

size_t bytes_of(const std::vector<BufferPool>& pools, DType precision) {
  size_t elements = 0;
  for (const BufferPool& pool : pools) elements += pool.elements * pool.slots;
  return elements * simplescale::bytes_of(precision);
}

/// Blocks alternate between two buffers. Embeddings and head share one, unless they are tied: the
/// head then needs both at once.
void rotating(const std::vector<size_t>& padded, bool tied, std::vector<size_t>& pool_of_unit,
              std::vector<BufferPool>& pools) {
  const size_t layers = padded.size() - 2;
  pool_of_unit.assign(padded.size(), 1);
  pool_of_unit.front() = 0;
  pool_of_unit.back() = tied ? 2 : 0;
  pools = {{tied ? padded.front() : std::max(padded.front(), padded.back()), 1},
           {padded[1], std::min<size_t>(layers, 2)}};
  if (tied) pools.push_back({padded.back(), 1});
}

void one_each(const std::vector<size_t>& padded, std::vector<size_t>& pool_of_unit,
              std::vector<BufferPool>& pools) {
  for (size_t unit = 0; unit < padded.size(); ++unit) {
    pool_of_unit.push_back(unit);
    pools.push_back({padded[unit], 1});
  }
}

/// The largest digits(leaves) of a step.
template <class Digits>
size_t most_of_steps(const EngineOptions& options, Digits digits) {
  size_t most = digits(static_cast<uint64_t>(options.leaves));
  for (const WarmupLeaves& warmup : options.warmup)
    most = std::max(most, digits(static_cast<uint64_t>(warmup.leaves)));
  return most;
}

/// Partial sums of the step that needs most of them. A wave's leaves are added one by one if a group
/// is one trainer.
size_t most_digits(const EngineOptions& options, size_t groups, size_t shards) {
  const auto wave = static_cast<uint64_t>(shards > 1 ? options.wave : 1);
  return most_of_steps(options, [&](uint64_t leaves) {
    return options.weights.empty()
               ? digits_of_groups(leaves, groups, shards, wave)
               : Shares::by_weight(leaves, options.weights, groups, shards, wave).digits();
  });
}

}  // namespace

BufferBytes BufferPlan::bytes(DType precision, size_t shard_total) const {
  const size_t shard_copies = digits + (separate_total ? 1 : 0);
  return {.gather = bytes_of(gather, precision),
          .own = own_parameters ? shard_total * simplescale::bytes_of(precision) : 0,
          .gradient = bytes_of(gradient, precision),
          .sums = bytes_of(sums, DType::f32) * sum_digits,
          .slices = shard_copies * (shard_total + tied_gradient) * sizeof(float),
          .muon = (muon_unit + muon_part + muon_owned) * simplescale::bytes_of(precision),
          .state = device_state * shard_total};
}

size_t BufferPlan::host_bytes(DType precision, size_t shard_total) const {
  return through_host ? shard_total * (sizeof(float) + simplescale::bytes_of(precision)) : 0;
}

BufferPlan buffer_plan(const EngineOptions& options, size_t groups, size_t shards, bool host_memory,
                       bool native_sums) {
  std::vector<size_t> padded;  // elements of every unit, whole
  for (const Unit& unit : units_of(options.shape))
    padded.push_back(shard_count(unit.count, shards) * shards);
  const bool fp32 = options.precision == DType::f32, tied = options.shape.tie_embeddings;
  const auto leaves = static_cast<uint64_t>(options.leaves);

  BufferPlan plan;
  plan.through_host = options.state_in_host && !host_memory;
  plan.own_parameters = plan.through_host && shards > 1;
  if (shards > 1 && options.sharding == Sharding::full_shard)
    rotating(padded, tied, plan.pool_of_unit_gather, plan.gather);
  else if (shards > 1 || !fp32 || plan.through_host)
    one_each(padded, plan.pool_of_unit_gather, plan.gather);

  plan.sums_in_background = shards > 1 || !host_memory;
  plan.gradient_in_slice = shards == 1 && leaves <= groups && fp32 && host_memory;
  if (!plan.gradient_in_slice) {
    rotating(padded, tied, plan.pool_of_unit_gradient, plan.gradient);
    if (tied)
      plan.pool_of_unit_gradient.push_back(0);  // lm_head's part comes before the embeddings'
  }
  if (tied) plan.tied_gradient = padded[0] / shards;
  if (options.wave > 1 && shards > 1) {
    plan.sums = plan.gradient;
    plan.sum_digits = static_cast<size_t>(std::countr_zero(static_cast<unsigned>(options.wave)));
  }

  // All groups must have the same plan: the group that needs most digits decides.
  if (!native_sums) plan.digits = most_digits(options, groups, shards);
  plan.separate_total = groups > 1 && !native_sums;
  plan.device_state = host_memory || plan.through_host ? 0 : state_format(options).bytes();
  if (options.optimizer == Optimizer::muon) {
    plan.muon_unit = padded[1];
    plan.muon_part = shards > 1 ? padded[1] / shards : 0;
    plan.muon_owned = most_owned(muon_matrices(units_of(options.shape)), shards * groups);
  }
  return plan;
}

BufferPlan most_buffers(const EngineOptions& options, size_t groups, size_t shards,
                        bool host_memory, bool native_sums, bool any_weights) {
  BufferPlan plan = buffer_plan(options, 1, shards, host_memory, native_sums);
  if (native_sums || groups == 1) return plan;
  plan.separate_total = true;
  if (any_weights) {
    plan.digits = most_of_steps(
        options, [&](uint64_t leaves) { return digits_of_any_groups(leaves, groups, shards); });
    return plan;
  }
  for (size_t some = 2; some <= groups; ++some)  // with a total
    plan.digits = std::max(plan.digits, most_digits(options, some, shards) + 1);
  --plan.digits;
  return plan;
}

}  // namespace simplescale
