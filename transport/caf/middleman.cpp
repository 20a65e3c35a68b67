#include "transport/caf/middleman.hpp"

#include <unistd.h>

#include <cstring>

#include <caf/node_id.hpp>
#include <random>

#include "runtime/base/hash.hpp"
#include "runtime/base/process.hpp"

namespace caf::net {

void middleman::init(actor_system_config&) {
  std::random_device random;
  node_id::default_data::host_id_type bytes;
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random());
  // The first 8 bytes identify the pid namespace (see visible_pid()), the others are random.
  const std::string& scope = simplescale::pid_scope();
  const uint64_t hash = simplescale::hash128(scope.data(), scope.size()).low;
  std::memcpy(bytes.data(), &hash, sizeof hash);
  bytes[0] |= 1;  // CAF takes all zeros as invalid
  system_.node_ = make_node_id(static_cast<uint32_t>(getpid()), bytes);
}

}  // namespace caf::net
