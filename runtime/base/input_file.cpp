#include "runtime/base/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace simplescale {

namespace {

Result<uint64_t> size_of(const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) return Status(Code::bad_data, path + " is not a file");
  return static_cast<uint64_t>(info.st_size);
}

}  // namespace

Result<InputFile> InputFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer would block. It has no effect on files.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return system_error("cannot open", path, errno, Code::not_found);
  InputFile file(path, fd, 0);
  struct stat info {};
  if (::fstat(fd, &info) != 0) return system_error("cannot read", path, errno);
  SS_ASSIGN(file.bytes_, size_of(path, info));
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status InputFile::read(uint64_t offset, void* data, size_t bytes) const {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, next, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("cannot read", path_, errno);
    if (n == 0) {
      struct stat info {};
      if (::fstat(fd_, &info) == 0) offset = std::min(offset, static_cast<uint64_t>(info.st_size));
      return {Code::bad_data, path_ + ": ends at byte " + std::to_string(offset)};
    }
    next += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return {};
}

Result<uint64_t> file_bytes(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return system_error("cannot read", path, errno, Code::not_found);
  return size_of(path, info);
}

}  // namespace simplescale
