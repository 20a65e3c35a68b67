// Keys that say the same thing in different ways. What the user said last counts: the command line
// before the file, the file before the one that it inherits. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.hpp"

namespace simplescale {

/// Called after each place (a file, the command line) has been applied. said: the full names of the
/// keys that it sets. A key of an earlier place that contradicts one of them gets its default back,
/// with a note in loaded.notes; so do two of one place that do not exclude each other elsewhere.
void settle_rivals(const std::vector<std::string>& said, LoadedConfig& loaded);

/// Adds a note for each key that is set and has no effect because of another one.
void note_keys_without_effect(LoadedConfig& loaded);

}  // namespace simplescale
