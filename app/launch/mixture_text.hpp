// What `config show` and `doctor` report about a mixture and about packing before a run begins.
#pragma once

#include <string>

#include "runtime/config/config.hpp"

namespace simplescale {

/// "" without data.blend and data.pack. Otherwise a table of the sources with their epochs, and
/// warnings, and the samples of data.pack; or, until the text is prepared, why they are unknown. Reads
/// the disk, and makes the samples of data.pack.
std::string mixture_text(const Config& config);

}  // namespace simplescale
