// NCCL's results as Status.
#pragma once

#include <nccl.h>

#include <string>

#include "runtime/base/status.hpp"

namespace simplescale::nccl {

inline bool is_error(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

/// unavailable, with what NCCL says; ok also for a call in progress. comm: null if there is none.
inline Status nccl_status(ncclResult_t result, const char* what, ncclComm_t comm) {
  if (!is_error(result)) return {};
  std::string text = std::string("NCCL: ") + what + ": " + ncclGetErrorString(result);
  if (const char* more = ncclGetLastError(comm); more && *more)
    text += std::string(" (") + more + ")";
  return Status(Code::unavailable, text);
}

}  // namespace simplescale::nccl
