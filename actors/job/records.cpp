#include "actors/job/records.hpp"

#include <unistd.h>

#include <cmath>

namespace simplescale {

using nlohmann::json;

namespace {
json number_or_null(double value) {
  return std::isfinite(value) ? json(value) : json(nullptr);
}
json rounded(double value, double unit) {
  return number_or_null(std::round(value / unit) * unit);
}
}  // namespace

json metrics_line(const JobState& s, const StepDone& step, double step_ms) {
  const Plan& plan = s.options.plan;
  const double rate = s.tokens_per_second;
  const double left = static_cast<double>(plan.max_steps) - static_cast<double>(step.step);
  const double peak = s.options.config.cluster.peak_flops;
  json line = {{"time", wall_time_s()},
               {"step", step.step},
               {"iter", step.step * static_cast<uint64_t>(plan.accumulation)},
               {"loss", number_or_null(step.loss)},
               {"grad_norm", number_or_null(step.grad_norm)},
               {"lr", step.learning_rate},
               {"step_ms", rounded(step_ms, 0.001)},
               {"tokens", step.step * static_cast<uint64_t>(plan.tokens_per_step)},
               {"tokens_per_second", rounded(rate, 0.1)},
               {"mfu", peak > 0 ? number_or_null(mfu(plan.shape, rate, plan.topology.world(), peak))
                                : json(nullptr)},
               {"remaining_s",
                rate > 0 ? rounded(left * static_cast<double>(plan.tokens_per_step) / rate, 0.1)
                         : json(nullptr)},
               {"generation", step.generation}};
  return line;
}

json ledger_line(uint64_t generation, uint64_t step, const std::string& trainer,
                 const std::vector<uint64_t>& samples) {
  json runs = json::array();
  for (size_t i = 0; i + 1 < samples.size(); i += 2) runs.push_back({samples[i], samples[i + 1]});
  return {{"step", step},
          {"trainer", trainer},
          {"generation", generation},
          {"samples", std::move(runs)}};
}

json event_line(const JobState& s, const job::Record& record, int64_t now_ms) {
  const bool incident = s.incident_since_ms.has_value() && !record.phase.empty();
  return {{"time", wall_time_s()},
          {"generation", s.job.generation},
          {"step", s.job.committed_step},
          {"incident", incident ? json(s.incidents) : json(nullptr)},
          {"phase", record.phase.empty() ? json(nullptr) : json(record.phase)},
          {"kind", record.kind},
          {"subject", record.subject},
          {"reason", record.reason},
          {"ms", incident ? json(now_ms - *s.incident_since_ms) : json(nullptr)}};
}

json validated_line(const JobState& s, const Validated& result) {
  return {{"time", wall_time_s()}, {"generation", s.job.generation},
          {"step", result.step},   {"incident", nullptr},
          {"phase", nullptr},      {"kind", "validated"},
          {"subject", ""},         {"reason", "validation loss"},
          {"ms", nullptr},         {"val_loss", number_or_null(result.loss)}};
}

json status_page(const JobState& s) {
  auto trainer_state = [](job::TrainerState state) {
    switch (state) {
      case job::TrainerState::down:
        return "down";
      case job::TrainerState::idle:
        return "idle";
      case job::TrainerState::training:
        return "training";
      case job::TrainerState::draining:
        return "draining";
      case job::TrainerState::finished:
        return "finished";
    }
    return "?";
  };
  json nodes = json::array();
  for (size_t i = 0; i < s.job.node_names.size(); ++i) {
    const std::string& name = s.job.node_names[i];
    auto found = s.nodes.find(name);
    json trainers = json::array(), group = nullptr;
    for (const TrainerPlace& place : s.options.plan.topology.trainers) {
      if (place.node != static_cast<int>(i)) continue;
      const job::Trainer& trainer = s.job.trainers.at(place.name());
      group = "g" + std::to_string(place.group);
      trainers.push_back({{"name", place.name()},
                          {"pid", trainer.pid},
                          {"rank", place.rank},
                          {"shard", place.shard},
                          {"group", "g" + std::to_string(place.group)},
                          {"state", trainer_state(trainer.state)},
                          {"step", s.job.committed_step}});
    }
    nodes.push_back({{"name", name},
                     {"host", found == s.nodes.end() ? "" : found->second.host},
                     {"state", s.job.nodes.at(name) ? "up" : "lost"},
                     {"pid", found == s.nodes.end() ? 0 : found->second.pid},
                     {"group", group},
                     {"reason", ""},
                     {"trainers", std::move(trainers)}});
  }
  return {{"run", s.options.config.run.name},
          {"state", job::to_string(s.job.phase)},
          {"generation", s.job.generation},
          {"step", s.job.committed_step},
          {"max_steps", s.job.max_steps},
          {"loss", number_or_null(s.loss)},
          {"tokens_per_second", rounded(s.tokens_per_second, 0.1)},
          {"incidents", s.incidents},
          {"supervisor", {{"node", s.options.node}, {"pid", getpid()}}},
          {"standby", nullptr},
          {"nodes", std::move(nodes)}};
}

}  // namespace simplescale
