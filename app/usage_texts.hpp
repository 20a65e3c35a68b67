// Texts made from the commands in a CLI::App, which is the one table of commands and options:
// examples for --help, completion scripts, the man page.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace simplescale {

/// Appends each command's examples to its --help.
void add_examples(CLI::App& app);

/// A script for bash, zsh or fish that completes commands, options and the keys of a configuration.
std::string completion_script(const CLI::App& app, const std::string& shell);

/// simplescale(1), in the language of man.
std::string man_page(const CLI::App& app);

}  // namespace simplescale
