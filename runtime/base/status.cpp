#include "runtime/base/status.hpp"

#include <cerrno>
#include <cstring>

namespace simplescale {

int exit_code(Code code) {
  switch (code) {
    case Code::ok:
      return 0;
    case Code::usage:
      return 64;
    case Code::bad_data:
    case Code::not_found:
      return 65;
    case Code::requeue:
      return 75;
    case Code::bad_config:
      return 78;
    case Code::gave_up:
      return 3;
    case Code::io:
      return 74;
    default:
      return 70;
  }
}

const char* to_string(Code code) {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::usage:
      return "usage";
    case Code::bad_data:
      return "bad data";
    case Code::internal:
      return "internal";
    case Code::requeue:
      return "requeue";
    case Code::bad_config:
      return "bad config";
    case Code::gave_up:
      return "gave up";
    case Code::aborted:
      return "aborted";
    case Code::deadline:
      return "deadline";
    case Code::unavailable:
      return "unavailable";
    case Code::not_found:
      return "not found";
    case Code::io:
      return "io";
    case Code::mismatch:
      return "mismatch";
  }
  return "?";
}

Status system_error(const std::string& what, const std::string& where, int error, Code missing) {
  const Code code = error == ENOENT || error == ENOTDIR ? missing : Code::io;
  return Status(code, what + " " + where + ": " + std::strerror(error));
}

}  // namespace simplescale
