// What the supervisor derives from the configuration.
#include "actors/supervisor/job_options.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

TEST_SUITE("job options") {
  TEST_CASE("job options: a GPU's trainer has time to copy its state before it leaves") {
    Config config;
    config.cluster.device = DeviceKind::cpu;
    CHECK(fence_timeout_ms(config, uint64_t{100'000'000'000}) == 2'000);
    config.cluster.device = DeviceKind::cuda;
    CHECK(fence_timeout_ms(config, 0) == 5'000);
    CHECK(fence_timeout_ms(config, uint64_t{100'000'000'000}) == 30'000);
  }
}
