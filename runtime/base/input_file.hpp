// Reads pieces of a file with pread. A truncated file or a failing disk gives an error Status; a
// memory mapping would raise SIGBUS instead. Any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Which links lead open_inside() out of the folder.
enum class LinksOut : unsigned char {
  none,
  own,  // those of this user and of root
};

/// An open file. Its size is that at open().
class InputFile {
 public:
  /// not_found: no such file; bad_data: it is not a regular file; io: it cannot be read now, which
  /// says nothing about its contents.
  static Result<InputFile> open(const std::string& path);
  /// As open(), of a file in or below a folder ("": its own) that another user may have made: a link
  /// may lead to a file that only this user can read, and may be planted at any time. bad_data: `path`
  /// leads out of `folder` by another link than `out` allows. Links into the cache of
  /// huggingface_hub are followed, if the folder is one of its snapshots or below one.
  static Result<InputFile> open_inside(const std::string& folder, const std::string& path,
                                       LinksOut out = LinksOut::none);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();
  uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  /// The same for each open() of a file that was neither replaced nor written between.
  struct Identity {
    uint64_t device = 0, number = 0, bytes = 0;
    int64_t changed_ns = 0;
    bool operator==(const Identity&) const = default;
  };
  const Identity& identity() const { return identity_; }
  /// Reads exactly `bytes` bytes at `offset`. bad_data: the file ends before, and at which byte;
  /// io.
  Status read(uint64_t offset, void* data, size_t bytes) const;

 private:
  /// name: of the file `path`, as seen from the folder that is open as folder_fd.
  static Result<InputFile> open_at(int folder_fd, const std::string& name, const std::string& path);
  InputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
  uint64_t bytes_ = 0;
  Identity identity_;
};

/// Reads a small file. bad_data: it is larger than bytes_max; otherwise errors as InputFile::open().
Result<std::string> read_text_file(const std::string& path, size_t bytes_max);
/// The same, of a file whose folder another user may have made: InputFile::open_inside("", path).
Result<std::string> read_text_inside(const std::string& path, size_t bytes_max,
                                     LinksOut out = LinksOut::none);
/// Size of a file, without opening it. Errors as InputFile::open().
Result<uint64_t> file_bytes(const std::string& path);

}  // namespace simplescale
