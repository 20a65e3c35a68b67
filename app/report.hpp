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

/// The last act of a command that users call. code: its exit code so far; returns that of Code::io,
/// with a message on stderr, if the command succeeded but not all of its output could be written.
int end_output(int code);

}  // namespace simplescale
