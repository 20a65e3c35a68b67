#include "transport/stream/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
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

std::optional<Endpoint> endpoint_of(const sockaddr* from, uint16_t port) {
  if (from->sa_family == AF_INET) {
    const auto* ip =
        reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in*>(from)->sin_addr);
    return Endpoint{{ip, ip + 4}, port};
  }
  if (from->sa_family != AF_INET6) return std::nullopt;
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr;
  if (IN6_IS_ADDR_LINKLOCAL(&ip)) return std::nullopt;
  return Endpoint{{ip.s6_addr, ip.s6_addr + 16}, port};
}

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

std::vector<Endpoint> local_endpoints(uint16_t port) {
  std::vector<Endpoint> found, loopback;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* at = list; at; at = at->ifa_next) {
    if (!at->ifa_addr || !(at->ifa_flags & IFF_UP)) continue;
    const auto endpoint = endpoint_of(at->ifa_addr, port);
    if (!endpoint) continue;
    ((at->ifa_flags & IFF_LOOPBACK) ? loopback : found).push_back(*endpoint);
  }
  freeifaddrs(list);
  if (found.empty()) found = loopback;
  // IPv4 first: a host with many IPv6 addresses has few IPv4 ones, and all hosts of a run have one.
  std::ranges::stable_sort(found, {}, [](const Endpoint& e) { return e.ip.size(); });
  if (found.size() > Address::kEndpointsMax) found.resize(Address::kEndpointsMax);
  return found;
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
