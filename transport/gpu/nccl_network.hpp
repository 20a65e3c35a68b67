// Which networks NCCL may use. It protects nothing, so between hosts it runs only on networks that
// transport.trusted_networks names, and on one host only over loopback, shared memory and NVLink.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/network.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

/// False: collectives of GPUs go through host memory, and so over encrypted TCP. All processes of a
/// run decide alike. trusted_networks: as configured. Pure.
bool nccl_is_allowed(bool other_hosts, const std::string& trusted_networks);

/// The environment variables, with their values, that limit NCCL to the interfaces of this host on
/// trusted networks and to the InfiniBand or RoCE devices behind them; without other hosts, to
/// loopback. bad_config, with what to set: this host is not on each of the trusted networks (so
/// another host may be on others, and not reach it), or the interfaces are of several InfiniBand
/// partitions. Reads only `sys`, which is for tests.
using Variables = std::vector<std::pair<std::string, std::string>>;
Result<Variables> nccl_variables(bool other_hosts, const std::string& trusted_networks,
                                 std::span<const InterfaceAddress> addresses,
                                 const std::string& sys = "/sys/class/net");

/// What these variables limit NCCL to between hosts, or why a run there ends, as one line for a
/// person: "NCCL_SOCKET_IFNAME is "=ib0", NCCL_IB_HCA is "=mlx5_0:1"".
std::string describe(const Result<Variables>& variables);

/// Sets the variables, and logs each other value that it replaces. NCCL reads its environment once,
/// so call this before libsimplescale_nccl.so is loaded, and before other threads exist.
void set_nccl_variables(const Variables& variables);

/// Replaces settings in the environment, and NCCL_COMM_BLOCKING in an nccl.conf, that would change
/// what transport/nccl relies on. Call it when set_nccl_variables() may be called.
void protect_nccl_settings();

}  // namespace simplescale
