// Text to tokens for a configuration, with progress on the terminal.
#pragma once

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"

namespace simplescale {

/// Makes what is missing of the prepared folder; nothing for a source that holds tokens already.
Status prepare_data(const Config& config);

}  // namespace simplescale
