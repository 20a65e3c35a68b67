// A file that grows by whole pieces: what could only be written in part is taken back.
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
  /// A new, empty file. io, not_found: no such folder.
  static Result<AppendFile> create(const std::string& path);
  /// io: none of it is there.
  Status append(std::string_view bytes);
  uint64_t size() const { return size_; }

 private:
  int fd_ = -1;
  uint64_t size_ = 0;
  std::string path_;
};

}  // namespace simplescale
