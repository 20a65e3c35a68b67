// What is wrong with a command line, in one line. Any thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace simplescale {

/// The exit code of an error that `app` found: 0 for --help and --version, which are printed; else
/// that of Code::usage, with one line on stderr: what is wrong, the nearest thing known, where help
/// is. words: the command line without the program.
int report_usage(const CLI::App& app, const CLI::ParseError& error,
                 const std::vector<std::string>& words);

/// The same as text, without printing.
std::string usage_text(const CLI::App& app, const CLI::ParseError& error,
                       const std::vector<std::string>& words);

}  // namespace simplescale
