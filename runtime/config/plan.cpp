// The numbers of a run: micro-batches, steps, learning rate, FLOP per token.
#include <algorithm>

#include "runtime/config/blend.hpp"
#include "runtime/config/check.hpp"
#include "runtime/config/faults.hpp"
#include "runtime/config/offload.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/program/costs.hpp"

namespace simplescale {
namespace {

constexpr double warmup_fraction = 0.05;
constexpr int64_t warmup_steps_max = 2000;  // as in TinyLlama

std::string text(int64_t number) {
  return std::to_string(number);
}
/// a / b, rounded up; 0 for a negative a (not set).
uint64_t up(int64_t a, int64_t b) {
  return a <= 0 ? 0 : static_cast<uint64_t>(a / b + (a % b != 0));
}
/// bad_config: a step's batch is not whole micro-batches; names the nearest that are. what: the key
/// and its value.
Status check_whole(const std::string& what, int64_t batch, const Plan& plan) {
  const int64_t samples = plan.micro_batch_size, below = batch / samples * samples;
  if (batch == below) return {};
  return bad_config(what +
                    ", which is not a multiple of train.micro_batch_size = " + text(samples) +
                    ": use " + (below > 0 ? text(below) + " or " : "") + text(below + samples));
}

/// In the warm-up some trainers may have no micro-batch; later each has one at least.
Status check_batch(int64_t wanted, const Plan& plan) {
  const std::string what = "train.global_batch_size = " + text(wanted);
  if (wanted == 0) return {};
  SS_RETURN_IF_ERROR(check_whole(what, wanted, plan));
  if (wanted >= plan.samples_per_iter()) return {};
  return bad_config(what + " is less than " + text(plan.topology.world()) + " trainers x " +
                    text(plan.micro_batch_size) + " samples: use " + text(plan.samples_per_iter()) +
                    " or more, or fewer trainers");
}

/// Each trainer has a micro-batch also after as many nodes have joined as may.
Status check_growth(const Config& config, const Plan& plan) {
  const int64_t most = int64_t{plan.topology.most_groups} * plan.topology.shards;
  if (plan.leaves >= most) return {};
  return bad_config("cluster.max_nodes = " + text(config.cluster.max_nodes) + " makes " +
                    text(most) + " trainers, but train.global_batch_size has only " +
                    text(plan.leaves) + " micro-batches of " + text(plan.micro_batch_size) +
                    " samples: use a batch of " + text(most * plan.micro_batch_size) +
                    " or more, or fewer nodes");
}

Status check_warmup_stage(const BatchStage& stage, int64_t after, const Plan& plan) {
  const std::string key =
      "train.batch_warmup: the stage until_tokens = " + text(stage.until_tokens);
  if (stage.until_tokens <= after)
    return bad_config(
        key + (after == 0
                   ? std::string(" ends before it begins")
                   : " does not end after the stage before it, until_tokens = " + text(after)));
  if (stage.global_batch_size < 1 || stage.global_batch_size > plan.global_batch_size)
    return bad_config(key + " has global_batch_size = " + text(stage.global_batch_size) +
                      "; it must be at least 1 and at most train.global_batch_size, " +
                      text(plan.global_batch_size));
  return check_whole(key + " has global_batch_size = " + text(stage.global_batch_size),
                     stage.global_batch_size, plan);
}

/// Sets accumulation, leaves, global_batch_size, batch and tokens_per_step; also if
/// global_batch_size is wrong, for the checks that follow.
Status plan_batch(const Config& config, Plan& plan) {
  const int64_t wanted = config.train.global_batch_size;
  const int64_t world = plan.topology.world();
  plan.leaves = std::max(world, wanted / plan.micro_batch_size);
  plan.accumulation = (plan.leaves + world - 1) / world;
  plan.global_batch_size = plan.leaves * plan.micro_batch_size;
  plan.tokens_per_step = plan.global_batch_size * plan.shape.block_size;
  std::vector<BatchSchedule::Stage> stages;
  Status status = check_batch(wanted, plan);
  if (status.ok()) status = check_growth(config, plan);
  int64_t after = 0;
  for (const BatchStage& stage : config.train.batch_warmup) {
    if (status.ok()) status = check_warmup_stage(stage, after, plan);
    if (!status.ok()) break;
    after = stage.until_tokens;
    stages.push_back(
        {static_cast<uint64_t>(stage.global_batch_size), up(after, plan.shape.block_size)});
  }
  plan.batch = BatchSchedule(static_cast<uint64_t>(plan.global_batch_size), stages);
  return status;
}

/// The samples of `iters` micro-batches of every trainer, or as many as can be counted.
uint64_t samples_of_iters(int64_t iters, const Plan& plan) {
  int64_t samples = 0;
  const bool over =
      __builtin_mul_overflow(std::max<int64_t>(0, iters), plan.samples_per_iter(), &samples);
  return static_cast<uint64_t>(over ? INT64_MAX : samples);
}

/// Sets max_steps, max_iters and max_tokens, in whole steps.
Status plan_length(const Config& config, Plan& plan) {
  const TrainConfig& train = config.train;
  const auto steps_of = [&](uint64_t samples) {
    return static_cast<int64_t>(plan.batch.steps_within(samples));
  };
  struct Limit {
    const char* key;
    int64_t value, steps;
  };
  const Limit limits[] = {
      {"train.max_tokens", train.max_tokens,
       steps_of(static_cast<uint64_t>(train.max_tokens / plan.shape.block_size))},
      {"train.max_iters", train.max_iters, steps_of(samples_of_iters(train.max_iters, plan))},
      {"train.max_steps", train.max_steps, train.max_steps}};
  plan.max_steps = 0;
  for (const Limit& limit : limits) {
    if (limit.value == 0) continue;
    if (limit.steps == 0) {
      const int64_t samples = static_cast<int64_t>(plan.batch.size(1));
      return bad_config(std::string(limit.key) + " = " + text(limit.value) +
                        " is less than one step of " + text(samples) + " samples, " +
                        text(samples * plan.shape.block_size) + " tokens");
    }
    plan.max_steps = plan.max_steps ? std::min(plan.max_steps, limit.steps) : limit.steps;
  }
  if (plan.max_steps == 0)
    return bad_config(
        "train.max_steps, train.max_iters and train.max_tokens are all 0, so the run has no end: "
        "set one of them");
  if (int64_t most = 0; __builtin_mul_overflow(plan.max_steps, plan.tokens_per_step, &most))
    return bad_config("train.max_steps = " + text(plan.max_steps) + " steps of " +
                      text(plan.tokens_per_step) + " tokens are more than can be counted");
  const auto samples =
      static_cast<int64_t>(plan.batch.samples(static_cast<uint64_t>(plan.max_steps)));
  plan.max_iters = samples / plan.samples_per_iter();
  plan.max_tokens = samples * plan.shape.block_size;
  return {};
}

/// Sets warmup_steps. At most one of three keys is set.
Status plan_warmup(const TrainConfig& train, Plan& plan) {
  const auto steps_to = [&](uint64_t samples) {
    return static_cast<int64_t>(plan.batch.steps_to(samples));
  };
  struct Length {
    const char* key;
    int64_t value, steps;
  };
  const Length lengths[] = {{"train.warmup_steps", train.warmup_steps, train.warmup_steps},
                            {"train.warmup_tokens", train.warmup_tokens,
                             steps_to(up(train.warmup_tokens, plan.shape.block_size))},
                            {"train.warmup_iters", train.warmup_iters,
                             steps_to(samples_of_iters(train.warmup_iters, plan))}};
  Length chosen = {
      "", -1,
      std::min(warmup_steps_max,
               static_cast<int64_t>(warmup_fraction * static_cast<double>(plan.max_steps)))};
  for (const Length& length : lengths) {
    if (length.value < 0) continue;
    if (chosen.value >= 0)
      return bad_config(std::string(length.key) + " and " + chosen.key +
                        " exclude each other: set one");
    chosen = length;
  }
  plan.learning_rate.warmup_steps = chosen.steps;
  if (chosen.steps < plan.max_steps) return {};
  return bad_config(std::string(chosen.key) + " = " + text(chosen.value) + " takes " +
                    text(chosen.steps) + " steps, but the whole run has only " +
                    text(plan.max_steps));
}

Status plan_learning_rate(const Config& config, Plan& plan) {
  const TrainConfig& train = config.train;
  LearningRate& rate = plan.learning_rate;
  rate.schedule = train.schedule;
  rate.peak = train.learning_rate;
  rate.minimum_follows = train.min_learning_rate < 0;
  rate.minimum = rate.minimum_follows ? rate.peak / 10 : train.min_learning_rate;
  rate.power = train.decay_power;
  rate.steps = plan.max_steps;
  SS_RETURN_IF_ERROR(plan_warmup(train, plan));
  const int64_t after_warmup = plan.max_steps - rate.warmup_steps;
  const int64_t usual = train.schedule == Schedule::wsd
                            ? std::clamp<int64_t>(plan.max_steps / 10, 1, after_warmup)
                            : after_warmup;
  const int64_t decay = train.decay_steps < 0 ? usual : train.decay_steps;
  if (decay > after_warmup)
    return bad_config("train.decay_steps = " + text(decay) + ", but only " + text(after_warmup) +
                      " steps follow the warm-up");
  rate.decay_begin = plan.max_steps - decay;
  rate.last_is_minimum = train.schedule == Schedule::wsd || train.decay_steps >= 0;
  return {};
}

}  // namespace

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
  if (shape.ok()) add(check_groups(config.train.group, units_of(plan.shape)));
  if (auto mixture = mixture_of(config, plan.shape.block_size); add(mixture.status()))
    plan.mixture = mixture.take();
  const auto topology = plan_topology(known);
  plan.micro_batch_size = config.train.micro_batch_size;
  if (add(topology.status())) {
    plan.topology = *topology;
    add(plan_batch(config, plan));
    add(plan_experts(config, plan));
    add(plan_offload(config, plan));
    add(plan_wave(config, plan));
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
  plan.state = state_format(config.train);
  plan.memory = memory_with_wave(config, plan, plan.wave);
  return plan;
}

Result<Plan> make_plan(const LoadedConfig& loaded) {
  auto plan = make_plan(loaded.config);
  if (!plan.ok()) return located(plan.status(), loaded);
  return plan;
}

FlopsPerToken flops_per_token(const ModelShape& s) {
  const auto layers = static_cast<double>(s.layers), q_dim = static_cast<double>(s.q_dim());
  const auto seen = static_cast<double>(s.window() > 0 ? s.window() : s.block_size);
  const ForwardFlops forward = forward_flops(s);
  return {.palm = 6 * static_cast<double>(active_parameters(s)) + 12 * layers * q_dim * seen,
          .causal = 3 * (forward.of_layers(s) + forward.head)};
}

double mfu(const ModelShape& shape, double tokens_per_second, int world, double peak_flops) {
  if (peak_flops <= 0 || world < 1) return 0;
  return flops_per_token(shape).palm * tokens_per_second / (world * peak_flops);
}

}  // namespace simplescale
