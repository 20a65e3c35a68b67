// The address of a process: its node id (24 bytes) and the address of its messenger; and both as
// one line of text. Pure functions, any thread.
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

/// The node id as kNodeBytes bytes: the process id (4, little endian), then the host id (20). Empty
/// for an invalid id.
std::vector<uint8_t> node_to_bytes(const caf::node_id& node);
/// The node id in the bytes; an invalid id if there is none.
caf::node_id node_from_bytes(std::span<const uint8_t> bytes);

struct Address {
  caf::node_id node;
  std::vector<uint8_t> worker;
};

/// "ss1-", then lower-case hex of the node id, the worker address and the checksum of both
/// (XXH3, low 64 bits).
std::string to_text(const Address& address);
/// bad_data: the text is not an address, or its checksum is wrong.
Result<Address> parse_address(const std::string& text);

/// The peer's process id if the peer is in this process's pid namespace, else 0.
pid_t visible_pid(const caf::node_id& here, const caf::node_id& peer);

}  // namespace simplescale::remote
