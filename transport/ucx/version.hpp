// The version of UCX, without UCX's headers.
#pragma once

#include <string>

namespace simplescale::ucx {

/// The version of the loaded library, e.g. "1.13.1".
std::string version();

}  // namespace simplescale::ucx
