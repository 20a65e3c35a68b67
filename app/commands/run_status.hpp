// The state of a run as its folder shows it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// control/status.json, with "state" set to "failed" if the run has not ended and no process holds
/// its lock. An object with "supervisor" and "nodes". bad_data: the file is damaged; not_found.
Result<nlohmann::json> current_status(const std::string& run);

}  // namespace simplescale
