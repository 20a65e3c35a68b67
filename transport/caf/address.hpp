// How a process is named to others: its node id (24 bytes) and its UCX worker address, and both as
// one line of text. Pure functions.
#pragma once

#include <sys/types.h>

#include <caf/node_id.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale::remote {

constexpr size_t kNodeBytes = 24;

std::vector<uint8_t> node_to_bytes(const caf::node_id& node);
/// Empty id if the bytes are not a node's.
caf::node_id node_from_bytes(std::span<const uint8_t> bytes);

struct Address {
  caf::node_id node;
  std::vector<uint8_t> worker;
};

/// UCX trusts the addresses it is given, so every one travels with this.
uint64_t checksum(std::span<const uint8_t> bytes);

/// "ss1-" and lower-case hex.
std::string to_text(const Address& address);
Result<Address> parse_address(const std::string& text);

/// The peer's process id, if pids mean the same to both; else 0.
pid_t visible_pid(const caf::node_id& here, const caf::node_id& peer);

}  // namespace simplescale::remote
