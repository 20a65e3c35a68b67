// The status document: what `status --json` prints, and control/status.json.
#pragma once

#include <string>

namespace simplescale {

struct JobSupervisorState;

/// One JSON object, in one line, or with a line for each node. Makes the text of trainers directly:
/// for thousands of them, a tree of JSON values would take several times as long.
std::string status_text(const JobSupervisorState& state, bool line_a_node);

}  // namespace simplescale
