#include "transport/gpu/nccl_network.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/base/log.hpp"
#include "transport/nccl/device_plane.hpp"
#include "transport/ucx/ucx.hpp"

namespace simplescale {

bool nccl_is_allowed(bool other_hosts, const std::string& trusted_networks) {
  return !other_hosts || !trusted_networks.empty();
}

Result<Variables> nccl_variables(bool other_hosts, const std::string& trusted_networks,
                                 std::span<const InterfaceAddress> addresses,
                                 const std::string& sys) {
  std::vector<std::string> interfaces{"lo"};
  ucx::RdmaPorts ports;
  if (other_hosts) {
    SS_ASSIGN(const auto networks, parse_trusted_networks(trusted_networks));
    interfaces.clear();
    const auto found = trusted_interfaces(networks, addresses);
    for (const TrustedNetwork& network : networks)
      if (!std::ranges::count(found, network.name, &TrustedInterface::network))
        return Status(Code::bad_config,
                      "this host is not on " + network.name + " of transport.trusted_networks (" +
                          trusted_networks +
                          "), and NCCL may use each of them between hosts; name only networks that "
                          "every host is on, or none, so that GPUs exchange data through host "
                          "memory over encrypted TCP. A run on one host needs neither");
    for (const TrustedInterface& each : found)
      if (!std::ranges::count(interfaces, each.interface)) interfaces.push_back(each.interface);
    SS_ASSIGN(ports, ucx::rdma_ports(interfaces, sys));
  }
  const auto exactly = [](const std::vector<std::string>& names) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "=" : ",") + name;
    return list;
  };
  // Plugins have networks of their own, and RAS opens a port to every user of the host.
  Variables set{{"NCCL_SOCKET_IFNAME", exactly(interfaces)},
                {"NCCL_NET_PLUGIN", "none"},
                {"NCCL_RAS_ENABLE", "0"}};
  if (ports.names.empty())
    set.emplace_back("NCCL_IB_DISABLE", "1");
  else
    set.emplace_back("NCCL_IB_HCA", exactly(ports.names));
  if (!ports.partition.empty()) set.emplace_back("NCCL_IB_PKEY", std::to_string(ports.key_index));
  return set;
}

std::string describe(const Result<Variables>& variables) {
  if (!variables.ok())
    return "a run on GPUs of several hosts ends: " + variables.status().message();
  std::string text;
  for (const auto& [name, value] : *variables)
    text += (text.empty() ? "" : ", ") + name + " is \"" + value + "\"";
  return text;
}

void protect_nccl_settings() {
  // It would replace config.blocking = 0. Setting it: nccl.conf sets what is not set.
  setenv("NCCL_COMM_BLOCKING", "0", 1);
  // A trainer's communicators run at once; this keeps each GPU's order of launches that of the host,
  // which all ranks share. Without it kernels that do not fit on a GPU together may wait for ever.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  // NCCL refuses ranks of one host on one GPU, and tells hosts apart by this.
  if (std::getenv(kNcclOnSharedGpu)) setenv("NCCL_HOSTID", std::to_string(getpid()).c_str(), 1);
  // It would replace the identifiers of all communicators, and choose an interface.
  unsetenv("NCCL_COMM_ID");
}

void set_nccl_variables(const Variables& variables) {
  for (const auto& [name, value] : variables) {
    if (const char* before = std::getenv(name.c_str()); before && before != value)
      log::warn(
          "{} = {} is replaced by {}: transport.trusted_networks and the number of hosts "
          "decide which networks NCCL uses",
          name, before, value);
    setenv(name.c_str(), value.c_str(), 1);
  }
}

}  // namespace simplescale
