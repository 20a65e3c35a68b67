// The calls that open, read, write and close files. Each asks choose() for a fault, if its path
// lies below the folder, and makes the system call.
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "calls.hpp"
#include "stale.hpp"

using namespace file_faults;

namespace {

int open_at(int folder, const char* path, int flags, mode_t mode) {
  const auto make = [&] {
    return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
  };
  const Path below = path_at(folder, path);
  if (!below) return make();
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  const bool creates = flags & O_CREAT;
  const Call call = creates ? Call::create : Call::open;
  if (fails(call, below)) return -1;
  if (!creates && still_missing(call, below)) return -1;
  const int fd = make();
  opened(fd, writes);
  if (fd >= 0 && flags & O_APPEND) remember_size(fd);
  if (creates && fd >= 0) changed(below);
  if (!creates && (fd >= 0 || errno == ENOENT)) answered(below, fd < 0);
  return fd;
}

/// Writes what the fault leaves of `bytes`. `make` writes that many bytes.
template <class Make>
ssize_t write_part(int fd, size_t bytes, Make make) {
  const Path below = path_of(fd);
  if (!below) return make(bytes);
  const Choice choice = choose(Call::write, below);
  if (choice.effect == Effect::fail) {
    errno = choice.error;
    return -1;
  }
  if (choice.effect != Effect::tear || bytes < 2) return make(bytes);
  const size_t part = 1 + static_cast<size_t>(choice.part * static_cast<double>(bytes - 1));
  const ssize_t written = make(part);
  if (written < 0 || choice.error == 0) return written;
  errno = choice.error;
  return -1;
}

int on_descriptor(Call call, int fd, auto make) {
  return fails(call, path_of(fd)) ? -1 : make();
}

mode_t mode_of(int flags, va_list arguments) {
  return flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

FILE* open_stream(const char* path, const char* mode, const char* function) {
  const auto make = [&] { return next<FILE*(const char*, const char*)>(function)(path, mode); };
  const Path below = path_at(AT_FDCWD, path);
  if (!below) return make();
  const bool creates = mode[0] != 'r', writes = creates || std::strchr(mode, '+');
  const Call call = creates ? Call::create : Call::open;
  if (fails(call, below)) return nullptr;
  if (!creates && still_missing(call, below)) return nullptr;
  FILE* file = make();
  if (file) opened(fileno(file), writes);
  if (creates && file) changed(below);
  if (!creates && (file || errno == ENOENT)) answered(below, !file);
  return file;
}

int temporary(char* path, int flags, const char* function) {
  const Path below = path_at(AT_FDCWD, path);
  if (fails(Call::create, below)) return -1;
  const int fd = next<int(char*, int)>(function)(path, flags);
  if (below) opened(fd, true);
  if (below && fd >= 0) changed(below);
  return fd;
}

}  // namespace

extern "C" {

// --- Opening and closing ---

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(folder, path, flags, mode);
}

int creat(const char* path, mode_t mode) {
  return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int open64(const char*, int, ...) __attribute__((alias("open")));
int openat64(int, const char*, int, ...) __attribute__((alias("openat")));
int creat64(const char*, mode_t) __attribute__((alias("creat")));

int mkostemp(char* path, int flags) {
  return temporary(path, flags, "mkostemp");
}
int mkstemp(char* path) {
  return temporary(path, 0, "mkostemp");
}
int mkostemp64(char*, int) __attribute__((alias("mkostemp")));
int mkstemp64(char*) __attribute__((alias("mkstemp")));

FILE* fopen(const char* path, const char* mode) {
  return open_stream(path, mode, "fopen");
}
FILE* fopen64(const char*, const char*) __attribute__((alias("fopen")));

int close(int fd) {
  const bool wrote = for_writing(fd);
  const Path below = wrote ? path_of(fd) : Path{};
  closed(fd);
  const int result = static_cast<int>(syscall(SYS_close, fd));
  return result == 0 && fails(Call::close, below) ? -1 : result;
}

int fclose(FILE* file) {
  const int fd = fileno(file);
  const bool wrote = for_writing(fd);
  const Path below = wrote ? path_of(fd) : Path{};
  closed(fd);
  const int result = next<int(FILE*)>("fclose")(file);
  return result == 0 && fails(Call::close, below) ? EOF : result;
}

// --- Reading, writing, syncing ---

ssize_t read(int fd, void* data, size_t bytes) {
  if (fails(Call::read, path_of(fd))) return -1;
  return syscall(SYS_read, fd, data, bytes);
}

ssize_t pread(int fd, void* data, size_t bytes, off_t at) {
  if (fails(Call::read, path_of(fd))) return -1;
  return syscall(SYS_pread64, fd, data, bytes, at);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  return write_part(fd, bytes, [&](size_t part) -> ssize_t {
    const Path below = path_of(fd);
    if (below && fcntl(fd, F_GETFL) & O_APPEND) return append(fd, below, data, part);
    return syscall(SYS_write, fd, data, part);
  });
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
  return write_part(fd, bytes,
                    [&](size_t part) { return syscall(SYS_pwrite64, fd, data, part, at); });
}

ssize_t writev(int fd, const iovec* parts, int count) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  return write_part(fd, bytes, [&](size_t part) -> ssize_t {
    if (part == bytes) return syscall(SYS_writev, fd, parts, count);
    char* joined = static_cast<char*>(std::malloc(bytes));
    size_t at = 0;
    for (int i = 0; joined && i < count; at += parts[i++].iov_len)
      std::memcpy(joined + at, parts[i].iov_base, parts[i].iov_len);
    const ssize_t written = joined ? syscall(SYS_write, fd, joined, part) : -1;
    std::free(joined);
    return written;
  });
}

ssize_t pread64(int, void*, size_t, off64_t) __attribute__((alias("pread")));
ssize_t pwrite64(int, const void*, size_t, off64_t) __attribute__((alias("pwrite")));

int fsync(int fd) {
  return on_descriptor(Call::sync, fd, [&] { return static_cast<int>(syscall(SYS_fsync, fd)); });
}

int fdatasync(int fd) {
  return on_descriptor(Call::sync, fd,
                       [&] { return static_cast<int>(syscall(SYS_fdatasync, fd)); });
}

int ftruncate(int fd, off_t size) noexcept {
  return on_descriptor(Call::size, fd,
                       [&] { return static_cast<int>(syscall(SYS_ftruncate, fd, size)); });
}

int fallocate(int fd, int mode, off_t at, off_t size) {
  return on_descriptor(
      Call::size, fd, [&] { return static_cast<int>(syscall(SYS_fallocate, fd, mode, at, size)); });
}

int posix_fallocate(int fd, off_t at, off_t size) {
  if (fails(Call::size, path_of(fd))) return errno;
  return next<int(int, off_t, off_t)>("posix_fallocate")(fd, at, size);
}

int truncate(const char* path, off_t size) noexcept {
  if (fails(Call::size, path_at(AT_FDCWD, path))) return -1;
  return static_cast<int>(syscall(SYS_truncate, path, size));
}

int ftruncate64(int, off64_t) noexcept __attribute__((alias("ftruncate")));
int fallocate64(int, int, off64_t, off64_t) __attribute__((alias("fallocate")));
int posix_fallocate64(int, off64_t, off64_t) __attribute__((alias("posix_fallocate")));
int truncate64(const char*, off64_t) noexcept __attribute__((alias("truncate")));

}  // extern "C"
