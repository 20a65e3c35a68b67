// The code of a failed file operation on a path that a user has chosen.
#pragma once

#include <cerrno>

#include "runtime/base/status.hpp"

namespace simplescale {

/// io for an errno of the device, the server or this host's limits, which says nothing about the
/// path and may be temporary; otherwise `wrong_path`: the path does not exist, is of another kind,
/// or may not be used.
inline Code path_error(int error, Code wrong_path) {
  switch (error) {
    case EIO:
    case ENOSPC:
    case EDQUOT:
    case ESTALE:
    case ETIMEDOUT:
    case EAGAIN:
    case EINTR:
    case EBUSY:
    case ENOMEM:
    case ENFILE:
    case EMFILE:
    case EREMOTEIO:
      return Code::io;
    default:
      return wrong_path;
  }
}

}  // namespace simplescale
