// Opens files for writing. Every file that the program creates is opened here, because another user
// may have planted something under its name. Any thread. Blocks on the disk.
//
//   FILE-1  No file is written through another user's link, and none that another user has planted.
#pragma once

#include <sys/types.h>

#include <fstream>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

enum class Output : unsigned char {
  replace,  // a new file; what had the name is removed, and never written to; EPERM: a device
  append,   // the file that is there, or a new one; each write goes to its end
  keep,     // the file that is there, or a new one; its bytes stay
  lock,     // as keep, for a lock only: another user's file is taken, too
};

/// Opens a file in its folder, not beyond it: no link under the file's name is followed, and none of
/// another user under the folder's name. Returns a descriptor; -1: errno says why. ELOOP: a link is
/// in the way; EPERM: what is there is another user's file, or no file. mode: of a new file, less the
/// umask.
int open_output(const std::string& path, Output how, mode_t mode = 0644);

/// The error of an open_output() that failed with this errno. missing: the code if there is no such
/// folder; else io.
Status output_error(const std::string& path, int error, Code missing = Code::not_found);

/// A stream that writes such a file, and begins at its end. One thread.
class OutputStream : public std::ofstream {
 public:
  OutputStream() = default;
  OutputStream(const std::string& path, Output how) { open(path, how); }
  void open(const std::string& path, Output how);
  /// The error of open(), or of what was written since.
  Status status() const;

 private:
  std::string path_;
  int error_ = 0;  // of open()
};

}  // namespace simplescale
