// Runs another program to its end and returns what it printed (scontrol, sbatch, gnuplot, bible).
// Never a shell: arguments are passed as they are. Blocks the caller; any thread, never an actor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/child_environment.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

struct CommandResult {
  int code = 0;        // exit code, or 128 + signal
  std::string output;  // stdout, and stderr if asked for
};

/// What run_command() gives to the program, and what it returns of what the program prints.
struct CommandOutput {
  bool with_stderr = true;  // false: stdout only; stderr stays that of this process
  size_t bytes_max = size_t{16} << 20;
  std::string input;      // stdin
  Variables environment;  // as in SpawnOptions
  Inherits inherits = Inherits::all;
  bool own_group = false;  // what the program starts is killed with it at the deadline
};

/// Looks argv[0] up in PATH and runs it. ok whatever its exit code. not_found:
/// there is no such program. deadline: it did not end within timeout_ms and was killed. io: it
/// could not be started, or printed more than bytes_max and was killed.
Result<CommandResult> run_command(const std::vector<std::string>& argv, int64_t timeout_ms,
                                  const CommandOutput& kept = {});

/// What to type into a shell to run the same command, for messages.
std::string shell_text(const std::vector<std::string>& argv);

}  // namespace simplescale
