// Limits that are too low are told with what is needed, and named when something has run out.
#include "runtime/base/limits.hpp"

#include <doctest/doctest.h>

#include <new>
#include <stdexcept>
#include <system_error>

using namespace simplescale;

namespace {
constexpr uint64_t kNone = UINT64_MAX;
constexpr ProcessLimits kUnlimited{kNone, kNone, kNone, kNone};
}  // namespace

TEST_CASE("limits: the first that is too low is named with both figures and its option") {
  const ProcessLimits needs{1 << 20, 128, 40, uint64_t{1} << 30};
  CHECK(check_limits("train", needs, kUnlimited).ok());
  CHECK(check_limits("train", needs, needs).ok());
  CHECK(check_limits("train", {}, {}).ok());
  const auto said = [&](const ProcessLimits& limits) {
    const Status status = check_limits("train", needs, limits);
    CHECK(status.code() == Code::io);
    return status.message();
  };
  CHECK(said({64 << 10, kNone, kNone, kNone}) ==
        "train needs a stack (ulimit -s) of at least 1024 KiB, but the limit is 64 KiB: raise it");
  CHECK(said({kNone, 16, kNone, kNone}) ==
        "train needs a number of open files (ulimit -n) of at least 128, but the limit is 16: "
        "raise it");
  CHECK(said({kNone, kNone, 12, kNone}).find("(ulimit -u) of at least 40, but the limit is 12") !=
        std::string::npos);
  CHECK(said({kNone, kNone, kNone, 100'000 << 10})
            .find("(ulimit -v) of at least 1048576 KiB, but the limit is 100000 KiB") !=
        std::string::npos);
}

TEST_CASE("limits: what ran out is told with the limit that may be the cause") {
  const ProcessLimits some{kNone, kNone, 12, 100'000 << 10};
  const std::system_error thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  CHECK(exception_status(std::bad_alloc(), kUnlimited).message() ==
        "out of memory (std::bad_alloc)");
  CHECK(exception_status(std::bad_alloc(), some).message() ==
        "out of memory (std::bad_alloc): the address space (ulimit -v) is limited to 100000 KiB");
  CHECK(exception_status(thread, kUnlimited).message() == "no further thread can be started");
  CHECK(exception_status(thread, some).message().ends_with("(ulimit -u) are limited to 12"));
  CHECK(exception_status(thread, some).code() == Code::io);
  const Status other = exception_status(std::runtime_error("a bug"), some);
  CHECK(other.code() == Code::internal);
  CHECK(other.message() == "a bug");
}
