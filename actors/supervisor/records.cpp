#include "actors/supervisor/records.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <unordered_map>

#include "runtime/base/json_text.hpp"

namespace simplescale {

using nlohmann::json;

json metrics_line(const JobState& s, const StepDone& step, double step_ms) {
  const Plan& plan = s.options.plan;
  const double rate = s.tokens_per_second;
  const double left = static_cast<double>(plan.max_steps) - static_cast<double>(step.step);
  const double peak = s.options.config.cluster.peak_flops;
  json line = {{"time", step.time > 0 ? step.time : wall_time_s()},
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
  const bool incident = s.incident.has_value() && !record.phase.empty();
  json line = {{"time", wall_time_s()},
               {"generation", s.job.generation},
               {"step", s.job.committed_step},
               {"incident", incident ? json(s.incidents) : json(nullptr)},
               {"phase", record.phase.empty() ? json(nullptr) : json(record.phase)},
               {"kind", record.kind},
               {"subject", record.subject},
               {"reason", record.reason},
               {"ms", incident ? json(now_ms - s.incident->since_ms) : json(nullptr)}};
  if (record.kind == "joined" || record.kind == "layout_changed" || record.kind == "took_over")
    line["layout"] = s.job.layout.cells;
  return line;
}

namespace {
/// "logs/n1.0.log:12"
std::string place_of(const LogFound& found) {
  const std::string file = found.file == "kernel" ? "the kernel's log" : "logs/" + found.file;
  return found.line > 0 ? file + ":" + std::to_string(found.line) : file;
}

/// The first root cause that the logs of who failed told of, else those of its node, else any; not
/// long before the incident, or in it.
const LogFound* root_cause(const JobState& s) {
  constexpr int64_t before_ms = 10'000;
  const std::string& what = s.incident->what;
  const std::string subject = what.substr(0, what.find(": "));
  const LogFound* best = nullptr;
  int best_rank = 0;
  for (const JobState::Finding& finding : s.causes) {
    if (finding.at_ms < s.incident->since_ms - before_ms) continue;
    const LogFound& found = finding.found;
    const int rank = found.subject == subject ? 3 : found.node == job::node_of(subject) ? 2 : 1;
    if (rank > best_rank) best = &found, best_rank = rank;
  }
  return best;
}
}  // namespace

json log_rule_line(const JobState& s, const LogFound& found, int64_t now_ms) {
  json line =
      event_line(s,
                 {"", "log_rule", found.subject,
                  found.rule + " (" + found.severity + ", " +
                      (found.root ? "root cause" : "consequence") + "): " + found.text + " (" +
                      place_of(found) + ")" + (found.hint.empty() ? "" : "; " + found.hint)},
                 now_ms);
  if (s.incident) {
    line["incident"] = s.incidents;
    line["ms"] = now_ms - s.incident->since_ms;
  }
  line["rule"] = found.rule;
  line["severity"] = found.severity;
  line["cause"] = found.root ? "root" : "consequence";
  line["file"] = found.file;
  line["line"] = found.line > 0 ? json(found.line) : json(nullptr);
  return line;
}

json incident_line(const JobState& s, int64_t now_ms) {
  const JobState::Incident& incident = *s.incident;
  std::string phases;
  json timed = json::object();
  int64_t before = incident.since_ms;
  for (const auto& [phase, at_ms] : incident.phases) {
    timed[phase] = timed.value(phase, int64_t{0}) + at_ms - before;
    before = at_ms;
  }
  for (const char* phase : {"detect", "fence", "abort", "decide", "heal", "resume"})
    if (timed.contains(phase))
      phases += (phases.empty() ? "" : ", ") + std::string(phase) + " " +
                std::to_string(timed[phase].get<int64_t>());
  const int64_t ms = now_ms - incident.since_ms;
  const LogFound* found = root_cause(s);
  const std::string cause =
      found ? ", by " + found->rule + " (" + place_of(*found) + ": " + found->text + ")" : "";
  return {{"time", wall_time_s()},
          {"generation", s.job.generation},
          {"step", s.job.committed_step},
          {"incident", s.incidents},
          {"phase", nullptr},
          {"kind", "recovered"},
          {"subject", incident.what},
          {"reason", incident.what + cause + "; " + incident.decision + "; lost " +
                         std::to_string(incident.undone) + " steps, " + std::to_string(ms) +
                         " ms (" + phases + ")"},
          {"ms", ms},
          {"cause", found ? json(found->rule) : json(nullptr)},
          {"phases", timed}};
}

json validated_line(const JobState& s, const Validated& result) {
  return {{"time", wall_time_s()}, {"generation", s.job.generation},
          {"step", result.step},   {"incident", nullptr},
          {"phase", nullptr},      {"kind", "validated"},
          {"subject", ""},         {"reason", "validation loss"},
          {"ms", nullptr},         {"val_loss", number_or_null(result.loss)}};
}

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

/// As interface.md has it: a node that is up and in no group is a spare.
std::string node_state(const job::State& job, const std::string& name) {
  const job::NodeState state = job.nodes.at(name).state;
  if (state == job::NodeState::up && !job.layout.cells.empty() && !job.layout.contains(name))
    return "spare";
  return state == job::NodeState::absent ? "lost" : job::to_string(state);
}

/// place: null if it does not train.
std::string trainer_text(const JobState& s, const std::string& who, const job::Place* place) {
  const job::Trainer& trainer = s.job.trainers.at(who);
  std::string placed = R"("rank":null,"shard":null,"group":null)", slowness = "null";
  if (place)
    placed = fmt::format(R"("rank":{},"shard":{},"group":"g{}")",
                         place->group * static_cast<uint32_t>(s.job.rules.shards) + place->shard,
                         place->shard, place->group);
  const auto score = s.anomalies.scores().find(who);
  if (score != s.anomalies.scores().end() && std::isfinite(score->second))
    slowness = fmt::format("{:.2f}", score->second);
  return fmt::format(R"({{"name":"{}","pid":{},{},"state":"{}","step":{},"slowness":{}}})", who,
                     trainer.pid, placed, to_string(trainer.state), s.job.committed_step, slowness);
}

/// All of it but its health and trainers.
json node_json(const JobState& s, const std::string& name) {
  const auto found = s.nodes.find(name);
  const job::Node& node = s.job.nodes.at(name);
  json copies = json::array();
  for (const PeerCopy& copy : node.peer)
    copies.push_back({{"shard", copy.shard}, {"step", copy.step}});
  return {{"name", name},
          {"host", found == s.nodes.end() ? "" : found->second.host},
          {"state", node_state(s.job, name)},
          {"pid", found == s.nodes.end() ? 0 : found->second.pid},
          {"reason", node.reason},
          {"peer_copies", std::move(copies)}};
}

/// All of it but its nodes.
json run_json(const JobState& s) {
  return {
      {"run", s.options.config.run.name},
      {"state", job::to_string(s.job.phase)},
      {"generation", s.job.generation},
      {"step", s.job.committed_step},
      {"max_steps", s.job.max_steps},
      {"loss", number_or_null(s.loss)},
      {"tokens_per_second", rounded(s.tokens_per_second, 0.1)},
      {"incidents", s.incidents},
      {"groups", s.job.layout.cells.size() * static_cast<size_t>(s.job.rules.groups_per_cell())},
      {"paused", s.job.paused},
      {"diagnosing", job::diagnosing(s.job)},
      {"supervisor", {{"node", s.options.node}, {"pid", getpid()}}},
      {"standby", s.lead.standby
                      ? json{{"node", s.lead.standby->node}, {"pid", s.lead.standby->pid}}
                      : json(nullptr)}};
}
}  // namespace

std::string status_text(const JobState& s, bool line_a_node) {
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
      const std::string who = job::trainer_name(name, slot);
      const auto place = places.find(who);
      const bool trains = place != places.end();
      if (trains) node["group"] = "g" + std::to_string(place->second.group);
      trainers += (slot > 0 ? "," : "") + trainer_text(s, who, trains ? &place->second : nullptr);
    }
    text += separator + json_text(node);
    text.back() = ',';
    text += "\"health\":" + s.health.text(name) + ",\"trainers\":[" + trainers + "]}";
    separator = line_a_node ? ",\n" : ",";
  }
  return text + "]}";
}

}  // namespace simplescale
