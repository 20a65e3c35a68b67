// What systemd's logind does to runs when their user logs out. Any thread.
#pragma once

#include <string>

namespace simplescale {

/// A line for `doctor`; "" if the host has no logind. root: the folder that has `etc` and `usr`.
std::string logind_text(const std::string& root = "/");

}  // namespace simplescale
