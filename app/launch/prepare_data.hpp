// Converts the text of a configuration to tokens, with progress on the terminal.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"

namespace simplescale {

/// Creates the files that are missing in the prepared folder. Does nothing if data.source already
/// holds tokens. Errors of prepare(); bad_config: no source, or tokenizer.path does not exist.
Status prepare_data(const Config& config);
/// The folder of its tokens: data.folder; without one, data/<run.name>, or a folder beside it if that
/// one holds the tokens of another text or tokenizer, which another run may be using. Reads the disk.
std::string tokens_folder(const Config& config);

}  // namespace simplescale
