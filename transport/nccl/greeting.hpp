// What the ranks of a communicator tell each other before NCCL's exists: whether NCCL can connect them,
// and which of them share a host.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale::nccl {

/// In native byte order: all ranks run the same build.
struct Greeting {
  uint64_t host;       // a number that ranks of one host share; 0: not known
  uint64_t nccl_host;  // of NCCL_HOSTID, by which NCCL tells hosts apart; 0: not set
  int32_t version;     // NCCL's
  char device[16];     // the GPU's UUID
  int32_t pci[3];      // its address: domain, bus, device
};

/// Of a rank on this GPU. host: 0: this host's. Makes no CUDA context. io: CUDA or NCCL fails.
Result<Greeting> own_greeting(int device_index, uint64_t host);

/// greetings: of all ranks. unavailable: they have different versions of NCCL. bad_config: two ranks
/// share a GPU, which NCCL refuses. name: the communicator's.
Status check_greetings(const std::string& name, std::span<const Greeting> greetings);

}  // namespace simplescale::nccl
