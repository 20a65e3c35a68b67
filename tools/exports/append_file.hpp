// A file that is only appended to. An append that fails leaves the file as it was before.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.hpp"

namespace simplescale {

class AppendFile {
 public:
  AppendFile() = default;
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  ~AppendFile();
  /// Creates the file, or empties an existing one. not_found: the folder does not exist; io.
  static Result<AppendFile> create(const std::string& path);
  /// Appends all bytes. io: none of them are in the file.
  Status append(std::string_view bytes);
  uint64_t size() const { return size_; }

 private:
  int fd_ = -1;
  uint64_t size_ = 0;
  std::string path_;
};

}  // namespace simplescale
