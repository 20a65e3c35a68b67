// Reads and replaces small files as a whole. A replaced file is durable and atomic: after a crash
// it holds the old contents or the new, never a part of either. Any thread. Blocks on the disk, so
// no actor may call it.
#pragma once

#include <sys/types.h>

#include <fstream>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// The contents of a small file. not_found: no such file; bad_data: it is a folder, a pipe or
/// a device; io.
Result<std::string> read_text(const std::string& path);
/// A stream that reads a file of any size. Not open if there is no such file, or if it is a pipe or
/// a device: reading these may never end.
std::ifstream open_lines(const std::string& path);
/// Writes `path`.part and renames it to `path`, so that readers see the old or the new contents.
/// mode: of the file, less the umask. not_found: there is no such folder; io.
Status write_file_atomic(const std::string& path, const std::string& contents, mode_t mode = 0644);
/// Writes what a user asked for to the file that the user named: as write_file_atomic(), or into the
/// pipe or device that it is (/dev/stdout).
Status write_output(const std::string& path, const std::string& contents);
/// Syncs a finished temporary file, renames it to `path` and syncs the folder. not_found, io.
Status publish_file(const std::string& temporary, const std::string& path);

}  // namespace simplescale
