// The bytes of a connection become messages.
// Which addresses a process announces, and what connections keep while they are idle.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "transport/stream/address.hpp"
#include "transport/stream/parser.hpp"
#include "transport/stream/secure.hpp"

using namespace simplescale::stream;
using namespace simplescale;

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

TEST_CASE("stream: interfaces without carrier are not announced, and both families have a place") {
  const std::vector<uint8_t> v6 = {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7};
  std::vector<InterfaceAddress> addresses = {{"lo", {127, 0, 0, 1}, true, true},
                                             {"docker0", {172, 17, 0, 1}, false, false}};
  CHECK(endpoints_of(addresses, 9).at(0).ip == std::vector<uint8_t>{172, 17, 0, 1});
  for (uint8_t i = 0; i < 20; ++i) addresses.push_back({"eth0", {10, 0, 0, i}, false, true});
  addresses.push_back({"eth0", v6, false, true});
  const auto found = endpoints_of(addresses, 9);
  REQUIRE(found.size() == Address::kEndpointsMax);
  CHECK(found[0].ip == std::vector<uint8_t>{10, 0, 0, 0});
  CHECK(found[1].ip == v6);
  for (const Endpoint& endpoint : found) CHECK(endpoint.ip[0] != 172);
}

TEST_CASE("stream: an idle connection keeps no memory of a large message") {
  const Id server{1};
  Secure from(Secure::Side::client, "", server), to(Secure::Side::server, "", server);
  Buffer there, back, plain;
  from.begin(there);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(to.receive(std::exchange(there, {}), plain, back));
    REQUIRE(from.receive(std::exchange(back, {}), plain, there));
  }
  REQUIRE(from.proven());
  const Buffer large(Secure::kRecordMax, 'x');
  from.seal(large, there);
  // In two parts, so that the first one must be kept; then byte by byte.
  plain.clear();
  const std::span<const uint8_t> all(there);
  REQUIRE(to.receive(all.first(50'000), plain, back));
  CHECK(to.memory() >= 50'000);
  REQUIRE(to.receive(all.subspan(50'000), plain, back));
  CHECK(plain == large);
  CHECK(to.memory() == 0);
  there.clear(), plain.clear();
  from.seal({large.data(), 100}, there);
  for (const uint8_t byte : there) REQUIRE(to.receive({&byte, 1}, plain, back));
  CHECK(plain.size() == 100);
  CHECK(to.memory() == 0);

  Parser parser;
  parser.limit = 1 << 20;
  std::vector<uint8_t> message(8 + (1 << 20));
  const uint32_t sizes[2] = {0, 1 << 20};
  std::memcpy(message.data(), sizes, sizeof sizes);
  const uint64_t* data = nullptr;
  int delivered = 0;
  const auto deliver = [&](Incoming& in) {
    data = in.data.get();
    return ++delivered > 0;
  };
  REQUIRE(parser.feed(message, deliver));
  CHECK(delivered == 1);
  CHECK(data != nullptr);
  CHECK(parser.memory() == 0);
}
