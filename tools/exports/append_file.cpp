#include "tools/exports/append_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "runtime/base/open_output.hpp"
#include "runtime/base/write_whole.hpp"

namespace simplescale {

AppendFile::AppendFile(AppendFile&& other) noexcept {
  *this = std::move(other);
}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) close(fd_);
}

Result<AppendFile> AppendFile::create(const std::string& path) {
  AppendFile file;
  file.path_ = path;
  file.fd_ = open_output(path, Output::replace);
  if (file.fd_ < 0) return output_error(path, errno);
  return file;
}

Status AppendFile::append(std::string_view bytes) {
  size_t done = 0;
  if (!write_whole(fd_, bytes, done, static_cast<int64_t>(size_))) {
    const int error = errno;
    if (ftruncate(fd_, static_cast<off_t>(size_)) != 0) {
      // The next append overwrites the partial data.
    }
    return system_error("cannot write", path_, error);
  }
  size_ += bytes.size();
  return {};
}

}  // namespace simplescale
