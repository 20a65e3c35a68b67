#include "runtime/base/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "runtime/base/own_links.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

Result<uint64_t> size_of(const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) return Status(Code::bad_data, path + " is not a file");
  return static_cast<uint64_t>(info.st_size);
}

bool is_below(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

/// Where the links of a snapshot in the cache of huggingface_hub lead: REPOSITORY/blobs, for a
/// folder REPOSITORY/snapshots/REVISION or below. "": it is none.
fs::path blobs_of(const fs::path& folder) {
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path())
    if (at.parent_path().filename() == "snapshots") return at.parent_path().parent_path() / "blobs";
  return {};
}

}  // namespace

Result<InputFile> InputFile::open(const std::string& path) {
  return open_at(AT_FDCWD, path, path);
}

Result<InputFile> InputFile::open_at(int folder_fd, const std::string& name,
                                     const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer would block. It has no effect on files.
  const int fd = ::openat(folder_fd, name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return system_error("cannot open", path, errno, Code::not_found);
  InputFile file(path, fd);
  struct stat info {};
  if (::fstat(fd, &info) != 0) return system_error("cannot read", path, errno);
  SS_ASSIGN(file.bytes_, size_of(path, info));
  constexpr int64_t kNanoseconds = 1'000'000'000;
  file.identity_ = {info.st_dev, info.st_ino, file.bytes_,
                    info.st_mtim.tv_sec * kNanoseconds + info.st_mtim.tv_nsec};
  return file;
}

Result<InputFile> InputFile::open_inside(const std::string& folder, const std::string& path,
                                         LinksOut out) {
  // The folder is held open too: a name may mean another folder or file by now.
  const fs::path of = folder.empty() ? fs::path(path).parent_path() : fs::path(folder);
  const Descriptor held(::open(of.empty() ? "." : of.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (held.fd < 0) return system_error("cannot open", path, errno, Code::not_found);
  const fs::path name = fs::path(path).lexically_relative(of);
  SS_ASSIGN(InputFile file, open_at(held.fd, name, path));
  std::error_code error, unknown;
  const fs::path inside = fs::read_symlink("/proc/self/fd/" + std::to_string(held.fd), error);
  const fs::path real = fs::read_symlink("/proc/self/fd/" + std::to_string(file.fd_), unknown);
  if (error || unknown)
    return Status(Code::io, "cannot tell where " + path +
                                " lies: /proc: " + (error ? error : unknown).message());
  const fs::path blobs = blobs_of(inside);
  if (is_below(real, inside) || (!blobs.empty() && is_below(real, blobs)) ||
      (out == LinksOut::own && by_own_links(held.fd, name, file.fd_)))
    return file;
  const fs::path target = fs::read_symlink(path, error);
  return Status(Code::bad_data, path + " is a link to " + (error ? real : target).string() +
                                    ", outside of the folder; replace it by the file itself if "
                                    "you trust it");
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(other.bytes_),
      identity_(other.identity_) {}

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

namespace {

Result<std::string> whole_text(const InputFile& file, size_t bytes_max) {
  if (file.bytes() > bytes_max)
    return Status(Code::bad_data, file.path() + ": " + std::to_string(file.bytes()) +
                                      " bytes, more than the " + std::to_string(bytes_max) +
                                      " expected at most");
  std::string text(file.bytes(), '\0');
  SS_RETURN_IF_ERROR(file.read(0, text.data(), text.size()));
  return text;
}

}  // namespace

Result<std::string> read_text_file(const std::string& path, size_t bytes_max) {
  SS_ASSIGN(const InputFile file, InputFile::open(path));
  return whole_text(file, bytes_max);
}

Result<std::string> read_text_inside(const std::string& path, size_t bytes_max, LinksOut out) {
  SS_ASSIGN(const InputFile file, InputFile::open_inside("", path, out));
  return whole_text(file, bytes_max);
}

Result<uint64_t> file_bytes(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return system_error("cannot read", path, errno, Code::not_found);
  return size_of(path, info);
}

}  // namespace simplescale
