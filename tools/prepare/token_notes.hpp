// What a user must know of a source of tokens before it is trained on. Blocks on the disk; any
// thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/data/token_file.hpp"

namespace simplescale {

/// One line each: the files of the source's folder that are not read, and files that are taken for
/// u16 tokens though nobody says so. dataset: of open_dataset(source, kind, ...). bad_data: the folder
/// has an index of Megatron tokens, but not the tokens; a link in it leads nowhere.
Result<std::vector<std::string>> token_notes(const std::string& source, const TokenKind& kind,
                                             const Dataset& dataset, const DataFiles& files);

}  // namespace simplescale
