#include "actors/supervisor/job_options.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "actors/checkpoint/uploader.hpp"
#include "actors/supervisor/rates.hpp"
#include "actors/supervisor/run_signature.hpp"
#include "runtime/base/files.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/mixture_record.hpp"
#include "runtime/training/names.hpp"

namespace simplescale {

int64_t fence_timeout_ms(const Config& config, uint64_t state_bytes) {
  if (config.cluster.device != DeviceKind::cuda) return 2'000;
  constexpr uint64_t copied_per_ms = 4'000'000;
  return 5'000 + static_cast<int64_t>(state_bytes / copied_per_ms);
}

job::State initial_state(const JobOptions& options) {
  const Config& config = options.config;
  const Topology& topology = options.plan.topology;
  const int per_domain = std::max(1, topology.trainers_per_node / topology.shards);
  job::LayoutRules rules;
  rules.trainers_per_node = topology.trainers_per_node;
  rules.shards = topology.shards;
  rules.domain_nodes = std::max(1, topology.shards / topology.trainers_per_node);
  rules.domains = topology.nodes / rules.domain_nodes;
  rules.min_domains =
      std::max(1, (static_cast<int>(config.cluster.min_groups) + per_domain - 1) / per_domain);
  rules.spares = static_cast<int>(config.cluster.spares);
  rules.max_nodes = most_nodes(config);
  rules.domain_sizes = topology.group_sizes;
  std::erase(rules.domain_sizes, rules.domain_nodes);
  rules.rate_first = config.cluster.prefer == Prefer::rate;
  std::vector<std::string> names;
  for (int node = 0; node < topology.nodes + static_cast<int>(config.cluster.spares); ++node)
    names.push_back(node_name(node));
  job::State state = job::make_state(rules, names);
  state.max_steps = static_cast<uint64_t>(options.plan.max_steps);
  state.join_timeout_ms = config.cluster.join_timeout_ms;
  state.fence_timeout_ms = fence_timeout_ms(config, options.plan.memory.state);
  state.give_up_after_cycles = static_cast<int>(config.supervision.give_up_after_cycles);
  state.max_restarts = static_cast<int>(config.supervision.max_restarts);
  state.within_ms = config.supervision.within_s * 1000;
  state.generation = options.last_generation;
  state.generation_floor = options.generation_floor;
  state.had_checkpoint = state.has_checkpoint = options.checkpoint_step.has_value();
  state.checkpoint_step = options.checkpoint_step.value_or(0);
  state.older_checkpoints = options.older_checkpoints;
  state.learning_rate = config.train.learning_rate;
  state.min_learning_rate = config.train.min_learning_rate;
  state.rates = options.rates;
  state.instructions = options.instructions;
  state.balance = balances(config);
  state.leaves = static_cast<uint64_t>(options.plan.leaves);
  return state;
}

PublisherOptions publisher_options(const JobOptions& o) {
  PublisherOptions p;
  p.id = o.leadership.instance + "-" + std::to_string(o.leadership.term);
  p.leads = o.leads;
  p.folder = checkpoint_folder(o.config);
  p.shape = o.plan.shape;
  p.seed = static_cast<uint64_t>(o.config.run.seed);
  p.precision = o.config.train.precision == DType::bf16 ? "bf16" : "fp32";
  p.state = o.plan.state;
  p.tokenizer = o.tokenizer;
  const auto schedule =
      o.plan.mixture.empty() ? nullptr : std::make_shared<const MixtureSchedule>(o.plan.mixture);
  p.resume_at = [schedule, skipped = o.plan.skipped, epoch_samples = o.epoch_samples,
                 of_run = o.resume_facts, run = o.run, config = o.config,
                 plan = o.plan](uint64_t places) {
    std::string facts = with_signature(of_run, json_of(signature_of_run(run, config, plan)));
    const auto set = read_text(run.learning_rates());  // missing while no user has set one
    if (set.ok()) facts = with_rates(facts, *set);
    if (!schedule) return facts;
    return resume_text({schedule->mixture(), schedule->trained(0, places, skipped), epoch_samples},
                       facts);
  };
  p.tokens_per_sample = static_cast<uint64_t>(o.plan.shape.block_size);
  p.keep = keep_rules(o.config);
  return p;
}

std::vector<InjectFault> planned_faults(const JobOptions& options) {
  std::vector<InjectFault> planned;
  for (const auto& fault : options.config.inject.faults)
    if (const auto step = static_cast<uint64_t>(std::max<int64_t>(1, fault.step));
        step > options.checkpoint_step.value_or(0))
      planned.push_back({fault.kind, fault.target, step, 0, 0});
  return planned;
}

}  // namespace simplescale
