#include "runtime/base/network.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>

namespace simplescale {
namespace {

constexpr int kShortestPrefix = 8;  // the longest private networks: 10.0.0.0/8 and fd00::/8

std::vector<uint8_t> ip_of(const sockaddr* from) {
  if (from->sa_family == AF_INET) {
    const auto* ip =
        reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in*>(from)->sin_addr);
    return {ip, ip + 4};
  }
  if (from->sa_family != AF_INET6) return {};
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr;
  if (IN6_IS_ADDR_LINKLOCAL(&ip)) return {};
  return {ip.s6_addr, ip.s6_addr + 16};
}

bool bit_of(const std::vector<uint8_t>& ip, int at) {
  return ip[static_cast<size_t>(at / 8)] >> (7 - at % 8) & 1;
}

bool is_interface(const std::string& name) {
  return name.size() < IFNAMSIZ && std::ranges::all_of(name, [](unsigned char c) {
           return std::isalnum(c) || c == '.' || c == '_' || c == '-' || c == '@';
         });
}

Status refused(const std::string& entry, const std::string& why) {
  return Status(Code::bad_config, "\"" + entry + "\" " + why);
}

Result<TrustedNetwork> parse_one(const std::string& entry) {
  const auto wildcard = [&] {
    return refused(entry,
                   "would trust networks that nobody has checked, and UCX would listen on each of "
                   "them without protection; name the interfaces or the subnets of the cluster");
  };
  if (entry.find_first_of("*?[") != std::string::npos || entry == "any" || entry == "all")
    return wildcard();
  const size_t slash = entry.find('/');
  TrustedNetwork network{entry, {}, 0};
  uint8_t ip[16];
  const std::string address = entry.substr(0, slash);
  for (const auto& [family, bytes] : {std::pair{AF_INET, 4}, std::pair{AF_INET6, 16}})
    if (inet_pton(family, address.c_str(), ip) == 1) network.ip.assign(ip, ip + bytes);
  if (network.ip.empty()) {
    if (slash == std::string::npos && is_interface(entry)) return network;
    return refused(entry, "is neither an interface such as ib0 nor a subnet such as 10.1.0.0/16");
  }
  const int most = static_cast<int>(network.ip.size()) * 8;
  network.bits = most;
  if (slash != std::string::npos) {
    const char* end = entry.data() + entry.size();
    const auto read = std::from_chars(entry.data() + slash + 1, end, network.bits);
    if (read.ec != std::errc() || read.ptr != end || network.bits < 0 || network.bits > most)
      return refused(entry, "needs a number from 0 to " + std::to_string(most) + " after the '/'");
  }
  if (network.bits < kShortestPrefix) return wildcard();
  for (int i = network.bits; i < most; ++i)
    if (bit_of(network.ip, i))
      return refused(entry, "is an address, not a subnet: bits after the first " +
                                std::to_string(network.bits) + " are set");
  if (std::ranges::all_of(network.ip, [](uint8_t byte) { return byte == 0; })) return wildcard();
  return network;
}

}  // namespace

std::vector<InterfaceAddress> local_addresses() {
  std::vector<InterfaceAddress> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* at = list; at; at = at->ifa_next) {
    if (!at->ifa_addr || !(at->ifa_flags & IFF_UP)) continue;
    auto ip = ip_of(at->ifa_addr);
    if (ip.empty()) continue;
    found.push_back({at->ifa_name, std::move(ip), (at->ifa_flags & IFF_LOOPBACK) != 0,
                     (at->ifa_flags & IFF_RUNNING) != 0});
  }
  freeifaddrs(list);
  return found;
}

bool TrustedNetwork::contains(const InterfaceAddress& address) const {
  if (ip.empty()) return address.interface == name;
  if (address.ip.size() != ip.size()) return false;
  for (int i = 0; i < bits; ++i)
    if (bit_of(ip, i) != bit_of(address.ip, i)) return false;
  return true;
}

Result<std::vector<TrustedNetwork>> parse_trusted_networks(const std::string& text) {
  std::vector<TrustedNetwork> networks;
  constexpr const char* kBetween = ", \t";
  for (size_t at = text.find_first_not_of(kBetween); at != std::string::npos;) {
    const size_t end = text.find_first_of(kBetween, at);
    SS_ASSIGN(networks.emplace_back(), parse_one(text.substr(at, end - at)));
    at = text.find_first_not_of(kBetween, end);
  }
  return networks;
}

std::vector<TrustedInterface> trusted_interfaces(std::span<const TrustedNetwork> networks,
                                                 std::span<const InterfaceAddress> addresses) {
  std::vector<TrustedInterface> found;
  for (const TrustedNetwork& network : networks)
    for (const InterfaceAddress& address : addresses) {
      const TrustedInterface pair{network.name, address.interface};
      if (address.carrier && network.contains(address) && !std::ranges::count(found, pair))
        found.push_back(pair);
    }
  return found;
}

}  // namespace simplescale
