// The lines and documents of the run folder (interface.md) as pure functions of the supervisor's state.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "actors/supervisor/supervisor.hpp"

namespace simplescale {

nlohmann::json metrics_line(const JobState& state, const StepDone& step, double step_ms);
nlohmann::json ledger_line(uint64_t generation, uint64_t step, const std::string& trainer,
                           const std::vector<uint64_t>& samples);
/// Events with which a generation begins, or a supervisor, say who trains: "layout", a list of
/// cells, each a list of nodes.
nlohmann::json event_line(const JobState& state, const job::Record& record, int64_t now_ms);
/// The current incident in a line, at its end: what, the decision, what was lost, its phases.
nlohmann::json incident_line(const JobState& state, int64_t now_ms);
nlohmann::json log_rule_line(const JobState& state, const LogFound& found, int64_t now_ms);
nlohmann::json validated_line(const JobState& state, const Validated& result);
/// `status --json`, in one line or in a line a node. Trainers by the thousand become text at once:
/// a tree of JSON values would take several times as long.
std::string status_text(const JobState& state, bool line_a_node);

}  // namespace simplescale
