#include "transport/ucx/version.hpp"

#include <ucp/api/ucp.h>

namespace simplescale::ucx {

std::string version() {
  return ucp_get_version_string();
}

}  // namespace simplescale::ucx
