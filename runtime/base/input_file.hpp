// A file that is read in pieces, by pread: one that is cut short or a failing disk is a Status
// here, while a mapping would raise SIGBUS. Any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// A file being read; size as of open().
class InputFile {
 public:
  /// not_found if it is not there, bad_data if it is no file; io: it may be as good as ever.
  static Result<InputFile> open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();
  uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  /// Reads exactly these bytes; bad_data with the byte where it ends if the file has become
  /// shorter, io.
  Status read(uint64_t offset, void* data, size_t bytes) const;

 private:
  InputFile(std::string path, int fd, uint64_t bytes)
      : path_(std::move(path)), fd_(fd), bytes_(bytes) {}
  std::string path_;
  int fd_;
  uint64_t bytes_;
};

/// Without opening it; the same errors as InputFile::open.
Result<uint64_t> file_bytes(const std::string& path);

}  // namespace simplescale
