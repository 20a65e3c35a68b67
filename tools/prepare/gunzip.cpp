#include "tools/prepare/gunzip.hpp"

#include <utility>

namespace simplescale {

Gunzip::Gunzip(std::function<Result<std::span<char>>()> next) : next_(std::move(next)) {
  constexpr int kGzip = 16;
  SS_ASSERT(inflateInit2(&stream_, MAX_WBITS + kGzip) == Z_OK);
}

Gunzip::~Gunzip() {
  inflateEnd(&stream_);
}

Result<size_t> Gunzip::read(std::span<char> out) {
  stream_.next_out = reinterpret_cast<Bytef*>(out.data());
  stream_.avail_out = static_cast<uInt>(out.size());
  while (stream_.avail_out > 0) {
    if (stream_.avail_in == 0) {
      SS_ASSIGN(const std::span<char> packed, next_());
      if (packed.empty() && inside_) return Status(Code::bad_data, "it is cut off");
      if (packed.empty()) break;
      stream_.next_in = reinterpret_cast<Bytef*>(packed.data());
      stream_.avail_in = static_cast<uInt>(packed.size());
    }
    if (!inside_ && begun_ && *stream_.next_in == 0) {
      ++stream_.next_in, --stream_.avail_in;
      continue;
    }
    if (!std::exchange(inside_, true) && begun_) inflateReset(&stream_);
    begun_ = true;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    inside_ = result != Z_STREAM_END;
    const bool no_header = stream_.total_in <= 2;
    if (inside_ && result != Z_OK)
      return Status(Code::bad_data, no_header     ? "by its name it is gzip, but it is not"
                                    : stream_.msg ? stream_.msg
                                                  : "zlib cannot unpack it");
  }
  return out.size() - stream_.avail_out;
}

}  // namespace simplescale
