// Which workers a data plane has: what carries its collectives to other hosts.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "transport/collective/remote.hpp"

namespace simplescale::collective {

struct Workers {
  std::unique_ptr<RemoteWorker> stream;  // null: without network
  std::unique_ptr<RemoteWorker> ucx;     // null: no interface of this host is trusted
  std::set<std::string> trusted;         // networks on which this host lies
};

/// ring: see StreamWorker. Other arguments: see DataPlaneOptions.
Result<Workers> make_workers(const std::string& key, bool network,
                             const std::string& trusted_networks,
                             const std::function<void()>& ring);

}  // namespace simplescale::collective
