// The state of a run as its folder shows it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// bad_data: "no run in FOLDER".
Status check_is_run(const std::string& run);

/// control/status.json as an object with "supervisor" and "nodes". If an earlier start wrote it, or
/// no agent lives, its nodes and trainers are shown as "ended". Then the run is shown as "starting"
/// if a command that starts it holds its lock; or else as "failed", unless it had ended. "notice":
/// of a run under way (notice.hpp). "why", "next": of a run that is over, the reason of its end and
/// what to type next.
/// bad_data: the file is damaged; not_found: no run, or none that has started.
Result<nlohmann::json> current_status(const std::string& run);
/// True if the run has ended: its state is "finished", "stopped" or "failed".
bool has_ended(const nlohmann::json& status);

}  // namespace simplescale
