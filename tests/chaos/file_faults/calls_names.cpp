// The calls about names, attributes and folders. Each asks choose() for a fault, if its path lies
// below the folder, and makes the system call.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "calls.hpp"
#include "stale.hpp"

using namespace file_faults;

namespace {

/// A call that changes a name. `make` returns 0 or -1 with errno.
template <class Make>
int change(Call call, const Path& path, const Path& other, Make make) {
  const Path& below = path ? path : other;
  if (!below) return make();
  const Choice choice = choose(call, below);
  int result = -1;
  if (choice.effect == Effect::fail) {
    errno = choice.error;
    return -1;
  }
  result = make();
  changed(path);
  changed(other);
  if (choice.effect == Effect::replay && result == 0) {
    errno = choice.error;
    return -1;
  }
  return result;
}

int stat_at(int folder, const char* path, struct stat* status, int flags) {
  const auto make = [&] {
    return static_cast<int>(syscall(SYS_newfstatat, folder, path, status, flags));
  };
  const Path below = path && path[0] ? path_at(folder, path) : Path{};
  if (!below) return make();
  if (fails(Call::stat, below) || still_missing(Call::stat, below)) return -1;
  const int result = make();
  if (result == 0 || errno == ENOENT) answered(below, result != 0);
  if (result == 0) attributes(below, flags & AT_SYMLINK_NOFOLLOW, *status);
  return result;
}

/// path null: the open file itself.
int touch_at(int folder, const char* path, const timespec times[2], int flags) {
  const Path below = path ? path_at(folder, path) : path_of(folder);
  if (fails(Call::touch, below)) return -1;
  changed(below);
  return static_cast<int>(syscall(SYS_utimensat, folder, path, times, flags));
}

}  // namespace

extern "C" {

// --- Names ---

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  return change(Call::rename, path_at(to_folder, to), path_at(from_folder, from), [&] {
    return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  });
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return renameat2(from_folder, from, to_folder, to, 0);
}

int rename(const char* from, const char* to) noexcept {
  return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  return change(Call::link, path_at(to_folder, to), path_at(from_folder, from), [&] {
    return static_cast<int>(syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
  });
}

int link(const char* from, const char* to) noexcept {
  return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  return change(Call::unlink, path_at(folder, path), Path{},
                [&] { return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags)); });
}

int unlink(const char* path) noexcept {
  return unlinkat(AT_FDCWD, path, 0);
}
int rmdir(const char* path) noexcept {
  return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int remove(const char* path) noexcept {
  return change(Call::unlink, path_at(AT_FDCWD, path), Path{}, [&] {
    const long result = syscall(SYS_unlink, path);
    return static_cast<int>(result != 0 && errno == EISDIR ? syscall(SYS_rmdir, path) : result);
  });
}

int symlinkat(const char* target, int folder, const char* path) noexcept {
  return change(Call::symlink, path_at(folder, path), Path{},
                [&] { return static_cast<int>(syscall(SYS_symlinkat, target, folder, path)); });
}

int symlink(const char* target, const char* path) noexcept {
  return symlinkat(target, AT_FDCWD, path);
}

int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  return change(Call::mkdir, path_at(folder, path), Path{},
                [&] { return static_cast<int>(syscall(SYS_mkdirat, folder, path, mode)); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  return mkdirat(AT_FDCWD, path, mode);
}

// --- Attributes ---

int fstatat(int folder, const char* path, struct stat* status, int flags) noexcept {
  return stat_at(folder, path, status, flags);
}
int stat(const char* path, struct stat* status) noexcept {
  return stat_at(AT_FDCWD, path, status, 0);
}
int lstat(const char* path, struct stat* status) noexcept {
  return stat_at(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
int fstatat64(int folder, const char* path, struct stat64* status, int flags) noexcept {
  return stat_at(folder, path, reinterpret_cast<struct stat*>(status), flags);
}
int stat64(const char* path, struct stat64* status) noexcept {
  return stat_at(AT_FDCWD, path, reinterpret_cast<struct stat*>(status), 0);
}
int lstat64(const char* path, struct stat64* status) noexcept {
  return stat_at(AT_FDCWD, path, reinterpret_cast<struct stat*>(status), AT_SYMLINK_NOFOLLOW);
}

int access(const char* path, int mode) noexcept {
  const Path below = path_at(AT_FDCWD, path);
  if (below && (fails(Call::stat, below) || still_missing(Call::stat, below))) return -1;
  const int result = static_cast<int>(syscall(SYS_access, path, mode));
  if (below && (result == 0 || errno == ENOENT)) answered(below, result != 0);
  return result;
}

ssize_t readlinkat(int folder, const char* path, char* text, size_t size) noexcept {
  const Path below = path_at(folder, path);
  if (below && (fails(Call::stat, below) || still_missing(Call::stat, below))) return -1;
  return syscall(SYS_readlinkat, folder, path, text, size);
}

ssize_t readlink(const char* path, char* text, size_t size) noexcept {
  return readlinkat(AT_FDCWD, path, text, size);
}

int utimensat(int folder, const char* path, const timespec times[2], int flags) noexcept {
  return touch_at(folder, path, times, flags);
}

int futimens(int fd, const timespec times[2]) noexcept {
  return touch_at(fd, nullptr, times, 0);
}

// --- Folders ---

DIR* opendir(const char* path) {
  const Path below = path_at(AT_FDCWD, path);
  if (fails(Call::list, below)) return nullptr;
  DIR* stream = next<DIR*(const char*)>("opendir")(path);
  if (below && stream) listing_begins(stream, below);
  return stream;
}

DIR* fdopendir(int fd) {
  const Path below = path_of(fd);
  if (fails(Call::list, below)) return nullptr;
  DIR* stream = next<DIR*(int)>("fdopendir")(fd);
  if (below && stream) listing_begins(stream, below);
  return stream;
}

dirent* readdir(DIR* stream) {
  static auto* const real = next<dirent*(DIR*)>("readdir");
  dirent* entry = real(stream);
  while (entry && hidden(stream, entry->d_name)) entry = real(stream);
  return entry;
}
dirent64* readdir64(DIR*) __attribute__((alias("readdir")));

int closedir(DIR* stream) {
  listing_ends(stream);
  return next<int(DIR*)>("closedir")(stream);
}

}  // extern "C"
