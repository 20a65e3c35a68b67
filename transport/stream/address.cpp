#include "transport/stream/address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "runtime/base/hash.hpp"

namespace simplescale::stream {
namespace {

// Version (1 byte), id (16), host (16), number of endpoints (1); each endpoint: bytes of its IP
// address (1), the IP address, the port (2, little endian).
constexpr uint8_t kVersion = 1;

}  // namespace

std::vector<uint8_t> encode(const Address& address) {
  std::vector<uint8_t> out{kVersion};
  out.insert(out.end(), address.id.begin(), address.id.end());
  out.insert(out.end(), address.host.begin(), address.host.end());
  out.push_back(static_cast<uint8_t>(address.endpoints.size()));
  for (const Endpoint& endpoint : address.endpoints) {
    out.push_back(static_cast<uint8_t>(endpoint.ip.size()));
    out.insert(out.end(), endpoint.ip.begin(), endpoint.ip.end());
    out.push_back(static_cast<uint8_t>(endpoint.port));
    out.push_back(static_cast<uint8_t>(endpoint.port >> 8));
  }
  return out;
}

std::optional<Address> decode(std::span<const uint8_t> in) {
  Address address;
  constexpr size_t kFixed = 2 + sizeof(Id) * 2;
  if (in.size() < kFixed || in[0] != kVersion) return std::nullopt;
  std::copy_n(in.begin() + 1, sizeof(Id), address.id.begin());
  std::copy_n(in.begin() + 1 + sizeof(Id), sizeof(Id), address.host.begin());
  const size_t count = in[kFixed - 1];
  if (count > Address::kEndpointsMax) return std::nullopt;
  in = in.subspan(kFixed);
  for (size_t i = 0; i < count; ++i) {
    if (in.empty() || (in[0] != 4 && in[0] != 16) || in.size() < in[0] + size_t{3})
      return std::nullopt;
    const size_t bytes = in[0];
    Endpoint endpoint{{in.begin() + 1, in.begin() + 1 + static_cast<ptrdiff_t>(bytes)},
                      static_cast<uint16_t>(in[bytes + 1] | in[bytes + 2] << 8)};
    if (endpoint.port == 0) return std::nullopt;
    address.endpoints.push_back(std::move(endpoint));
    in = in.subspan(bytes + 3);
  }
  return in.empty() ? std::optional(address) : std::nullopt;
}

std::string to_text(const Endpoint& endpoint) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool v4 = endpoint.ip.size() == 4;
  inet_ntop(v4 ? AF_INET : AF_INET6, endpoint.ip.data(), text, sizeof text);
  const std::string host = v4 ? text : "[" + std::string(text) + "]";
  return host + ":" + std::to_string(endpoint.port);
}

Id this_host() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  struct stat info {};
  if (stat("/proc/self/ns/net", &info) == 0) text += "/" + std::to_string(info.st_ino);
  const Hash128 hash = hash128(text.data(), text.size());
  Id id;
  std::memcpy(id.data(), &hash.high, 8);
  std::memcpy(id.data() + 8, &hash.low, 8);
  return id;
}

std::vector<Endpoint> endpoints_of(std::span<const InterfaceAddress> addresses, uint16_t port) {
  // An interface without carrier reaches nobody, and loopback only this host: each is announced
  // only if there is nothing better.
  const auto rank = [](const InterfaceAddress& a) { return a.loopback ? 2 : a.carrier ? 0 : 1; };
  int best = 2;
  for (const InterfaceAddress& address : addresses) best = std::min(best, rank(address));
  std::vector<Endpoint> of_family[2];  // IPv4, IPv6
  for (const InterfaceAddress& address : addresses)
    if (rank(address) == best) of_family[address.ip.size() != 4].push_back({address.ip, port});
  // In turn, so that many addresses of one family leave room for the other.
  std::vector<Endpoint> found;
  for (size_t i = 0; i < std::max(of_family[0].size(), of_family[1].size()); ++i)
    for (const auto& endpoints : of_family)
      if (i < endpoints.size() && found.size() < Address::kEndpointsMax)
        found.push_back(endpoints[i]);
  return found;
}

std::vector<Endpoint> local_endpoints(uint16_t port) {
  return endpoints_of(local_addresses(), port);
}

socklen_t to_sockaddr(const Endpoint& endpoint, sockaddr_storage& out) {
  out = {};
  if (endpoint.ip.size() == 4) {
    auto& to = reinterpret_cast<sockaddr_in&>(out);
    to.sin_family = AF_INET;
    to.sin_port = htons(endpoint.port);
    std::memcpy(&to.sin_addr, endpoint.ip.data(), 4);
    return sizeof to;
  }
  auto& to = reinterpret_cast<sockaddr_in6&>(out);
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(endpoint.port);
  std::memcpy(&to.sin6_addr, endpoint.ip.data(), 16);
  return sizeof to;
}

socklen_t to_sockaddr(const Id& id, sockaddr_storage& out) {
  out = {};
  auto& to = reinterpret_cast<sockaddr_un&>(out);
  to.sun_family = AF_UNIX;
  std::string name = "simplescale-";
  for (const uint8_t byte : id)
    name += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  std::memcpy(to.sun_path + 1, name.data(), name.size());  // sun_path[0] = 0: abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace simplescale::stream
