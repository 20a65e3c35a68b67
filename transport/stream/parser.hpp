// Cuts a stream of bytes into messages: sizes of header and data (4 bytes each, native byte order:
// all machines of a run have the same), header, data. No sockets. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace simplescale::stream {

constexpr size_t kHeaderMax = 64;
constexpr size_t kPreludeBytes = 8;

/// A message that has arrived.
struct Incoming {
  std::array<uint8_t, kHeaderMax> header;
  uint32_t header_bytes = 0;
  uint32_t bytes = 0;
  std::unique_ptr<uint64_t[]> data;  // null if bytes is 0 or over the limit: then it was skipped
};

class Parser {
 public:
  size_t limit = 8 << 10;  // of a message's data
  bool skips = false;      // messages over the limit; otherwise they are errors

  /// Calls `deliver`, which may take the data, for each message that `in` completes; false from it
  /// ends the call. False: the
  /// bytes are not messages. Memory is reserved only for data within the limit.
  [[nodiscard]] bool feed(std::span<const uint8_t> in,
                          const std::function<bool(Incoming&)>& deliver);
  /// Bytes reserved for the data of a message that has not arrived in whole.
  size_t memory() const { return message_.data ? message_.bytes : 0; }

 private:
  bool begin();
  std::array<uint8_t, kPreludeBytes> prelude_;
  size_t at_ = 0;  // bytes of the message so far, prelude included
  Incoming message_;
};

}  // namespace simplescale::stream
