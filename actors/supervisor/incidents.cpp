#include "actors/supervisor/incidents.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "actors/supervisor/journal.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

constexpr size_t kIncidentsKept = 1000, kCausesKept = 64;
constexpr int64_t kCauseBeforeMs = 10'000;  // a cause may precede its incident by this much

std::string what_of(const job::Record& record) {
  return record.subject.empty() ? record.reason : record.subject + ": " + record.reason;
}

/// When a trainer or a node fails, the collectives of other trainers fail, too. Their reports may
/// arrive first.
bool is_consequence(const job::Record& record) {
  return record.kind == "step_failed" || record.kind == "left";
}

/// The record is about a failure of its subject, not about a consequence of another failure.
bool names_culprit(const job::Record& record) {
  constexpr std::string_view kinds[] = {"node_lost",        "trainer_down",  "trainer_hung",
                                        "trainer_replaced", "fence_ignored", "bad_copy",
                                        "bad_disk"};
  return std::ranges::find(kinds, record.kind) != std::end(kinds);
}

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
               {"reason", record.reason},
               {"ms", in_incident ? json(now_ms - current_->since_ms) : json(nullptr)}};
  if (record.kind == "joined" || record.kind == "layout_changed" || record.kind == "took_over")
    line["layout"] = job.layout.cells;
  return line;
}

Incidents::Recorded Incidents::record(const job::State& job, const job::Record& record,
                                      int64_t now_ms, const json& extra,
                                      std::optional<int64_t> stopped_ms) {
  Recorded result;
  if (record.phase == "detect" && !current_) {
    ++count_;
    current_ = Incident{.since_ms = stopped_ms.value_or(now_ms),
                        .what = what_of(record),
                        .consequence = is_consequence(record)};
    result.began = true;
  }
  result.line = event_line(job, record, now_ms);
  if (!extra.empty()) result.line.update(extra);
  if (!current_) return result;
  const bool ended =
      record.kind == "trainer_ended" && current_->what.starts_with(record.subject + ": ");
  if (ended || (current_->consequence && names_culprit(record))) {
    current_->what = what_of(record);
    current_->consequence = false;
  }
  if (record.kind == "steps_undone")
    current_->undone = std::strtoull(record.subject.c_str(), nullptr, 10);
  if (record.phase.empty()) return result;
  explain_with(result.line);
  if (record.phase == "decide") current_->decision = record.reason;
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

/// The first root cause found in the logs of the subject that failed, else of its node, else of any
/// node.
const LogFound* Incidents::root_cause() const {
  const std::string& what = current_->what;
  const std::string subject = what.substr(0, what.find(": "));
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

json Incidents::summary_line(const job::State& job, int64_t now_ms) const {
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
  const int64_t ms = now_ms - current_->since_ms;
  const LogFound* found = root_cause();
  const std::string cause =
      found ? ", by " + found->rule + " (" + place_of(*found) + ": " + found->text + ")" : "";
  json line = event_line(job,
                         {"", "recovered", current_->what,
                          current_->what + cause + "; " + current_->decision + "; lost " +
                              std::to_string(current_->undone) + " steps, " + std::to_string(ms) +
                              " ms (" + phases + ")"},
                         now_ms);
  line["incident"] = count_;
  line["ms"] = ms;
  line["cause"] = found ? json(found->rule) : json(nullptr);
  line["phases"] = timed;
  return line;
}

void Incidents::save(SupervisorState& to) const {
  to.incidents = count_;
  if (!current_) return;
  to.incident_since_ms = current_->since_ms;
  to.incident_what = current_->what;
  to.incident_decision = current_->decision;
}

bool Incidents::resume(const SupervisorState& from, const std::string& lost, int64_t lost_at_ms) {
  count_ = std::max(count_, from.incidents);
  // A snapshot is taken before its records are written. If the job is in no incident any more, the
  // snapshot's incident was about to end.
  if (from.incident_since_ms >= 0 && from.job.incident) {
    current_ = Incident{.since_ms = from.incident_since_ms,
                        .what = from.incident_what,
                        .decision = from.incident_decision};
    return true;
  }
  ++count_;
  current_ = Incident{.since_ms = lost_at_ms, .what = "supervisor: " + lost};
  return false;
}

}  // namespace simplescale
