// Unpacks gzip. libarchive does it, too, but does not compare the checksums. One thread.
#pragma once

#include <zlib.h>

#include <functional>
#include <span>

#include "runtime/base/status.hpp"

namespace simplescale {

class Gunzip {
 public:
  /// next: gives packed bytes, valid until it is called again; none: the file has ended.
  explicit Gunzip(std::function<Result<std::span<char>>()> next);
  ~Gunzip();
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;

  /// Fills `out` with the next bytes of all members of the file; fewer: it has ended. Zeros behind
  /// a member are skipped. bad_data: it is no gzip, damaged or cut off; otherwise errors of next().
  Result<size_t> read(std::span<char> out);

 private:
  const std::function<Result<std::span<char>>()> next_;
  z_stream stream_{};
  bool inside_ = false;  // a member has begun and has not ended
  bool begun_ = false;   // a member has begun
};

}  // namespace simplescale
