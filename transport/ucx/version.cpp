#include "transport/ucx/version.hpp"

#include <ucp/api/ucp_version.h>

namespace simplescale::ucx {

std::string version() {
  return std::to_string(UCP_API_MAJOR) + "." + std::to_string(UCP_API_MINOR);
}

}  // namespace simplescale::ucx
