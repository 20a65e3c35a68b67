// What a run's folder tells of its state.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// control/status.json as it should read now: a run whose processes are gone without a last word is
/// not training any more. An object with "supervisor" and "nodes". bad_data; not_found.
Result<nlohmann::json> current_status(const std::string& run);

}  // namespace simplescale
