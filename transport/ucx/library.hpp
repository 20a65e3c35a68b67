// Loads UCX when it is needed: only a run with transport.trusted_networks needs it. The program does
// not link libucp; library.cpp defines the functions that we call, and passes the calls on.
#pragma once

#include <string>

#include "runtime/base/status.hpp"

namespace simplescale::ucx {

/// Loads libucp, which stays loaded. Call it before any function of UCX. bad_config:
/// check_host(); unavailable: the library is missing or of another version. Any thread.
Status load();

/// bad_config: UCX 1.13.1, which we use, aborts the process on a host of this name.
Status check_host_name(const std::string& name);
/// check_host_name() of this host.
Status check_host();

}  // namespace simplescale::ucx
