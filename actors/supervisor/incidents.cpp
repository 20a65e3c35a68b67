#include "actors/supervisor/incidents.hpp"

#include <algorithm>
#include <utility>

#include "actors/supervisor/journal.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

constexpr size_t kIncidentsKept = 1000, kCausesKept = 64;
constexpr int64_t kCauseBeforeMs = 10'000;  // a cause may precede its incident by this much

/// "logs/n1.0.log:12"
std::string place_of(const LogFound& found) {
  const std::string file = found.file == "kernel" ? "the kernel's log" : "logs/" + found.file;
  return found.line > 0 ? file + ":" + std::to_string(found.line) : file;
}

}  // namespace

json Incidents::event_line(const job::State& job, const job::Record& record, int64_t now_ms) const {
  const bool in_incident = current_ && !record.phase.empty();
  json line = {{"time", wall_time_s()},
               {"generation", job.generation},
               {"step", job.committed_step},
               {"incident", in_incident ? json(count_) : json(nullptr)},
               {"phase", record.phase.empty() ? json(nullptr) : json(record.phase)},
               {"kind", record.kind},
               {"subject", record.subject},
               {"reason", record.reason.text},
               {"ms", in_incident ? json(now_ms - current_->since_ms) : json(nullptr)}};
  if (record.kind == "joined" || record.kind == "layout_changed" || record.kind == "took_over")
    line["layout"] = job.layout.domains;
  return line;
}

Incidents::Recorded Incidents::record(const job::State& job, const job::Record& record,
                                      int64_t now_ms, const json& extra,
                                      std::optional<int64_t> stopped_ms) {
  Recorded result;
  if (record.phase == "detect" && !current_) {
    ++count_;
    current_ = Incident{
        stopped_ms.value_or(now_ms), {.undone = std::exchange(undone_, 0), .avoid = avoid_}, {}};
    result.began = true;
  }
  result.line = event_line(job, record, now_ms);
  if (!extra.empty()) result.line.update(extra);
  if (!current_ && record.kind == "steps_undone") undone_ = record.count;
  if (!current_) return result;
  job::add(current_->facts, job, record);
  if (record.phase.empty()) return result;
  explain_with(result.line);
  current_->phases.emplace_back(record.phase, now_ms);
  if (record.phase == "resume") {
    result.summary = summary_line(job, now_ms);
    explain_with(*result.summary);
    current_.reset();
  }
  return result;
}

void Incidents::explain_with(const json& line) {
  explained_[count_].push_back(line);
  if (explained_.size() > kIncidentsKept) explained_.erase(explained_.begin());
}

const json* Incidents::explain(uint64_t incident) const {
  const auto found = explained_.find(incident);
  return found == explained_.end() ? nullptr : &found->second;
}

json Incidents::log_rule_line(const job::State& job, const LogFound& found, int64_t now_ms) {
  const std::string cause = found.root ? "root cause" : "consequence";
  json line =
      event_line(job,
                 {"", "log_rule", found.subject,
                  found.rule + " (" + found.severity + ", " + cause + "): " + found.text + " (" +
                      place_of(found) + ")" + (found.hint.empty() ? "" : "; " + found.hint)},
                 now_ms);
  if (current_) {
    line["incident"] = count_;
    line["ms"] = now_ms - current_->since_ms;
  }
  line["rule"] = found.rule;
  line["severity"] = found.severity;
  line["cause"] = found.root ? "root" : "consequence";
  line["file"] = found.file;
  line["line"] = found.line > 0 ? json(found.line) : json(nullptr);
  if (current_) explain_with(line);
  if (found.root) causes_.push_back({found, now_ms});
  if (causes_.size() > kCausesKept) causes_.pop_front();
  return line;
}

/// Returns the first root cause that was found in the logs of the failed trainer or node; if there
/// is none, in the logs of its node; if there is none, in those of any node.
const LogFound* Incidents::root_cause() const {
  const std::string& subject = current_->facts.subject;
  const LogFound* best = nullptr;
  int best_rank = 0;
  for (const Cause& cause : causes_) {
    if (cause.at_ms < current_->since_ms - kCauseBeforeMs) continue;
    const LogFound& found = cause.found;
    const int rank = found.subject == subject ? 3 : found.node == node_of(subject) ? 2 : 1;
    if (rank > best_rank) best = &found, best_rank = rank;
  }
  return best;
}

json Incidents::summary_line(const job::State& job, int64_t now_ms) {
  std::string phases;
  json timed = json::object();
  int64_t before = current_->since_ms;
  for (const auto& [phase, at_ms] : current_->phases) {
    timed[phase] = timed.value(phase, int64_t{0}) + at_ms - before;
    before = at_ms;
  }
  for (const char* phase : {"detect", "fence", "abort", "decide", "heal", "resume"})
    if (timed.contains(phase))
      phases += (phases.empty() ? "" : ", ") + std::string(phase) + " " +
                std::to_string(timed[phase].get<int64_t>());
  job::IncidentFacts& facts = current_->facts;
  facts.ms = now_ms - current_->since_ms;
  const LogFound* found = root_cause();
  if (found) facts.cause = found->rule + " (" + place_of(*found) + ": " + found->text + ")";
  newest_ = job::sentence(facts);
  const std::string begins =
      facts.joins > 0 ? "generation " + std::to_string(job.generation) + " begins at step " +
                            std::to_string(facts.begins_at) + " from " + facts.origin + "; "
                      : "";
  json line = event_line(
      job,
      {"", "recovered",
       facts.subject.empty() ? facts.reason.text : facts.subject + ": " + facts.reason.text,
       newest_ + " [" + begins + std::to_string(facts.ms) + " ms: " + phases + "]"},
      now_ms);
  line["incident"] = count_;
  line["ms"] = facts.ms;
  line["sentence"] = newest_;
  line["cause"] = found ? json(found->rule) : json(nullptr);
  line["phases"] = timed;
  return line;
}

json Incidents::newest() const {
  if (count_ == 0) return nullptr;
  return {{"number", count_},
          {"over", !current_},
          {"sentence", current_ ? job::sentence(current_->facts) : newest_}};
}

void Incidents::save(SupervisorState& to) const {
  to.incidents = count_;
  if (!current_) return;
  to.incident_since_ms = current_->since_ms;
  to.incident = current_->facts;
}

bool Incidents::resume(const SupervisorState& from, const Reason& lost, int64_t lost_at_ms,
                       bool stood_by) {
  count_ = std::max(count_, from.incidents);
  // A snapshot is taken before its records are written. If the job is in no incident any more, the
  // snapshot's incident was about to end, so it does not continue.
  const bool goes_on = from.incident_since_ms != no_incident && from.job.incident;
  if (goes_on) {
    current_ = Incident{from.incident_since_ms, from.incident, {}};
  } else {
    ++count_;
    const std::string where = from.node.empty() ? "supervisor" : from.node;
    current_ =
        Incident{lost_at_ms, {.kind = "supervisor_lost", .subject = where, .reason = lost}, {}};
  }
  current_->facts.stood_by = stood_by;
  current_->facts.avoid = avoid_;
  return goes_on;
}

}  // namespace simplescale
