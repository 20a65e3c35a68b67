#include "runtime/base/limits.hpp"

#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <system_error>

namespace simplescale {

namespace {

constexpr uint64_t kUsualStack = uint64_t{8} << 20, kLeastStack = uint64_t{1} << 20;

rlimit limit_of(__rlimit_resource resource) {
  rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  getrlimit(resource, &limit);
  return limit;
}

uint64_t number_of(rlim_t limit) {
  return limit == RLIM_INFINITY ? UINT64_MAX : limit;
}

std::string kib(uint64_t bytes) {
  return std::to_string(bytes >> 10) + " KiB";
}

}  // namespace

ProcessLimits process_limits() {
  return {number_of(limit_of(RLIMIT_STACK).rlim_max), number_of(limit_of(RLIMIT_NOFILE).rlim_max),
          geteuid() == 0 ? UINT64_MAX : number_of(limit_of(RLIMIT_NPROC).rlim_cur),
          number_of(limit_of(RLIMIT_AS).rlim_cur)};
}

Status adapt_to_limits() {
  if (process_limits().address_space != UINT64_MAX) mallopt(M_ARENA_MAX, 1);
  rlimit limit = limit_of(RLIMIT_STACK);
  if (number_of(limit.rlim_cur) >= kUsualStack) return {};
  SS_RETURN_IF_ERROR(check_limits("simplescale", {.stack = kLeastStack}));
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, kUsualStack);
  setrlimit(RLIMIT_STACK, &limit);
  // The library read the limit when the process began.
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return {};
  if (pthread_attr_setstacksize(&attributes, limit.rlim_cur) == 0)
    pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
  return {};
}

Status check_limits(const std::string& what, const ProcessLimits& needs,
                    const ProcessLimits& limits) {
  const auto low = [&](const char* of, const char* option, const std::string& has,
                       const std::string& needed) {
    return Status(Code::io, what + " needs " + of + " (ulimit " + option + ") of at least " +
                                needed + ", but the limit is " + has + ": raise it");
  };
  if (limits.stack < needs.stack) return low("a stack", "-s", kib(limits.stack), kib(needs.stack));
  if (limits.descriptors < needs.descriptors)
    return low("a number of open files", "-n", std::to_string(limits.descriptors),
               std::to_string(needs.descriptors));
  if (limits.threads < needs.threads)
    return low("a number of processes and threads", "-u", std::to_string(limits.threads),
               std::to_string(needs.threads));
  if (limits.address_space < needs.address_space)
    return low("an address space", "-v", kib(limits.address_space), kib(needs.address_space));
  return {};
}

std::string address_space_hint(const ProcessLimits& limits) {
  return limits.address_space == UINT64_MAX ? ""
                                            : " (ulimit -v: " + kib(limits.address_space) + ")";
}

Status exception_status(const std::exception& error, const ProcessLimits& limits) {
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  const bool thread = system && system->code() == std::errc::resource_unavailable_try_again;
  if (!thread && !dynamic_cast<const std::bad_alloc*>(&error))
    return {Code::internal, error.what()};
  std::string text = thread ? "no further thread can be started"
                            : "out of memory (" + std::string(error.what()) + ")";
  if (limits.address_space != UINT64_MAX)
    text += ": the address space (ulimit -v) is limited to " + kib(limits.address_space);
  if (thread && limits.threads != UINT64_MAX)
    text += ": the processes and threads of this user (ulimit -u) are limited to " +
            std::to_string(limits.threads);
  return {Code::io, text};
}

void tell_no_memory() noexcept {
  constexpr std::string_view kText =
      "simplescale: out of memory: a limit of the address space (ulimit -v), that of a control "
      "group, or the memory of this host\n";
  (void)!::write(STDERR_FILENO, kText.data(), kText.size());
}

}  // namespace simplescale
