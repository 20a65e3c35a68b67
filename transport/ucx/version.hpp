// The version of UCX, without UCX's headers.
#pragma once

#include <string>

namespace simplescale::ucx {

/// The version for which this program was built, e.g. "1.13".
std::string version();

}  // namespace simplescale::ucx
