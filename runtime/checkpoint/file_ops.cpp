#include "runtime/checkpoint/file_ops.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "runtime/base/open_output.hpp"

namespace simplescale {

Result<int> FileOps::create(const std::string& path) {
  const int fd = open_output(path, Output::replace);
  if (fd < 0) return output_error(path, errno, Code::io);
  return fd;
}

Status FileOps::write(int fd, const std::string& path, uint64_t offset, const void* data,
                      size_t bytes) {
  constexpr size_t large = 1 << 20;
  const uint64_t first = offset;
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd, next, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("cannot write", path, errno);
    next += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  // Else the disk would do nothing before fsync(), which waits for it and reports its errors.
  if (const uint64_t written = offset - first; written >= large)
    (void)::sync_file_range(fd, static_cast<off64_t>(first), static_cast<off64_t>(written),
                            SYNC_FILE_RANGE_WRITE);
  return {};
}

Status FileOps::fsync(int fd, const std::string& path) {
  return ::fsync(fd) == 0 ? Status() : system_error("cannot sync", path, errno);
}

Status FileOps::fsync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return system_error("cannot open", path, errno);
  // EINVAL: some network file systems cannot sync a folder; their server makes renames durable.
  const Status status =
      ::fsync(fd) == 0 || errno == EINVAL ? Status() : system_error("cannot sync", path, errno);
  ::close(fd);
  return status;
}

Status FileOps::rename(const std::string& from, const std::string& to) {
  return ::rename(from.c_str(), to.c_str()) == 0
             ? Status()
             : system_error("cannot rename a file to", to, errno);
}

Status FileOps::symlink(const std::string& target, const std::string& path) {
  return ::symlink(target.c_str(), path.c_str()) == 0 ? Status()
                                                      : system_error("cannot link", path, errno);
}

Status FileOps::mkdir(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) == 0) return {};
  struct stat info;
  const int error = errno;
  if (error == EEXIST && ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return {};
  return system_error("cannot create folder", path, error);
}

Status FileOps::unlink(const std::string& path) {
  return ::unlink(path.c_str()) == 0 || errno == ENOENT
             ? Status()
             : system_error("cannot remove", path, errno);
}

Status FileOps::rmdir(const std::string& path) {
  return ::rmdir(path.c_str()) == 0 || errno == ENOENT
             ? Status()
             : system_error("cannot remove folder", path, errno);
}

Status LeaderFiles::rename(const std::string& from, const std::string& to) {
  if (leads_ && !leads_())
    return {Code::aborted, to + " is not replaced: this supervisor does not lead any more, or the "
                                "run folder cannot be read"};
  return FileOps::rename(from, to);
}

FileOps& system_files() {
  static FileOps files;
  return files;
}

// -- OutputFile ---------------------------------------------------------------------------------

Result<OutputFile> OutputFile::create(FileOps& ops, const std::string& path) {
  SS_ASSIGN(const int fd, ops.create(path));
  return OutputFile(ops, path, fd);
}
OutputFile::OutputFile(OutputFile&& other) noexcept
    : ops_(other.ops_),
      path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      end_(other.end_) {}
OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}
Status OutputFile::write(const void* data, size_t bytes) {
  const uint64_t offset = std::exchange(end_, end_ + bytes);
  return write_at(offset, data, bytes);
}
Status OutputFile::write_at(uint64_t offset, const void* data, size_t bytes) const {
  return ops_->write(fd_, path_, offset, data, bytes);
}
Status OutputFile::sync() {
  return ops_->fsync(fd_, path_);
}

// -- Whole files and folders --------------------------------------------------------------------

Status write_text_file(FileOps& ops, const std::string& path, const std::string& text) {
  SS_ASSIGN(OutputFile file, OutputFile::create(ops, path));
  SS_RETURN_IF_ERROR(file.write(text));
  return file.sync();
}

Status replace_link(FileOps& ops, const std::string& target, const std::string& temporary,
                    const std::string& path) {
  SS_RETURN_IF_ERROR(ops.unlink(temporary));
  SS_RETURN_IF_ERROR(ops.symlink(target, temporary));
  SS_RETURN_IF_ERROR(ops.rename(temporary, path));
  return ops.fsync_folder(parent_folder(path));
}

Status make_folders(FileOps& ops, const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return {};
  const std::string parent = parent_folder(path);
  if (parent != path && parent != ".") SS_RETURN_IF_ERROR(make_folders(ops, parent));
  return ops.mkdir(path);
}

Status remove_folder(FileOps& ops, const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_symlink(path, ignored)) return ops.unlink(path);
  SS_ASSIGN(const std::vector<std::string> names, read_folder(path));
  for (const std::string& name : names) {
    const std::string entry = path + "/" + name;
    const auto kind = std::filesystem::symlink_status(entry, ignored).type();
    SS_RETURN_IF_ERROR(kind == std::filesystem::file_type::directory ? remove_folder(ops, entry)
                                                                     : ops.unlink(entry));
  }
  return ops.rmdir(path);
}

Result<std::vector<std::string>> read_folder(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  const bool missing =
      error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !missing) return Status(Code::io, "cannot list " + path + ": " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> list_folder(const std::string& path) {
  auto names = read_folder(path);
  return names.ok() ? names.take() : std::vector<std::string>();
}

std::string parent_folder(const std::string& path) {
  const size_t last = path.find_last_not_of('/');
  if (last == std::string::npos) return path.empty() ? "." : "/";
  const size_t slash = path.find_last_of('/', last);
  if (slash == std::string::npos) return ".";
  const size_t end = path.find_last_not_of('/', slash);
  return end == std::string::npos ? "/" : path.substr(0, end + 1);
}

}  // namespace simplescale
