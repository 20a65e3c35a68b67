// Runs a program of the system (scontrol, sbatch) to its end and keeps what it said. There is never
// a shell: arguments are passed as they are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

struct CommandResult {
  int code = 0;        // exit code, or 128 + signal
  std::string output;  // stdout and stderr, at most 1 MiB
};

/// argv[0] is looked up in PATH. Blocks until it ends; after timeout_ms it is killed: deadline.
/// not_found: there is no such program.
Result<CommandResult> run_command(const std::vector<std::string>& argv, int64_t timeout_ms);

/// For people: what to type into a shell to run the same.
std::string shell_text(const std::vector<std::string>& argv);

}  // namespace simplescale
