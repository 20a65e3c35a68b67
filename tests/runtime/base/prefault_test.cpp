#include <doctest/doctest.h>

#include <sys/resource.h>

#include "runtime/base/prefault.hpp"
#include "runtime/base/shared_memory.hpp"

using namespace simplescale;

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
    auto memory = SharedMemory::create("ss-test-prefault", kFloats * sizeof(float));
    REQUIRE(memory.ok());
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
