// For those who only want to tell which UCX is in use.
#pragma once

#include <string>

namespace simplescale::ucx {

/// Of the library that is loaded.
std::string version();

}  // namespace simplescale::ucx
