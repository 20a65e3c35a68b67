// The address of a data plane, as bytes. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "transport/collective/remote.hpp"

namespace simplescale::collective {

struct PlaneAddress {
  std::string host_id, segment;   // of its shared memory
  uint64_t incarnation = 0;       // of the segment
  WorkerAddress stream, ucx;      // empty: the plane has no such worker
  std::set<std::string> trusted;  // networks of the configuration on which its host lies
};

std::vector<uint8_t> encode_plane(const PlaneAddress& address);
/// Nothing if the bytes are not exactly one address.
std::optional<PlaneAddress> decode_plane(std::span<const uint8_t> bytes);

/// True if the two planes use UCX with each other; both decide alike. Their hosts must lie on the
/// same trusted networks: UCX may choose any address of the other host, and from a host that is not
/// on its network the way there may lead through networks that nobody trusts.
bool use_ucx(const PlaneAddress& a, const PlaneAddress& b);

}  // namespace simplescale::collective
