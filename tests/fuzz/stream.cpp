// STREAM-1: what arrives on a connection: addresses, the stream of messages, the encrypted records.
#include "tests/fuzz/driver.hpp"
#include "transport/stream/address.hpp"
#include "transport/stream/parser.hpp"
#include "transport/stream/secure.hpp"

using namespace simplescale::stream;

namespace {
const std::string kKey(32, 'k');
constexpr Id kServer{1};
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::span<const uint8_t> in(data, bytes);
  if (const auto address = decode(in); address && decode(encode(*address)) != address) abort();
  for (const bool skips : {false, true}) {
    Parser parser;
    parser.skips = skips;
    size_t messages = 0;
    (void)parser.feed(in, [&](Incoming& message) {
      if (message.data && message.bytes > parser.limit) abort();
      return ++messages < 1000;
    });
  }
  Secure server(Secure::Side::server, kKey, kServer), client(Secure::Side::client, kKey, kServer);
  Buffer plain, out;
  client.begin(out);
  (void)client.receive(in, plain, out);
  (void)server.receive(in, plain, out);
  if (server.proven() || client.proven() || !plain.empty()) abort();
  // The server again, after a good hello.
  Secure honest(Secure::Side::client, kKey, kServer), other(Secure::Side::server, kKey, kServer);
  Buffer hello;
  honest.begin(hello);
  (void)(other.receive(hello, plain, out) && other.receive(in, plain, out));
  if (other.proven() || !plain.empty()) abort();
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  if (sodium_init() < 0) abort();
  const Address address{{1}, {2}, {{{10, 0, 0, 1}, 4711}, {std::vector<uint8_t>(16, 7), 80}}};
  const std::vector<uint8_t> bytes = encode(address);
  const std::string message("\3\0\0\0\5\0\0\0abchello", 16);
  Secure client(Secure::Side::client, std::string(32, 'x'), kServer);
  Buffer hello;
  client.begin(hello);
  const std::string records = std::string("\x10\0\0\0", 4) + std::string(16, 'r');
  return {{bytes.begin(), bytes.end()}, message + message, {hello.begin(), hello.end()}, records};
}
