// What the main() functions of both programs share. A wrong command line ends with one line on
// stderr: what is wrong, the nearest known word, and which --help to read.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/commands/generate.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

/// The whole of main() once the commands are in `app`: sets up logging, parses the command line and
/// thereby runs the command that it names. exit_code: where the command's callback leaves its exit
/// code. Returns it; 0 for --help and --version, which are printed; 64 for a wrong command line; 70
/// for an exception. `help COMMAND` is `COMMAND --help`.
int run_program(CLI::App& app, int argc, char** argv, const int& exit_code);

/// usage: a word that the command does not know and that is no key of a configuration.
Status check_extras(const CLI::App& command);

/// The names of an app's commands, internal ones excluded.
std::vector<std::string> commands_of(const CLI::App& app);

/// Of --ema.
inline constexpr const char* kEmaHelp = "use the average of the weights (train.ema_decay)";

/// The options of `generate` and `evaluate`: `simplescale` describes them, simplescale-compute
/// computes.
void add_generate_options(CLI::App& command, GenerateOptions& options);
void add_evaluate_options(CLI::App& command, EvaluateOptions& options);

}  // namespace simplescale
