#include "transport/caf/middleman.hpp"

#include <unistd.h>

#include <caf/node_id.hpp>
#include <random>

namespace caf::net {

void middleman::init(actor_system_config&) {
  std::random_device random;
  node_id::default_data::host_id_type bytes;
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random());
  bytes[0] |= 1;  // all zeros would be invalid
  system_.node_ = make_node_id(static_cast<uint32_t>(getpid()), bytes);
}

}  // namespace caf::net
