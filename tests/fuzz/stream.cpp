// STREAM-1: what arrives on a connection: addresses, the stream of messages, the encrypted records.
// And texts that name a process or a network: addresses of data planes and of actors, trusted
// networks.
#include <algorithm>
#include <caf/node_id.hpp>

#include "runtime/base/network.hpp"
#include "tests/fuzz/driver.hpp"
#include "transport/caf/address.hpp"
#include "transport/collective/plane_address.hpp"
#include "transport/stream/address.hpp"
#include "transport/stream/parser.hpp"
#include "transport/stream/secure.hpp"

using namespace simplescale::stream;

namespace {
const std::string kKey(32, 'k');
constexpr Id kServer{1};

void check_texts(std::span<const uint8_t> in) {
  using namespace simplescale;
  if (const auto plane = collective::decode_plane(in)) {
    if (!collective::decode_plane(collective::encode_plane(*plane))) abort();
    if (plane->segment.find('/') != std::string::npos) abort();
  }
  const std::string text(reinterpret_cast<const char*>(in.data()), in.size());
  if (const auto address = remote::parse_address(text);
      address.ok() && !remote::parse_address(remote::to_text(*address)).ok())
    abort();
  if (const auto networks = parse_trusted_networks(text); networks.ok())
    for (const TrustedNetwork& network : *networks)
      if (network.bits < 0 || network.bits > 128 || network.name.empty()) abort();
}
}  // namespace

static void run(const uint8_t* data, size_t bytes) {
  const std::span<const uint8_t> in(data, bytes);
  check_texts(in);
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
}

static std::vector<std::string> seeds() {
  if (sodium_init() < 0) abort();
  const Address address{{1}, {2}, {{{10, 0, 0, 1}, 4711}, {std::vector<uint8_t>(16, 7), 80}}};
  const std::vector<uint8_t> bytes = encode(address);
  const std::string message("\3\0\0\0\5\0\0\0abchello", 16);
  Secure client(Secure::Side::client, std::string(32, 'x'), kServer);
  Buffer hello;
  client.begin(hello);
  const std::string records = std::string("\x10\0\0\0", 4) + std::string(16, 'r');
  const std::vector<uint8_t> plane = simplescale::collective::encode_plane(
      {"host", "segment", 7, bytes, {3}, {"10.1.0.0/16", "ib0"}});
  caf::node_id::default_data::host_id_type host{};
  const std::string actor =
      simplescale::remote::to_text({caf::make_node_id(uint32_t{4711}, host), {1, 2, 3, 250}});
  return {{bytes.begin(), bytes.end()}, message + message,
          {hello.begin(), hello.end()}, records,
          {plane.begin(), plane.end()}, actor,
          "ib0, 10.1.0.0/16, fd00::/64"};
}

static const FuzzTarget target("stream", run, seeds);
