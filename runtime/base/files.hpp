// Small files, read and replaced whole. What is replaced is durable: after a crash there is the old
// contents or the new, never half of either. Any thread; blocks on the disk, so never in an actor.
#pragma once

#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Reads a small text file whole. not_found: it is not there; bad_data: a pipe or device; io: else.
Result<std::string> read_text(const std::string& path);
/// Writes path through a temporary file beside it, so that nobody sees half of it. io; not_found if
/// there is no such folder.
Status write_file_atomic(const std::string& path, const std::string& contents);
/// Makes a finished temporary file durable under its name. io; not_found.
Status publish_file(const std::string& temporary, const std::string& path);

}  // namespace simplescale
