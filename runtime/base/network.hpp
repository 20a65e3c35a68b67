// The addresses of this host, and the networks that a configuration trusts. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

/// One address of an interface.
struct InterfaceAddress {
  std::string interface;    // "eth0"
  std::vector<uint8_t> ip;  // 4 or 16 bytes, in network byte order
  bool loopback = false;
  bool carrier = true;  // false: its cable or its other end is missing
};
/// Of the interfaces that are up; no link-local ones.
std::vector<InterfaceAddress> local_addresses();

/// An interface's name, or the subnet of the first `bits` of `ip`.
struct TrustedNetwork {
  std::string name;  // as in the configuration
  std::vector<uint8_t> ip;
  int bits = 0;
  bool contains(const InterfaceAddress& address) const;
};

/// Reads "ib0, 10.1.0.0/16". bad_config: neither an interface nor a subnet, or one that names all
/// networks or a large part of the Internet.
Result<std::vector<TrustedNetwork>> parse_trusted_networks(const std::string& text);

/// An interface of this host that lies on a trusted network.
struct TrustedInterface {
  std::string network, interface;
  bool operator==(const TrustedInterface&) const = default;
};
/// Each pair once, in the order of the networks. Without carrier an interface does not count.
std::vector<TrustedInterface> trusted_interfaces(std::span<const TrustedNetwork> networks,
                                                 std::span<const InterfaceAddress> addresses);

}  // namespace simplescale
