#include "runtime/object_store/chunk_files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/open_output.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;

constexpr size_t kHashBytes = 16;
constexpr size_t kVerifiedMax = 1'000'000;
constexpr int64_t kTouchAfterS = 10;       // a file's time of use is this exact
constexpr int64_t kLeftoverAfterS = 3600;  // a temporary file of a process that died

/// Closes itself.
struct Descriptor {
  const int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

int64_t nanoseconds(const timespec& time) {
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

bool read_whole(int fd, uint64_t offset, std::span<char> out) {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    out = out.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return true;
}

bool write_whole(int fd, std::span<const char> data) {
  while (!data.empty()) {
    const ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data = data.subspan(static_cast<size_t>(n));
  }
  return true;
}

bool is_temporary(const fs::path& path) {
  return path.filename().native().starts_with("new-");
}

}  // namespace

Result<std::string> ChunkFiles::make_folder(const std::string& folder) {
  const std::string own = folder + "/simplescale-" + std::to_string(::geteuid());
  std::error_code error;
  fs::create_directories(folder, error);
  const bool made = ::mkdir(own.c_str(), 0700) == 0 || errno == EEXIST;
  struct stat info {};
  if (!made || ::lstat(own.c_str(), &info) != 0)
    return Status(Code::bad_config, "data.cache_folder: cannot create " + own + ": " +
                                        std::strerror(errno) + "; name another folder");
  // Others could put tokens there that are trained.
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 022) != 0)
    return Status(Code::bad_config, "data.cache_folder: " + own +
                                        " is not a folder that only this user can write; remove "
                                        "it, or name another data.cache_folder");
  return own;
}

ChunkFiles::ChunkFiles(std::string folder, uint64_t bytes_max)
    : folder_(std::move(folder)), bytes_max_(bytes_max) {}

std::string ChunkFiles::path_of(const std::string& object, uint64_t index) const {
  return folder_ + "/" + object + "/" + std::to_string(index);
}

bool ChunkFiles::has(const std::string& object, uint64_t index) const {
  return ::access(path_of(object, index).c_str(), F_OK) == 0;
}

bool ChunkFiles::read(const std::string& object, uint64_t index, size_t bytes, uint64_t offset,
                      std::span<char> out) {
  const std::string path = path_of(object, index);
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return false;
  return is_whole(file.fd, path, bytes) && read_whole(file.fd, offset, out);
}

/// Hashes a file that this process has not hashed yet. Removes it if it is damaged. Notes that it is
/// used.
bool ChunkFiles::is_whole(int fd, const std::string& path, size_t bytes) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return false;
  const Verified now{info.st_ino, nanoseconds(info.st_mtim)};
  bool known = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = verified_.find(path);
    known = found != verified_.end() && found->second.inode == now.inode &&
            found->second.changed_ns == now.changed_ns;
  }
  bool whole = static_cast<uint64_t>(info.st_size) == bytes + kHashBytes;
  if (whole && !known) {
    std::vector<char> all(bytes + kHashBytes);
    whole = read_whole(fd, 0, all);
    const Hash128 hash = hash128(all.data(), bytes);
    static_assert(sizeof hash == kHashBytes);
    whole = whole && std::memcmp(all.data() + bytes, &hash, kHashBytes) == 0;
  }
  if (!whole) {
    ::unlink(path.c_str());
    return false;
  }
  if (::time(nullptr) - info.st_atim.tv_sec >= kTouchAfterS) {
    const timespec used[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};  // also where it is mounted noatime
    ::futimens(fd, used);
  }
  if (!known) {
    const std::lock_guard lock(mutex_);
    if (verified_.size() >= kVerifiedMax) verified_.clear();
    verified_[path] = now;
  }
  return true;
}

void ChunkFiles::write(const std::string& object, uint64_t index, std::span<const char> chunk) {
  const std::string path = path_of(object, index);
  if (write_file(path, chunk)) return count(chunk.size() + kHashBytes);
  if (!warned_.exchange(true))
    log::warn("the cache of objects cannot keep {}: {}; objects are read again each time", path,
              std::strerror(errno));
}

bool ChunkFiles::write_file(const std::string& path, std::span<const char> chunk) {
  const std::string folder = fs::path(path).parent_path();
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return false;
  const std::string temporary =
      folder + "/new-" + std::to_string(::getpid()) + "-" + std::to_string(++temporary_);
  const Hash128 hash = hash128(chunk.data(), chunk.size());
  bool written = false;
  {
    const Descriptor file{open_output(temporary, Output::replace, 0600)};
    written = file.fd >= 0 && write_whole(file.fd, chunk) &&
              write_whole(file.fd, {reinterpret_cast<const char*>(&hash), sizeof hash});
    timespec times[2] = {{0, UTIME_OMIT}, {}};  // the kernel's own are the same for some ms
    ::clock_gettime(CLOCK_REALTIME, &times[1]);
    ::futimens(file.fd, times);
  }
  if (written && ::rename(temporary.c_str(), path.c_str()) == 0) return true;
  const int error = errno;
  ::unlink(temporary.c_str());
  errno = error;
  return false;
}

/// Adds to the bytes of all processes. The one that exceeds the bound removes chunks. Never waits:
/// while another process counts, this one counts with its next chunk.
void ChunkFiles::count(uint64_t bytes) {
  uncounted_ += bytes;
  const Descriptor file{open_output(folder_ + "/usage", Output::keep, 0600)};
  if (file.fd < 0 || ::flock(file.fd, LOCK_EX | LOCK_NB) != 0) return;
  uint64_t used = 0;
  const std::span bytes_of_used(reinterpret_cast<char*>(&used), sizeof used);
  if (!read_whole(file.fd, 0, bytes_of_used)) used = bytes_max_;  // unknown: look
  used += uncounted_.exchange(0);
  if (used > bytes_max_) used = remove_oldest();
  ::lseek(file.fd, 0, SEEK_SET);
  (void)write_whole(file.fd, bytes_of_used);
}

/// Removes the chunks that were not used for the longest time, until an eighth of the bound is free.
/// Returns the bytes of those that stay.
uint64_t ChunkFiles::remove_oldest() {
  struct Chunk {
    int64_t used_ns;
    uint64_t bytes;
    fs::path path;
  };
  std::vector<Chunk> chunks;
  uint64_t total = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder_, error), end; !error && entry != end;
       entry.increment(error)) {
    struct stat info {};
    if (entry.depth() == 0 || ::lstat(entry->path().c_str(), &info) != 0) continue;
    if (is_temporary(entry->path()) && ::time(nullptr) - info.st_mtim.tv_sec < kLeftoverAfterS)
      continue;
    const int64_t used_ns = std::max(nanoseconds(info.st_atim), nanoseconds(info.st_mtim));
    chunks.push_back({used_ns, static_cast<uint64_t>(info.st_size), entry->path()});
    total += chunks.back().bytes;
  }
  std::ranges::sort(chunks, {}, &Chunk::used_ns);
  for (const Chunk& chunk : chunks) {
    if (total <= bytes_max_ - bytes_max_ / 8) break;
    if (::unlink(chunk.path.c_str()) == 0) total -= chunk.bytes;
    ::rmdir(chunk.path.parent_path().c_str());  // fails while it holds others
  }
  return total;
}

}  // namespace simplescale
