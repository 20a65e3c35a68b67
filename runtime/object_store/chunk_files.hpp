// Chunks of objects as files of a local folder, bounded in bytes. Several processes of a host share
// one folder: a chunk is written under a temporary name and renamed, and those that were not read
// for the longest time are removed. A file that is short or damaged counts as missing. An error of
// the disk costs the cache, never a read. Any thread; blocks on the disk.
//
//   FOLDER/<hash of the object>/<index>   the chunk's bytes, then 16 bytes: their xxh3-128
//   FOLDER/usage                          u64: bytes of all chunks; whoever counts holds its lock
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>

#include "runtime/base/status.hpp"

namespace simplescale {

class ChunkFiles {
 public:
  /// Creates FOLDER/simplescale-UID, which only this user can enter. bytes_max: of all chunks.
  /// bad_config: the folder cannot be created, or belongs to another user.
  static Result<std::string> make_folder(const std::string& folder);
  ChunkFiles(std::string folder, uint64_t bytes_max);

  /// Fills `out` with the bytes from `offset` on of chunk `index`, which has `bytes` bytes. False:
  /// the chunk is not there, or is damaged.
  bool read(const std::string& object, uint64_t index, size_t bytes, uint64_t offset,
            std::span<char> out);
  /// True if there is such a file, whatever it holds.
  bool has(const std::string& object, uint64_t index) const;
  /// Keeps a chunk. If it cannot, logs it once.
  void write(const std::string& object, uint64_t index, std::span<const char> chunk);

  uint64_t bytes_max() const { return bytes_max_; }
  const std::string& folder() const { return folder_; }

 private:
  /// A file whose hash was compared.
  struct Verified {
    uint64_t inode = 0;
    int64_t changed_ns = 0;
  };
  std::string path_of(const std::string& object, uint64_t index) const;
  bool is_whole(int fd, const std::string& path, size_t bytes);
  bool write_file(const std::string& path, std::span<const char> chunk);
  void count(uint64_t bytes);
  uint64_t remove_oldest();

  const std::string folder_;
  const uint64_t bytes_max_;
  std::atomic<uint64_t> uncounted_ = 0, temporary_ = 0;
  std::atomic<bool> warned_ = false;
  std::mutex mutex_;  // guards verified_
  std::unordered_map<std::string, Verified> verified_;
};

}  // namespace simplescale
