// What `config show` and `doctor` report about a mixture before a run begins.
#pragma once

#include <string>

#include "runtime/config/config.hpp"

namespace simplescale {

/// "" without data.blend. Otherwise a table of the sources with their epochs, and warnings; or,
/// until the text is prepared, why the epochs are unknown. Reads the disk.
std::string mixture_text(const Config& config);

}  // namespace simplescale
