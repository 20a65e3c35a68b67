// A duration for people. Pure, any thread.
#pragma once

#include <string>

namespace simplescale {

/// "1 h 12 min", "3 min 20 s", "12 s", "0.3 s". seconds: at least 0.
std::string duration(double seconds);

}  // namespace simplescale
