#include "runtime/base/health.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

TEST_CASE("health: shares are shares, and a busy loop shows") {
  HealthProbe probe("/tmp");
  HostHealth health;
  volatile double sink = 1;
  // The kernel counts in ticks of 10 ms.
  for (int round = 0; round < 1000 && health.cpu == 0; ++round) {
    for (int i = 0; i < 10'000'000; ++i) sink = sink * 1.0000001;
    health = probe.sample();
  }
  CHECK(health.cpu > 0);
  for (double share : {health.cpu, health.memory, health.disk}) {
    CHECK(share >= 0);
    CHECK(share <= 1);
  }
  CHECK(health.memory > 0);
  CHECK(health.disk > 0);
  CHECK(health.received_mb_per_s >= 0);
}

TEST_CASE("health: a folder that is not there has no disk") {
  HealthProbe probe("/nonexistent/folder");
  CHECK(probe.sample().disk == 0);
}
