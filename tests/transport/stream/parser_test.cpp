// The bytes of a connection become messages.
#include "transport/stream/parser.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

using namespace simplescale::stream;

namespace {

std::vector<uint8_t> prelude(uint32_t header_bytes, uint32_t data_bytes) {
  std::vector<uint8_t> bytes(kPreludeBytes);
  std::memcpy(bytes.data(), &header_bytes, 4);
  std::memcpy(bytes.data() + 4, &data_bytes, 4);
  return bytes;
}

}  // namespace

TEST_CASE("stream: STREAM-2, a header or data beyond the limit ends the connection") {
  const auto accepts = [](uint32_t header_bytes, uint32_t data_bytes) {
    Parser parser;
    parser.limit = 100;
    return parser.feed(prelude(header_bytes, data_bytes), [](Incoming&) { return true; });
  };
  CHECK(accepts(kHeaderMax, 100));
  CHECK_FALSE(accepts(kHeaderMax + 1, 0));
  CHECK_FALSE(accepts(UINT32_MAX, 0));
  CHECK_FALSE(accepts(0, 101));
  CHECK_FALSE(accepts(0, UINT32_MAX));
}

TEST_CASE("stream: of a trusted peer a message beyond the limit is skipped, and the next arrives") {
  Parser parser;
  parser.limit = 100;
  parser.skips = true;
  std::vector<uint8_t> bytes = prelude(3, 101);
  bytes.resize(bytes.size() + 3 + 101, 'x');
  for (const uint8_t byte : prelude(0, 2)) bytes.push_back(byte);
  bytes.insert(bytes.end(), {'o', 'k'});
  for (const size_t cut : {size_t{1}, size_t{7}, bytes.size()}) {
    std::vector<std::string> messages;
    const std::span<const uint8_t> all(bytes);
    for (size_t at = 0; at < all.size(); at += cut)
      CHECK(parser.feed(all.subspan(at, std::min(cut, all.size() - at)), [&](Incoming& message) {
        const auto* text = reinterpret_cast<const char*>(message.data.get());
        messages.push_back(text ? std::string(text, message.bytes) : "skipped");
        return true;
      }));
    CHECK(messages == std::vector<std::string>{"skipped", "ok"});
  }
}
