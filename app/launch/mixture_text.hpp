// What `config show` and `doctor` tell of a mixture before a run begins.
#pragma once

#include <string>

#include "runtime/config/config.hpp"

namespace simplescale {

/// "" without data.blend. Otherwise a table of the sources with their epochs, and warnings; or why
/// the epochs are not known, as long as text is not prepared. Reads the disk.
std::string mixture_text(const Config& config);

}  // namespace simplescale
