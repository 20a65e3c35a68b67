// The numbers of a run: micro-batches, steps, learning rate, FLOP per token.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

#include "runtime/config/check.hpp"
#include "runtime/config/faults.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {
namespace {

constexpr double warmup_fraction = 0.05;
constexpr int64_t warmup_steps_max = 2000;  // as in TinyLlama

std::string text(int64_t number) {
  return std::to_string(number);
}
Status bad(const std::string& message) {
  return Status(Code::bad_config, message);
}

/// Sets accumulation, leaves, global_batch_size and tokens_per_step; also if global_batch_size is
/// wrong, for the checks that follow.
Status plan_batch(const Config& config, Plan& plan) {
  const int64_t world = plan.topology.world(), size = plan.micro_batch_size;
  const int64_t unit = world * size;
  const int64_t wanted = config.train.global_batch_size;
  plan.accumulation = std::max<int64_t>(1, wanted / unit);
  plan.leaves = world * plan.accumulation;
  plan.global_batch_size = plan.leaves * size;
  plan.tokens_per_step = plan.global_batch_size * plan.shape.block_size;
  if (wanted % unit != 0) {
    const int64_t below = wanted / unit * unit;
    return bad("train.global_batch_size = " + text(wanted) + " is not a multiple of " +
               text(world) + " trainers x " + text(size) + " samples: use " +
               (below > 0 ? text(below) + " or " : "") + text(below + unit));
  }
  return {};
}

/// Sets max_steps, max_iters and max_tokens, in whole steps. The paper's formula: tokens_per_iter =
/// micro_batch_size x block_size; max_iters = max_tokens / world / tokens_per_iter.
Status plan_length(const Config& config, Plan& plan) {
  const TrainConfig& train = config.train;
  const int64_t tokens_per_iter = plan.micro_batch_size * plan.shape.block_size;
  const int64_t iters_of_tokens = train.max_tokens / plan.topology.world() / tokens_per_iter;
  struct Limit {
    const char* key;
    int64_t value, steps;
  };
  const Limit limits[] = {
      {"train.max_tokens", train.max_tokens, iters_of_tokens / plan.accumulation},
      {"train.max_iters", train.max_iters, train.max_iters / plan.accumulation},
      {"train.max_steps", train.max_steps, train.max_steps}};
  plan.max_steps = 0;
  for (const Limit& limit : limits) {
    if (limit.value == 0) continue;
    if (limit.steps == 0)
      return bad(std::string(limit.key) + " = " + text(limit.value) + " is less than one step of " +
                 text(plan.accumulation) + " micro-batches per trainer, " +
                 text(plan.tokens_per_step) + " tokens");
    plan.max_steps = plan.max_steps ? std::min(plan.max_steps, limit.steps) : limit.steps;
  }
  if (plan.max_steps == 0)
    return bad(
        "train.max_steps, train.max_iters and train.max_tokens are all 0, so the run has no end: "
        "set one of them");
  plan.max_iters = plan.max_steps * plan.accumulation;
  if (__builtin_mul_overflow(plan.max_steps, plan.tokens_per_step, &plan.max_tokens))
    return bad("train.max_steps = " + text(plan.max_steps) + " steps of " +
               text(plan.tokens_per_step) + " tokens are more than can be counted");
  return {};
}

Status plan_learning_rate(const Config& config, Plan& plan) {
  const TrainConfig& train = config.train;
  LearningRate& rate = plan.learning_rate;
  rate.peak = train.learning_rate;
  rate.minimum_follows = train.min_learning_rate < 0;
  rate.minimum = rate.minimum_follows ? rate.peak / 10 : train.min_learning_rate;
  rate.steps = plan.max_steps;
  rate.warmup_steps =
      train.warmup_iters < 0
          ? std::min(warmup_steps_max,
                     static_cast<int64_t>(warmup_fraction * static_cast<double>(plan.max_steps)))
          : train.warmup_iters / plan.accumulation + (train.warmup_iters % plan.accumulation != 0);
  if (rate.warmup_steps >= plan.max_steps)
    return bad("train.warmup_iters = " + text(train.warmup_iters) + " takes " +
               text(rate.warmup_steps) + " steps, but the whole run has only " +
               text(plan.max_steps));
  return {};
}

}  // namespace

double LearningRate::at(int64_t step) const {
  double top = peak, bottom = minimum;
  const auto later =
      std::ranges::upper_bound(changes, static_cast<uint64_t>(step) + 1, {}, &RateChange::step);
  if (later != changes.begin()) {
    top = std::prev(later)->peak;
    if (minimum_follows) bottom = top / 10;
  }
  if (step < warmup_steps)
    return top * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (step >= steps) return bottom;
  const double angle = std::numbers::pi * static_cast<double>(step - warmup_steps) /
                       static_cast<double>(steps - warmup_steps);
  return bottom + (top - bottom) / 2 * (1 + std::cos(angle));
}

std::vector<Status> plan_problems(const Config& config, Plan& plan) {
  std::vector<Status> problems;
  const auto add = [&](const Status& status) {
    const auto same = [&](const Status& other) { return other.message() == status.message(); };
    if (!status.ok() && std::ranges::none_of(problems, same)) problems.push_back(status);
    return status.ok();
  };
  const auto shape = model_shape(config);
  Config known = config;
  if (!add(shape.status())) {  // checks the rest with another model
    known.model = {.preset = "micro"};
    known.cluster.memory_per_trainer_gib = 0;
  }
  plan.shape = shape.ok() ? *shape : *model_shape(known);
  const auto topology = plan_topology(known);
  plan.micro_batch_size = config.train.micro_batch_size;
  if (add(topology.status())) {
    plan.topology = *topology;
    add(plan_batch(config, plan));
    if (add(plan_length(config, plan))) {
      add(plan_learning_rate(config, plan));
      add(check_faults(config, plan));
    }
  }
  return problems;
}

Result<Plan> make_plan(const Config& config) {
  Plan plan;
  if (const auto problems = plan_problems(config, plan); !problems.empty()) return problems.front();
  SS_ASSIGN(plan.skipped, SkippedSamples::parse(config.data.skip_samples));
  plan.parameters = parameter_count(plan.shape);
  plan.memory = memory_estimate(config, plan.shape, plan.topology.sharding, plan.topology.shards,
                                plan.topology.groups, plan.rows());
  return plan;
}

Result<Plan> make_plan(const LoadedConfig& loaded) {
  auto plan = make_plan(loaded.config);
  if (!plan.ok()) return located(plan.status(), loaded);
  return plan;
}

FlopsPerToken flops_per_token(const ModelShape& s) {
  const auto layers = static_cast<double>(s.layers), dim = static_cast<double>(s.dim);
  const double attention = layers * dim * static_cast<double>(s.block_size);
  const double kv_dim = static_cast<double>(s.kv_heads * s.head_dim());
  const double products =
      layers * dim * (2 * dim + 2 * kv_dim + 3 * static_cast<double>(s.hidden)) +
      static_cast<double>(s.vocab) * dim;
  return {.palm = 6 * static_cast<double>(parameter_count(s)) + 12 * attention,
          .causal = 6 * products + 6 * attention};
}

double mfu(const ModelShape& shape, double tokens_per_second, int world, double peak_flops) {
  if (peak_flops <= 0 || world < 1) return 0;
  return flops_per_token(shape).palm * tokens_per_second / (world * peak_flops);
}

}  // namespace simplescale
