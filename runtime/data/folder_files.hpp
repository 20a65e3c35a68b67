// What a folder of data holds: what may be read, and what is left out and must be told. Blocks on
// the disk; any thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Paths; each begins with that of the folder.
struct FolderFiles {
  std::vector<std::string> files;   // regular files, in the order of their paths
  std::vector<std::string> linked;  // those of them that links lead to
  std::vector<std::string> again;   // those of `linked` that are in `files` by another path, too
  /// What begins with a dot, folders that are not entered, what is no file. Folders end with "/".
  std::vector<std::string> others;
};

enum class Below : unsigned char {
  no,   // the entries of the folder itself
  yes,  // also in folders below, and in those that links lead to
};

/// A folder that several links lead to is entered once, so a circle of links ends. bad_data: a link
/// leads nowhere, or is another user's and leads to a folder outside; a folder cannot be read. Links
/// to files, and what lies behind links, are judged by InputFile::open_inside().
Result<FolderFiles> list_folder(const std::string& folder, Below below);

/// "2 files are not read: a.zstd, below/" of paths in the folder; names at most ten. does: what
/// becomes of the files, "not read".
std::string counted_files(const std::string& folder, const std::vector<std::string>& paths,
                          const std::string& does);

}  // namespace simplescale
