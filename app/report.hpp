// How a command of either program ends for its user.
#pragma once

#include "runtime/base/status.hpp"

namespace simplescale {

/// One line on stderr if it is an error; the exit code of interface.md.
int report(const Status& status);

}  // namespace simplescale
