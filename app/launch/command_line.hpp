// Commands as the user would type them, for hints.
#pragma once

#include <string>
#include <vector>

namespace simplescale {

/// "simplescale WORDS..." with the program's name as this process was started: the wrapper
/// ./simplescale passes its own in SIMPLESCALE_COMMAND. Words are quoted where a shell needs it.
std::string command_line(const std::vector<std::string>& words);
/// The path relative to the working directory if it lies below it.
std::string shown_path(const std::string& path);

}  // namespace simplescale
