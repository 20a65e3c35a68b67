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

/// Blocks alternate between two buffers, and so do their experts. Embeddings and head share one, unless
/// they are tied: the head then needs both at once.
void rotating(const std::vector<Unit>& units, const std::vector<size_t>& padded, bool tied,
              std::vector<size_t>& pool_of_unit, std::vector<BufferPool>& pools) {
  pools = {{tied ? padded.front() : std::max(padded.front(), padded.back()), 1}, {}};
  if (tied) pools.push_back({padded.back(), 1});
  const bool has_experts =
      std::ranges::any_of(units, [](const Unit& unit) { return unit.kind == Unit::Kind::experts; });
  const size_t of_experts = has_experts ? pools.size() : 1;
  if (has_experts) pools.push_back({});
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const Unit::Kind kind = units[unit].kind;
    pool_of_unit.push_back(kind == Unit::Kind::block          ? 1
                           : kind == Unit::Kind::experts      ? of_experts
                           : kind == Unit::Kind::head && tied ? 2
                                                              : 0);
    if (kind != Unit::Kind::block && kind != Unit::Kind::experts) continue;
    BufferPool& pool = pools[pool_of_unit.back()];
    pool = {std::max(pool.elements, padded[unit]), std::min<size_t>(pool.slots + 1, 2)};
  }
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

/// True if every trainer computes its leaves of every step in one turn, so that a unit's gradient is
/// complete once a step; also if groups are missing.
bool has_one_turn(const EngineOptions& options, size_t groups, size_t shards) {
  const auto turns = [&](uint64_t leaves) {
    size_t most = 1;
    for (size_t some = groups; some > 0 && most == 1; --some) {
      const Shares shares =
          some == groups ? shares_of(options, leaves, some, shards)
                         : Shares::even(leaves, some, shards, static_cast<uint64_t>(options.wave));
      for (uint64_t group = 0; group < some; ++group)
        most = std::max(most, shares.turns(group).size());
    }
    return most;
  };
  return most_of_steps(options, turns) == 1;
}

/// Elements of every unit, whole.
std::vector<size_t> padded_units(const std::vector<Unit>& units, size_t shards) {
  std::vector<size_t> padded;
  for (const Unit& unit : units) padded.push_back(shard_count(unit.count, shards) * shards);
  return padded;
}

/// Three blocks: one is added to while the sums of the one before it are exchanged, and those of the
/// one before that are copied.
void make_windows(const std::vector<Unit>& units, const std::vector<size_t>& padded, size_t shards,
                  bool tied, BufferPlan& plan) {
  std::vector<size_t> parts;
  for (const size_t elements : padded) parts.push_back(elements / shards);
  rotating(units, parts, tied, plan.pool_of_unit_window, plan.windows);
  plan.windows[1].slots = std::min<size_t>(parts.size() - 2, 3);
  if (tied) {  // lm_head's part stays until the embeddings' is complete
    plan.pool_of_unit_window.push_back(plan.windows.size());
    plan.windows.push_back({parts.front(), 1});
  }
  plan.window_digits = plan.digits;
  if (shards > 1 || plan.digits == 1) return;
  // One shard adds leaf by leaf, to a node that ends up in the first digit, one unit after the other;
  // but lm_head's part of tied embeddings at the same time as the head.
  plan.window_digits = 1;
  plan.further = {{std::max({parts.front(), parts[1], tied ? 0 : parts.back()}), plan.digits - 1}};
  if (tied) plan.further.push_back({parts.back(), plan.digits - 1});
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

/// True if a unit's sums leave the device when they are complete.
bool leave_device(const EngineOptions& options, size_t groups, size_t shards, bool host_memory) {
  return options.state_in_host && !host_memory && has_one_turn(options, groups, shards);
}

}  // namespace

BufferBytes BufferPlan::bytes(DType precision, size_t shard_total) const {
  const size_t total = separate_total ? 1 : 0,
               row = row_elements * simplescale::bytes_of(precision);
  const size_t sums_of_shard =
      windows.empty()
          ? (digits + total) * (shard_total + tied_gradient) * sizeof(float)
          : (window_digits + total) * bytes_of(windows, DType::f32) + bytes_of(further, DType::f32);
  return {.gather = bytes_of(gather, precision),
          .gradient = bytes_of(gradient, precision),
          .sums = bytes_of(sums, DType::f32) * sum_digits,
          .slices = sums_of_shard,
          .muon = (muon_unit + muon_part + muon_owned) * simplescale::bytes_of(precision),
          .state = device_state * shard_total,
          .exchange = frames * rows_sent * (2 * row + 2 * sizeof(float)) +
                      2 * rows_received * (3 * row + 4 * sizeof(float))};
}

size_t BufferPlan::host_bytes(DType precision, size_t shard_total) const {
  return through_host ? shard_total * (sizeof(float) + simplescale::bytes_of(precision)) : 0;
}

namespace {

/// leaves_device: whether a unit's sums do, and with one shard its parameters.
BufferPlan plan_of(const EngineOptions& options, size_t groups, size_t shards, bool host_memory,
                   bool native_sums, bool leaves_device) {
  const std::vector<Unit> units = units_of(options.shape);
  const std::vector<size_t> padded = padded_units(units, shards);
  const bool fp32 = options.precision == DType::f32, tied = options.shape.tie_embeddings;
  const auto leaves = static_cast<uint64_t>(options.leaves);

  BufferPlan plan;
  plan.through_host = options.state_in_host && !host_memory;
  std::vector<size_t> gathered = padded;
  if (has_resident_experts(options, shards)) {
    const Experts& x = options.shape.experts;
    const auto tokens = static_cast<int64_t>(options.micro_batch_size) * options.shape.block_size;
    plan.rows_sent = static_cast<size_t>(tokens * x.per_token);
    plan.rows_received =
        static_cast<size_t>(tokens * std::min(x.per_token, x.count / static_cast<int64_t>(shards)));
    plan.row_elements = static_cast<size_t>(options.shape.dim);
    plan.frames = static_cast<size_t>(options.wave);
    for (size_t unit = 0; unit < units.size(); ++unit)
      if (units[unit].kind == Unit::Kind::experts) {
        gathered[unit] /= shards;
        plan.resident_units.push_back(unit);
      }
  }
  if (shards > 1 ? options.sharding == Sharding::full_shard : leaves_device)
    rotating(units, gathered, tied, plan.pool_of_unit_gather, plan.gather);
  else if (shards > 1 || !fp32 || plan.through_host)
    one_each(gathered, plan.pool_of_unit_gather, plan.gather);

  plan.sums_in_background = shards > 1 || !host_memory;
  plan.gradient_in_slice = shards == 1 && leaves <= groups && fp32 && host_memory;
  if (!plan.gradient_in_slice) {
    rotating(units, padded, tied, plan.pool_of_unit_gradient, plan.gradient);
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
  if (leaves_device) make_windows(units, padded, shards, tied, plan);
  plan.device_state = host_memory || plan.through_host ? 0 : state_format(options).bytes();
  if (options.optimizer == Optimizer::muon) {
    plan.muon_unit = *std::max_element(padded.begin() + 1, padded.end() - 1);
    plan.muon_part = shards > 1 ? plan.muon_unit / shards : 0;
    plan.muon_owned = most_owned(muon_matrices(units), shards * groups);
  }
  return plan;
}

}  // namespace

BufferPlan buffer_plan(const EngineOptions& options, size_t groups, size_t shards, bool host_memory,
                       bool native_sums) {
  return plan_of(options, groups, shards, host_memory, native_sums,
                 leave_device(options, groups, shards, host_memory));
}

BufferPlan most_buffers(const EngineOptions& options, size_t groups, size_t shards,
                        bool host_memory, bool native_sums, bool any_weights) {
  const bool leaves_device = leave_device(options, groups, shards, host_memory);
  BufferPlan plan = plan_of(options, 1, shards, host_memory, native_sums, leaves_device);
  if (native_sums || groups == 1) return plan;
  if (leaves_device) {
    for (size_t some = 2; some <= groups; ++some) {
      BufferPlan more = plan_of(options, some, shards, host_memory, native_sums, true);
      const size_t digits = std::max(plan.digits, more.digits);
      if (more.bytes(DType::f32, 0).slices > plan.bytes(DType::f32, 0).slices)
        plan = std::move(more);
      plan.digits = digits;
    }
    return plan;
  }
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
