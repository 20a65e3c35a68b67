#include "transport/nccl/program/poll.hpp"

#include <dlfcn.h>
#include <link.h>
#include <poll.h>

namespace simplescale {

int poll_timeout_ms(int timeout_ms, std::string_view library) {
  constexpr int kOfNccl = 500, kShorter = 10;
  return timeout_ms == kOfNccl && library.find("libnccl.so") != library.npos ? kShorter
                                                                             : timeout_ms;
}

}  // namespace simplescale

namespace {

std::string_view library_at(void* code) {
  dl_find_object found;
  const bool known = _dl_find_object(code, &found) == 0 && found.dlfo_link_map->l_name;
  return known ? found.dlfo_link_map->l_name : "";
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int poll(pollfd* fds, nfds_t count,
                                                           int timeout_ms) {
  timeout_ms = simplescale::poll_timeout_ms(timeout_ms, library_at(__builtin_return_address(0)));
  const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  return ppoll(fds, count, timeout_ms < 0 ? nullptr : &timeout, nullptr);
}
