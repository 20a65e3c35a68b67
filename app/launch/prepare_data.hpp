// Converts the text of a configuration to tokens, with progress on the terminal.
#pragma once

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"

namespace simplescale {

/// Creates the files that are missing in the prepared folder. Does nothing if data.source already
/// holds tokens. Errors of prepare(); bad_config: no source, or tokenizer.path does not exist.
Status prepare_data(const Config& config);

}  // namespace simplescale
