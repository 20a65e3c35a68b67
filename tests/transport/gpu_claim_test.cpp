// Trainers that do not count each other share the GPUs of a host without overlap.
#include "transport/gpu/gpu_claim.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/must.hpp"

using namespace simplescale;

namespace {

/// A host of this test alone, with so many GPUs.
std::vector<std::string> gpus(int count) {
  static int hosts = 0;
  const std::string host = "test" + std::to_string(getpid()) + "x" + std::to_string(hosts++);
  std::vector<std::string> uuids;
  for (int i = 0; i < count; ++i) uuids.push_back(host + "x" + std::to_string(i));
  return uuids;
}

GpuClaim claim(const std::vector<std::string>& uuids, int preferred, bool shared = false) {
  auto claimed =
      must(claim_gpu({.device_index = preferred,
                      .transport = shared ? DeviceTransport::staged : DeviceTransport::nccl,
                      .shared = shared,
                      .uuids = uuids},
                     DeviceMemoryRetry(std::chrono::milliseconds(0))));
  return claimed.take();
}

}  // namespace

TEST_SUITE("gpu claim") {
  TEST_CASE("gpu claim: two runs on one host get different GPUs, each its preferred one if free") {
    const auto uuids = gpus(4);
    const GpuClaim first[] = {claim(uuids, 0), claim(uuids, 1)};
    CHECK(first[0].device_index == 0);
    CHECK(first[1].device_index == 1);
    const GpuClaim second[] = {claim(uuids, 0), claim(uuids, 1)};
    CHECK(second[0].device_index == 2);
    CHECK(second[1].device_index == 3);
    for (const GpuClaim& each : second) CHECK(each.warning.empty());
    const GpuClaim third = claim(uuids, 1);
    CHECK(third.device_index == 1);
    CHECK(third.warning.find("all 4 GPUs") != std::string::npos);
    CHECK(third.warning.find("CUDA_VISIBLE_DEVICES") != std::string::npos);
  }

  TEST_CASE("gpu claim: without a driver the reason names the library that is missing") {
    const Status status = choose_device(0, 1).status();
    if (access("/proc/driver/nvidia/version", F_OK) == 0) return;
    CHECK(status.code() == Code::unavailable);
    CHECK(status.message().starts_with("no NVIDIA driver: libcuda.so.1: "));
  }

  TEST_CASE("gpu claim: a GPU that is not suitable is never taken") {
    auto uuids = gpus(3);
    uuids[1].clear();
    const GpuClaim first = claim(uuids, 0), second = claim(uuids, 0);
    CHECK(second.device_index == 2);
  }

  TEST_CASE("gpu claim: a killed trainer's GPU is free at once") {
    const auto uuids = gpus(2);
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    const pid_t child = fork();
    if (child == 0) {
      const auto held = claim_gpu({.device_index = 1, .uuids = uuids});
      const char ok = held.ok() && held->device_index == 1;
      (void)!write(ready[1], &ok, 1);
      for (;;) pause();
    }
    char ok = 0;
    REQUIRE(read(ready[0], &ok, 1) == 1);
    CHECK(ok == 1);
    CHECK(claim(uuids, 1).device_index == 0);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    CHECK(claim(uuids, 1).device_index == 1);
    close(ready[0]);
    close(ready[1]);
  }

  TEST_CASE("gpu claim: more trainers than GPUs share them evenly, away from another run's GPU") {
    const auto uuids = gpus(2);
    {
      std::vector<GpuClaim> claims;
      for (int i = 0; i < 4; ++i) claims.push_back(claim(uuids, i % 2, true));
      for (int i = 0; i < 4; ++i) CHECK(claims[static_cast<size_t>(i)].device_index == i % 2);
      for (const GpuClaim& each : claims)
        CHECK(each.warning.find("cluster.trainers_per_node") != std::string::npos);
      CHECK_FALSE(claim(uuids, 0).warning.empty());
      const auto by_nccl = must(claim_gpu({.shared = true, .uuids = uuids},
                                          DeviceMemoryRetry(std::chrono::milliseconds(0))));
      CHECK(by_nccl->warning.empty());
    }
    const GpuClaim other = claim(uuids, 0);
    CHECK(claim(uuids, 0, true).device_index == 1);
  }
}
