#include "runtime/base/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/sync_path.hpp"
#include "runtime/base/write_whole.hpp"

namespace simplescale {

namespace {
constexpr size_t kTextBytesMax = size_t{256} << 20;
}  // namespace

Status sync_path(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error("cannot open", path, errno, Code::not_found);
  const int error = fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // EINVAL: this kind of file cannot be synced.
  return error == 0 || error == EINVAL ? Status() : system_error("cannot sync", path, error);
}

Result<std::string> read_text(const std::string& path) {
  return read_text(path, kTextBytesMax);
}

Result<std::string> read_text(const std::string& path, size_t bytes_max) {
  // O_NONBLOCK: opening a pipe without a writer would block. It has no effect on files.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return system_error("cannot read", path, errno, Code::not_found);
  struct stat info {};
  if (fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) {
    ::close(fd);
    return Status(Code::bad_data, path + " is not a file");
  }
  std::string text;
  std::array<char, 16 << 10> chunk;
  ssize_t got = 0;
  bool large = info.st_size > 0 && static_cast<size_t>(info.st_size) > bytes_max;
  while (!large &&
         ((got = ::read(fd, chunk.data(), chunk.size())) > 0 || (got < 0 && errno == EINTR))) {
    if (got > 0) text.append(chunk.data(), static_cast<size_t>(got));
    large = text.size() > bytes_max;
  }
  const int error = got < 0 ? errno : 0;
  ::close(fd);
  if (large)
    return Status(Code::bad_data, path + " has more than " + std::to_string(bytes_max) + " bytes");
  if (error != 0) return system_error("cannot read", path, error);
  return text;
}

std::ifstream open_lines(const std::string& path) {
  // The file that was looked at is the one that is read, whatever takes its place meanwhile.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return {};
  struct stat info {};
  std::ifstream file;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
    file.open("/proc/self/fd/" + std::to_string(fd), std::ios::binary);
  ::close(fd);
  return file;
}

bool next_line(std::istream& file, std::string& line, size_t bytes_max) {
  line.clear();
  if (!file.good()) {
    file.setstate(std::ios::failbit);
    return false;
  }
  std::streambuf& from = *file.rdbuf();
  try {
    for (int c = from.sbumpc(); c != '\n'; c = from.sbumpc()) {
      if (c == std::streambuf::traits_type::eof()) {
        file.setstate(line.empty() ? std::ios::eofbit | std::ios::failbit : std::ios::eofbit);
        return !line.empty();
      }
      if (line.size() == bytes_max) {
        file.setstate(std::ios::failbit);
        return false;
      }
      line += static_cast<char>(c);
    }
  } catch (const std::exception&) {  // the file cannot be read
    file.setstate(std::ios::badbit);
    return false;
  }
  return true;
}

Status publish_file(const std::string& temporary, const std::string& path) {
  SS_RETURN_IF_ERROR(sync_path(temporary));
  if (::rename(temporary.c_str(), path.c_str()) != 0)
    return system_error("cannot write", path, errno, Code::not_found);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return sync_path(folder.empty() ? "." : folder);
}

Status write_file_atomic(const std::string& path, const std::string& contents, mode_t mode) {
  const std::string temporary = path + ".part";
  const int fd = open_output(temporary, Output::replace, mode);
  if (fd < 0) return output_error(temporary, errno);
  size_t done = 0;
  const int error = write_whole(fd, contents, done) ? 0 : errno;
  if (::close(fd) != 0 && error == 0) return system_error("cannot write", temporary, errno);
  if (error != 0) return system_error("cannot write", temporary, error);
  return publish_file(temporary, path);
}

Status write_output(const std::string& path, const std::string& contents) {
  struct stat info {};
  const bool file = ::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
  if ((file && std::filesystem::path(path).parent_path() != "/dev") || S_ISDIR(info.st_mode)) {
    // /dev/stdout is a link, which may name a file. A missing folder is no bad input.
    const Status done = write_file_atomic(path, contents);
    return done.ok() ? done : Status(Code::io, done.message());
  }
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return system_error("cannot write", path, errno);
  std::string_view rest = contents;
  ssize_t count = 0;
  while (!rest.empty() && ((count = ::write(fd, rest.data(), rest.size())) > 0 || errno == EINTR))
    rest.remove_prefix(count > 0 ? static_cast<size_t>(count) : 0);
  const int error = errno;
  ::close(fd);
  return rest.empty() ? Status() : system_error("cannot write", path, error);
}

}  // namespace simplescale
