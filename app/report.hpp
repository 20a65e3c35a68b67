// How a command of either program ends.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Prints an error as one line on stderr. Returns the exit code (docs/operations.md); 0 for ok.
int report_status(const Status& status);
/// Prints each note of LoadedConfig on stderr.
void report_notes(const std::vector<std::string>& notes);

}  // namespace simplescale
