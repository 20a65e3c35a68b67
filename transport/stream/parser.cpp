#include "transport/stream/parser.hpp"

#include <algorithm>
#include <cstring>

namespace simplescale::stream {

/// The prelude is complete.
bool Parser::begin() {
  message_ = {};
  std::memcpy(&message_.header_bytes, prelude_.data(), 4);
  std::memcpy(&message_.bytes, prelude_.data() + 4, 4);
  if (message_.header_bytes > kHeaderMax) return false;
  if (message_.bytes > limit) return skips;
  if (message_.bytes > 0)
    message_.data = std::make_unique_for_overwrite<uint64_t[]>((size_t{message_.bytes} + 7) / 8);
  return true;
}

bool Parser::feed(std::span<const uint8_t> in, const std::function<bool(Incoming&)>& deliver) {
  // Copies the next bytes of a part that begins at byte `begin` of the message.
  const auto copy = [&](uint8_t* to, size_t begin, size_t size) {
    const size_t bytes = std::min(in.size(), begin + size - at_);
    if (to && bytes > 0) std::memcpy(to + (at_ - begin), in.data(), bytes);
    in = in.subspan(bytes);
    at_ += bytes;
    return at_ == begin + size;
  };
  while (!in.empty()) {
    if (at_ < kPreludeBytes && (!copy(prelude_.data(), 0, kPreludeBytes) || !begin()))
      return at_ < kPreludeBytes;
    const size_t data_at = kPreludeBytes + message_.header_bytes;
    if (at_ < data_at && !copy(message_.header.data(), kPreludeBytes, message_.header_bytes))
      return true;
    if (!copy(reinterpret_cast<uint8_t*>(message_.data.get()), data_at, message_.bytes))
      return true;
    at_ = 0;
    const bool more = deliver(message_);
    message_.data.reset();
    if (!more) return true;
  }
  return true;
}

}  // namespace simplescale::stream
