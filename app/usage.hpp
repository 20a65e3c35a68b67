// What the main() functions of both programs share. A wrong command line ends with one line on
// stderr: what is wrong, the nearest known word, and which --help to read.
#pragma once

#include <CLI/CLI.hpp>

namespace simplescale {

/// The whole of main() once the commands are in `app`: sets up logging, parses the command line and
/// thereby runs the command that it names. exit_code: where the command's callback leaves its exit
/// code. Returns it; 0 for --help and --version, which are printed; 64 for a wrong command line; 70
/// for an exception.
int run_program(CLI::App& app, int argc, char** argv, const int& exit_code);

}  // namespace simplescale
