#include "stale.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "client.hpp"

namespace file_faults {
namespace {

constexpr size_t kSlots = 512, kNames = 256, kListings = 16;

uint64_t hash_of(const char* text) {
  return hash(text, std::strlen(text));
}

uint64_t parent(const Path& path) {
  const char* slash = std::strrchr(path.text, '/');
  return hash(path.text, slash ? static_cast<size_t>(slash - path.text) : 0);
}

/// Changes that processes of this client made, counted by the hash of the folder.
std::atomic<uint32_t>& changes(uint64_t folder) {
  return client_page().changes[folder % ClientPage::kFolders];
}

/// A lock that is never waited for: without it, nothing is remembered and answers are fresh.
class TryLock {
 public:
  TryLock() : held_(!flag_.test_and_set(std::memory_order_acquire)) {}
  ~TryLock() {
    if (held_) flag_.clear(std::memory_order_release);
  }
  explicit operator bool() const { return held_; }

 private:
  static inline std::atomic_flag flag_;
  bool held_;
};

struct Memory {
  uint64_t key = 0;
  int64_t at_ms = 0;
  uint32_t changes = 0;
  bool missing = false;
  struct stat status {};
};
Memory memories[kSlots];

struct Listing {
  uint64_t folder = 0;
  int64_t at_ms = 0;
  uint32_t changes = 0;
  DIR* stream = nullptr;  // being read; null: complete
  size_t count = 0;
  uint64_t names[kNames];  // hashes
};
Listing listings[kListings];

struct Reader {
  DIR* stream = nullptr;
  Listing seen;  // what it is shown; count 0 and at_ms 0: all
};
Reader readers[kListings];

/// The size of a file when this client last opened or wrote it.
std::atomic<uint64_t>& known_size(uint64_t inode) {
  return client_page().sizes[inode % ClientPage::kFiles];
}

bool valid(int64_t at_ms, uint32_t then, uint64_t folder) {
  return at_ms > 0 && now_ms() - at_ms < stale_ms() && then == changes(folder);
}

}  // namespace

void remember_size(int fd) {
  struct stat status;
  if (syscall(SYS_fstat, fd, &status) == 0)
    known_size(status.st_ino) = static_cast<uint64_t>(status.st_size) + 1;
}

ssize_t append(int fd, const Path& path, const void* data, size_t bytes) {
  struct stat status;
  const uint64_t known =
      syscall(SYS_fstat, fd, &status) == 0 ? known_size(status.st_ino).load() : 0;
  ssize_t written = -1;
  if (known > 0 && known <= static_cast<uint64_t>(status.st_size) &&
      choose_rare(Effect::overwrite, Call::write)) {
    // pwrite() to a descriptor with O_APPEND would append.
    const long other = syscall(SYS_openat, AT_FDCWD, path.text, O_WRONLY | O_CLOEXEC);
    if (other >= 0) {
      written = syscall(SYS_pwrite64, other, data, bytes, known - 1);
      syscall(SYS_close, other);
      char detail[40];
      std::snprintf(detail, sizeof detail, "\"at\":%llu",
                    static_cast<unsigned long long>(known - 1));
      log("overwrite", Call::write, path, detail);
      known_size(status.st_ino) = known + static_cast<uint64_t>(written > 0 ? written : 0);
      return written;
    }
  }
  written = syscall(SYS_write, fd, data, bytes);
  remember_size(fd);
  return written;
}

void changed(const Path& path) {
  if (path) ++changes(parent(path));
}

bool still_missing(Call call, const Path& path) {
  const int error = errno;
  bool stale = false;
  if (TryLock lock; lock) {
    const uint64_t key = hash_of(path.text);
    const Memory& memory = memories[key % kSlots];
    stale = memory.key == key && memory.missing &&
            valid(memory.at_ms, memory.changes, parent(path)) && choose_rare(Effect::stale, call);
  }
  struct stat status;
  if (stale)
    stale = syscall(SYS_newfstatat, AT_FDCWD, path.text, &status, AT_SYMLINK_NOFOLLOW) == 0;
  if (stale) log("stale", call, path, "\"answer\":\"missing\"");
  errno = stale ? ENOENT : error;
  return stale;
}

void answered(const Path& path, bool missing) {
  const int error = errno;
  if (TryLock lock; lock) {
    const uint64_t key = hash_of(path.text);
    Memory& memory = memories[key % kSlots];
    const bool known =
        memory.key == key && memory.missing && valid(memory.at_ms, memory.changes, parent(path));
    if (missing && !known) memory = {key, now_ms(), changes(parent(path)), true, {}};
    if (!missing && memory.key == key && memory.missing) memory.key = 0;
  }
  errno = error;
}

void attributes(const Path& path, int kind, struct stat& fresh) {
  const int error = errno;
  bool stale = false;
  if (TryLock lock; lock) {
    const uint64_t key = hash_of(path.text) + static_cast<uint64_t>(kind) + 1;
    Memory& memory = memories[key % kSlots];
    if (memory.key == key && !memory.missing && valid(memory.at_ms, memory.changes, parent(path))) {
      stale = std::memcmp(&memory.status, &fresh, sizeof fresh) != 0 &&
              choose_rare(Effect::stale, Call::stat);
      if (stale) fresh = memory.status;
    } else {
      memory = {key, now_ms(), changes(parent(path)), false, fresh};
    }
  }
  if (stale) log("stale", Call::stat, path, "\"answer\":\"old attributes\"");
  errno = error;
}

void listing_begins(DIR* stream, const Path& path) {
  const int error = errno;
  bool stale = false;
  if (TryLock lock; lock) {
    const uint64_t folder = hash_of(path.text);
    Listing& listing = listings[folder % kListings];
    const bool known = listing.folder == folder && !listing.stream &&
                       valid(listing.at_ms, listing.changes, folder);
    stale = known && choose_rare(Effect::stale, Call::list);
    for (Reader& reader : readers) {
      if (!stale || reader.stream) continue;
      reader.stream = stream;
      reader.seen = listing;
      break;
    }
    if (!stale) ++changes(folder);  // NFS: what it remembers of the names is checked again
    if (!known) {
      listing = {};
      listing.folder = folder;
      listing.at_ms = now_ms();
      listing.changes = changes(folder);
      listing.stream = stream;
    }
  }
  if (stale) log("stale", Call::list, path, "\"answer\":\"old names\"");
  errno = error;
}

bool hidden(DIR* stream, const char* name) {
  TryLock lock;
  if (!lock) return false;
  const uint64_t one = hash_of(name);
  for (Listing& listing : listings) {
    if (listing.stream != stream) continue;
    if (listing.count < kNames) listing.names[listing.count] = one;
    ++listing.count;
  }
  for (const Reader& reader : readers) {
    if (reader.stream != stream) continue;
    for (size_t i = 0; i < reader.seen.count; ++i)
      if (reader.seen.names[i] == one) return false;
    return true;
  }
  return false;
}

void listing_ends(DIR* stream) {
  TryLock lock;
  if (!lock) return;  // the slot stays unused
  for (Listing& listing : listings) {
    if (listing.stream != stream) continue;
    listing.stream = nullptr;
    if (listing.count > kNames) listing = {};  // too many names to remember
  }
  for (Reader& reader : readers)
    if (reader.stream == stream) reader.stream = nullptr;
}

}  // namespace file_faults
