#include "transport/caf/address.hpp"

#include <algorithm>

#include "runtime/base/hash.hpp"

namespace simplescale::remote {
namespace {

constexpr char kPrefix[] = "ss1-";
constexpr size_t kPrefixChars = 4;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

void append_u64(std::vector<uint8_t>& bytes, uint64_t x) {
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<uint8_t>(x >> (8 * i)));
}

uint64_t checksum(std::span<const uint8_t> bytes) {
  return hash128(bytes.data(), bytes.size()).low;
}

}  // namespace

std::vector<uint8_t> node_to_bytes(const caf::node_id& node) {
  std::vector<uint8_t> bytes;
  if (!node || node->implementation_id() != caf::node_id::default_data::class_id) return bytes;
  auto& data = static_cast<const caf::node_id::default_data&>(*node);
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<uint8_t>(data.process_id() >> (8 * i)));
  auto host = data.host_id();
  bytes.insert(bytes.end(), host.begin(), host.end());
  return bytes;
}

caf::node_id node_from_bytes(std::span<const uint8_t> bytes) {
  if (bytes.size() != kNodeBytes) return {};
  uint32_t pid = 0;
  for (int i = 0; i < 4; ++i) pid |= uint32_t{bytes[static_cast<size_t>(i)]} << (8 * i);
  caf::node_id::default_data::host_id_type host;
  std::copy(bytes.begin() + 4, bytes.end(), host.begin());
  if (!caf::node_id::default_data::valid(host)) return {};
  return caf::make_node_id(pid, host);
}

pid_t visible_pid(const caf::node_id& here, const caf::node_id& peer) {
  const auto own = node_to_bytes(here), other = node_to_bytes(peer);
  constexpr size_t kPidBytes = 4, kScopeBytes = 8;  // set in middleman.cpp
  if (own.size() != kNodeBytes || other.size() != kNodeBytes ||
      !std::equal(own.begin() + kPidBytes, own.begin() + kPidBytes + kScopeBytes,
                  other.begin() + kPidBytes))
    return 0;
  return static_cast<pid_t>(static_cast<const caf::node_id::default_data&>(*peer).process_id());
}

std::string to_text(const Address& address) {
  std::vector<uint8_t> bytes = node_to_bytes(address.node);
  bytes.insert(bytes.end(), address.worker.begin(), address.worker.end());
  append_u64(bytes, checksum(bytes));
  std::string text = kPrefix;
  for (uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

Result<Address> parse_address(const std::string& text) {
  Status bad(Code::bad_data, "not the address of a process: \"" + text.substr(0, 40) + "\"");
  if (text.compare(0, kPrefixChars, kPrefix) != 0 || text.size() % 2 != 0) return bad;
  std::vector<uint8_t> bytes;
  for (size_t i = kPrefixChars; i < text.size(); i += 2) {
    int high = hex_digit(text[i]), low = hex_digit(text[i + 1]);
    if (high < 0 || low < 0) return bad;
    bytes.push_back(static_cast<uint8_t>(high << 4 | low));
  }
  if (bytes.size() <= kNodeBytes + 8) return bad;
  std::span<const uint8_t> body(bytes.data(), bytes.size() - 8);
  std::vector<uint8_t> sum;
  append_u64(sum, checksum(body));
  if (!std::equal(sum.begin(), sum.end(), bytes.end() - 8)) return bad;
  Address address{node_from_bytes(body.first(kNodeBytes)), {body.begin() + kNodeBytes, body.end()}};
  if (!address.node) return bad;
  return address;
}

}  // namespace simplescale::remote
