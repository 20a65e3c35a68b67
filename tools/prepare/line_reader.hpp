// Reads the lines of a text file, which may be compressed (.gz, .zst, .xz, .bz2). One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/status.hpp"
#include "runtime/data/data_files.hpp"
#include "tools/prepare/memory_permit.hpp"

struct archive;

namespace simplescale {

class LineReader {
 public:
  /// line_bytes_max: a longer line is an error, so memory is bounded. bad_data: the file cannot be
  /// opened; otherwise errors of DataFile. folder: as of DataFiles::open().
  static Result<LineReader> open(const std::string& path, size_t line_bytes_max,
                                 const DataFiles& files = {}, const std::string& folder = "");

  /// Reads the next line with its newline, if it has one; valid until the next call. False: the
  /// file has ended. bad_data with the file and the byte or line: the line is too long, the file
  /// cannot be read, or what is compressed is damaged or cut off. Do not call again after an error,
  /// unless too_long(): then the next call skips the rest of that line.
  Result<bool> next(std::string_view& line);
  /// The last error was a line that is too long.
  bool too_long() const { return too_long_; }

  const std::string& path() const { return path_; }
  uint64_t number() const { return number_; }  // of the line, from 1
  uint64_t file_bytes_read() const;            // of the file as it is, compressed or not

 private:
  struct Close {
    void operator()(archive* a) const;
  };
  struct Input;
  /// Before a line is read: gives back what is held for the line before the last one.
  void forget_long_line();
  /// The error of a read.
  Status failed(const std::string& what) const;
  /// Appends what the file has next to buffer_, without the bytes before begin_.
  Status fill();
  /// bad_data: what is compressed has ended before the file.
  Status check_end();
  std::string path_;
  size_t line_bytes_max_ = 0;
  std::shared_ptr<Input> input_;
  std::unique_ptr<archive, Close> archive_;
  std::string buffer_;
  size_t begin_ = 0, end_ = 0;  // of the line that was returned, in buffer_
  uint64_t number_ = 0, byte_ = 0;
  bool ended_ = false, too_long_ = false;
  std::unique_ptr<MemoryPermit>
      permit_;           // to hold a line of more than 2 MiB, and the one behind it
  int lines_since_ = 0;  // of next(), since the permit was needed
};

}  // namespace simplescale
