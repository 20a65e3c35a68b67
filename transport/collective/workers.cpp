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
  std::vector<std::string> interfaces;
  for (const auto& [name, interface] : trusted_interfaces(networks, local_addresses())) {
    workers.trusted.insert(name);
    interfaces.push_back(interface);
  }
  for (const TrustedNetwork& network : networks)
    if (!workers.trusted.contains(network.name))
      log::warn(
          "no interface of this host lies on {} of transport.trusted_networks: its collectives "
          "with hosts that lie there go over encrypted TCP",
          network.name);
  if (interfaces.empty()) return workers;
  SS_ASSIGN(workers.ucx, UcxWorker::create(ring, interfaces));
  return workers;
}

}  // namespace simplescale::collective
