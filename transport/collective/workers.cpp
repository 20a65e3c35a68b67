#include "transport/collective/workers.hpp"

#include <vector>

#include "runtime/base/log.hpp"
#include "runtime/base/network.hpp"
#include "transport/collective/stream_worker.hpp"
#include "transport/collective/ucx_worker.hpp"

namespace simplescale::collective {

Result<Workers> make_workers(const std::string& key, bool network,
                             const std::string& trusted_networks,
                             const std::function<void()>& ring) {
  Workers workers;
  SS_ASSIGN(const auto networks, parse_trusted_networks(trusted_networks));
  if (!network) return workers;
  SS_ASSIGN(workers.stream, StreamWorker::create(key, ring));
  const auto found = trusted_interfaces(networks, local_addresses());
  if (found.empty()) {
    if (!networks.empty())
      log::warn(
          "no interface of this host lies on transport.trusted_networks ({}): its collectives with "
          "other hosts go over encrypted TCP",
          trusted_networks);
    return workers;
  }
  std::vector<std::string> interfaces;
  for (const auto& [name, interface] : found) {
    workers.trusted.insert(name);
    interfaces.push_back(interface);
  }
  SS_ASSIGN(workers.ucx, UcxWorker::create(ring, interfaces));
  return workers;
}

}  // namespace simplescale::collective
