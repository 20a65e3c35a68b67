#include "actors/supervisor/status.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "actors/supervisor/decision/placement.hpp"
#include "actors/supervisor/supervisor.hpp"
#include "runtime/base/json_text.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

const char* to_string(job::TrainerState state) {
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
}

/// The state shown to users: a node that is up and in no group is a spare.
std::string node_state(const job::State& job, const std::string& name) {
  const job::NodeState state = job.nodes.at(name).state;
  if (state == job::NodeState::up && !job.layout.domains.empty() && !job.layout.contains(name))
    return "spare";
  return state == job::NodeState::absent ? "lost" : job::to_string(state);
}

/// place: null if the trainer does not train.
std::string trainer_text(const JobSupervisorState& s, const std::string& who,
                         const job::Place* place) {
  const job::Trainer& trainer = s.job.trainers.at(who);
  std::string placed = R"("rank":null,"shard":null,"group":null)", slowness = "null";
  if (place)
    placed = fmt::format(R"("rank":{},"shard":{},"group":"g{}")",
                         place->group * s.job.rules.cut_of(s.job.layout) + place->shard,
                         place->shard, place->group);
  const auto score = s.anomalies.scores().find(who);
  if (score != s.anomalies.scores().end() && std::isfinite(score->second))
    slowness = fmt::format("{:.2f}", score->second);
  return fmt::format(
      R"({{"name":"{}","pid":{},{},"state":"{}","step":{},"micro_batches":{},"slowness":{}}})", who,
      trainer.state == job::TrainerState::down ? 0 : trainer.pid, placed, to_string(trainer.state),
      s.job.committed_step, place ? s.steps.micro_batches(s.job.committed_step + 1, *place) : 0,
      slowness);
}

/// The node's object without its health and trainers.
json node_json(const JobSupervisorState& s, const std::string& name) {
  const auto found = s.agents.find(name);
  const job::Node& node = s.job.nodes.at(name);
  json copies = json::array();
  for (const StateCopy& copy : node.peer)
    copies.push_back({{"shard", copy.shard}, {"shards", copy.shards}, {"step", copy.step}});
  const bool gone = node.state == job::NodeState::lost || node.state == job::NodeState::absent;
  return {{"name", name},
          {"host", found == s.agents.end() ? "" : found->second.host},
          {"state", node_state(s.job, name)},
          {"pid", gone || found == s.agents.end() ? 0 : found->second.pid},
          {"reason", node.reason},
          {"peer_copies", std::move(copies)}};
}

json stall_json(const std::optional<job::Stall>& stall) {
  if (!stall) return nullptr;
  return {{"since_s", rounded(static_cast<double>(stall->since_ms) / 1e3, 0.1)},
          {"waiting_for", stall->names()},
          {"phase", to_string(stall->phase)},
          {"unit", stall->block >= 0 ? json(stall->block) : json(nullptr)},
          {"sentence", stall->sentence()}};
}

/// The newest failed save; null if no save failed, or a newer checkpoint exists.
json failed_checkpoint_json(const job::State& job) {
  const bool since = !job.has_checkpoint || job.failed_checkpoint > job.checkpoint_step;
  if (job.failed_checkpoint_reason.empty() || !since) return nullptr;
  return {{"step", job.failed_checkpoint}, {"reason", job.failed_checkpoint_reason}};
}

/// What is trained, and how. Of this only tokens_per_step may change during a start of the run.
json plan_json(const JobSupervisorState& s) {
  const Config& config = s.options.config;
  const Plan& plan = s.options.plan;
  return {{"model",
           {{"preset", config.model.preset},
            {"parameters", plan.parameters},
            {"dim", plan.shape.dim},
            {"layers", plan.shape.layers},
            {"heads", plan.shape.heads},
            {"vocab", plan.shape.vocab},
            {"block_size", plan.shape.block_size}}},
          {"nodes", plan.topology.nodes},
          {"spares", config.cluster.spares},
          {"trainers_per_node", plan.topology.trainers_per_node},
          {"groups", plan.topology.groups},
          {"shards", plan.topology.shards},
          {"strategy", to_string(plan.topology.strategy)},
          {"precision", config.train.precision == DType::bf16 ? "bf16" : "fp32"},
          {"global_batch_size", plan.global_batch_size},
          {"tokens_per_step", plan.tokens_of(s.job.committed_step)}};
}

/// The document without its nodes.
json run_json(const JobSupervisorState& s) {
  const std::string shape = job::other_shape(s.job);
  return {{"run", s.options.config.run.name},
          {"instance", s.options.leadership.instance},
          {"signature", s.options.signature},
          {"state", job::to_string(s.job.phase)},
          {"generation", s.job.generation},
          {"step", s.job.committed_step},
          {"max_steps", s.job.max_steps},
          {"loss", number_or_null(s.steps.loss())},
          {"val_loss", number_or_null(s.steps.val_loss())},
          {"val_losses", s.steps.val_losses()},
          {"val_loss_at", s.steps.val_loss_at()},
          {"val_loss_by_position", s.steps.val_loss_by_position()},
          {"tasks", s.steps.tasks()},
          {"tokens_per_second", rounded(s.steps.tokens_per_second(), 0.1)},
          {"step_ms",
           s.steps.newest_time() > 0 ? rounded(s.steps.newest_step_ms(), 0.1) : json(nullptr)},
          {"step_time", s.steps.newest_time() > 0 ? json(s.steps.newest_time()) : json(nullptr)},
          {"remaining_s", s.steps.remaining_s(s.job.committed_step)},
          {"incidents", s.incidents.count()},
          {"newest_incident", s.incidents.newest()},
          {"groups",
           s.job.layout.domains.size() * static_cast<size_t>(s.job.rules.groups_per_domain())},
          {"shards", s.job.rules.cut_of(s.job.layout)},
          {"group_nodes", s.job.rules.size_of(s.job.layout)},
          {"shape", shape.empty() ? json(nullptr) : json(shape)},
          {"paused", s.job.paused},
          {"diagnosing", job::diagnosing(s.job)},
          {"stall", stall_json(s.stall)},
          {"unwritten", s.options.journal ? s.options.journal->trouble() : ""},
          {"checkpoint_failed", failed_checkpoint_json(s.job)},
          {"supervisor", {{"node", s.options.node}, {"pid", getpid()}}},
          {"plan", plan_json(s)},
          {"standby", s.lead.standby()
                          ? json{{"node", s.lead.standby()->node}, {"pid", s.lead.standby()->pid}}
                          : json(nullptr)}};
}
}  // namespace

std::string status_text(const JobSupervisorState& s, bool line_a_node) {
  std::unordered_map<std::string, job::Place> places;
  for (const job::Place& place : job::places(s.job.rules, s.job.layout))
    places.emplace(place.trainer, place);
  std::string text = json_text(run_json(s)), separator = line_a_node ? "\n" : "";
  text.back() = ',';
  text += "\"nodes\":[";
  for (const std::string& name : s.job.node_order) {
    json node = node_json(s, name);
    node["group"] = nullptr;
    std::string trainers;
    for (int slot = 0; slot < s.job.rules.trainers_per_node; ++slot) {
      const std::string who = trainer_name(name, slot);
      const auto place = places.find(who);
      const bool trains = place != places.end();
      if (trains) node["group"] = "g" + std::to_string(place->second.group);
      trainers += (slot > 0 ? "," : "") + trainer_text(s, who, trains ? &place->second : nullptr);
    }
    text += separator + json_text(node);
    text.back() = ',';
    const bool gone = s.job.nodes.at(name).state == job::NodeState::lost;  // its figures are old
    text +=
        "\"health\":" + (gone ? "null" : s.health.text(name)) + ",\"trainers\":[" + trainers + "]}";
    separator = line_a_node ? ",\n" : ",";
  }
  return text + "]}";
}

}  // namespace simplescale
