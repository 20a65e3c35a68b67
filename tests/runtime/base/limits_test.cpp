// Limits that are too low are told with what is needed, and named when something has run out.
// Libraries that cannot be loaded: the reason names what is missing, and where it was looked for.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <new>
#include <stdexcept>
#include <system_error>

#include "runtime/base/library.hpp"
#include "runtime/base/limits.hpp"
#include "runtime/base/prefault.hpp"
#include "runtime/base/shared_memory.hpp"
#include "tests/must.hpp"

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
  CHECK(has(said({kNone, kNone, 12, kNone}), "(ulimit -u) of at least 40, but the limit is 12"));
  CHECK(has(said({kNone, kNone, kNone, 100'000 << 10}),
            "(ulimit -v) of at least 1048576 KiB, but the limit is 100000 KiB"));
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

TEST_SUITE("library") {
  TEST_CASE("library: a missing library of ours is named with its folder and what to do") {
    const Status status = load_symbol("libsimplescale_no.so", "none", "build again").status();
    CHECK(says(status, Code::unavailable, "/libsimplescale_no.so is missing: build again"));
    CHECK(status.message().starts_with("/"));
  }

  // As with NCCL's or libtorch's wheel removed: the file of CMakeLists.txt needs a library that no
  // folder has.
  TEST_CASE("library: a missing library of a vendor is named, and the folders that were searched") {
    const std::string message =
        load_symbol("libneeds_missing.so", "simplescale_empty", "").status().message();
    CAPTURE(message);
    CHECK(message.starts_with("cannot load libss_missing.so.2: "));
    CHECK(message.find("LD_LIBRARY_PATH") != std::string::npos);
    CHECK(message.find("/libneeds_missing.so") != std::string::npos);
  }

  TEST_CASE("library: a library of another version is named with the symbol that it lacks") {
    const std::string message =
        load_symbol("libss_present.so", "simplescale_new", "").status().message();
    CAPTURE(message);
    CHECK(message.find("libss_present.so is of another version, build again") != std::string::npos);
    CHECK(message.find("simplescale_new") != std::string::npos);
    CHECK(load_symbol("libss_present.so", "simplescale_empty", "").ok());
  }
}

namespace {

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

}  // namespace

TEST_SUITE("prefault") {
  TEST_CASE("prefault: a process that writes pages which were entered takes no page fault") {
    constexpr size_t kFloats = size_t{12} << 20, kPages = kFloats * sizeof(float) / 4096;
    auto memory = must(SharedMemory::create("ss-test-prefault", kFloats * sizeof(float)));
    const std::span values(static_cast<float*>(memory->data()), kFloats);
    {
      // Neither part begins at a page.
      Prefault prefault({values.subspan(kFloats / 2 + 3), values.subspan(5, kFloats / 2 - 2)}, 3);
      prefault.wait();
    }
    const int64_t before = page_faults();
    for (float& value : values) value = 1;
    CHECK(page_faults() - before < static_cast<int64_t>(kPages / 10));
  }
}
