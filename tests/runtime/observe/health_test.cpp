#include "runtime/observe/health.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

TEST_CASE("health: shares are between 0 and 1, and a busy loop raises that of the CPU") {
  HealthProbe probe("/tmp");
  HostHealth health;
  volatile double sink = 1;
  // The kernel counts CPU time in ticks of 10 ms.
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

TEST_CASE("health: GPUs are reported by NVML; figures that it lacks are 0") {
  const GpuHealth whole{"NVIDIA H100 80GB HBM3", 0.87, 61, 412.5, 0.25,
                        (5ull << 40) + 3,        1980, 2,  79};
  const GpuHealth silent{.name = "NVIDIA H100 (silent)"};
  for (int time = 0; time < 2; ++time)  // the library is unloaded and loaded again
    CHECK(HealthProbe("/tmp", SIMPLESCALE_FAKE_NVML).sample().gpus == std::vector{whole, silent});
  GpuHealth old = whole;
  old.utilization = old.power_w = old.clock_mhz = 0;
  old.ecc_errors = old.xids = old.xid = 0;
  CHECK(HealthProbe("/tmp", SIMPLESCALE_FAKE_NVML_OLD).sample().gpus == std::vector{old, silent});
}

TEST_CASE("health: without NVML, or with another library in its place, there are no GPUs") {
  CHECK(HealthProbe("/tmp", "/nonexistent/libnvidia-ml.so.1").sample().gpus.empty());
  CHECK(HealthProbe("/tmp", "libm.so.6").sample().gpus.empty());
}

TEST_CASE("health: the disk share of a missing folder is 0") {
  HealthProbe probe("/nonexistent/folder");
  CHECK(probe.sample().disk == 0);
}
