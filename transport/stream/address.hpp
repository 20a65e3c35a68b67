// The address of a messenger (messenger.hpp), as bytes. Pure functions, any thread.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/network.hpp"

namespace simplescale::stream {

using Id = std::array<uint8_t, 16>;

/// An IP address and a port.
struct Endpoint {
  std::vector<uint8_t> ip;  // 4 or 16 bytes, in network byte order
  uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
};

struct Address {
  static constexpr size_t kEndpointsMax = 8;
  Id id{};    // random: tells apart messengers that had the same port one after the other
  Id host{};  // messengers with equal values can connect through Unix sockets
  std::vector<Endpoint> endpoints;  // one for each interface; empty: this host only
  bool operator==(const Address&) const = default;
};

std::vector<uint8_t> encode(const Address& address);
/// Nothing if the bytes are not exactly one address.
std::optional<Address> decode(std::span<const uint8_t> bytes);

/// "10.0.0.7:4711" or "[fd00::7]:4711".
std::string to_text(const Endpoint& endpoint);

/// A hash of what this host's abstract Unix sockets belong to: the boot and the network namespace.
Id this_host();
/// The addresses that others can reach, at most kEndpointsMax, IPv4 and IPv6 in turn, with this
/// port.
std::vector<Endpoint> endpoints_of(std::span<const InterfaceAddress> addresses, uint16_t port);
/// The same of this host's interfaces.
std::vector<Endpoint> local_endpoints(uint16_t port);

/// The socket's address of an endpoint.
socklen_t to_sockaddr(const Endpoint& endpoint, sockaddr_storage& out);
/// The abstract Unix address of the messenger `id`.
socklen_t to_sockaddr(const Id& id, sockaddr_storage& out);

}  // namespace simplescale::stream
