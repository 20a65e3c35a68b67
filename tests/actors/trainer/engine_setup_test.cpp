// The data plane of a trainer, and what preflight counts for it.
#include "actors/trainer/engine_setup.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include "runtime/base/shared_memory.hpp"
#include "runtime/config/preflight.hpp"

using namespace simplescale;

namespace {

/// The shared memory of a data plane with these options.
uint64_t segment_bytes(DataPlaneOptions options) {
  options.network = false;
  options.shm_prefix = "ss-test-setup-" + std::to_string(getpid());
  const auto plane = DataPlane::create(options);
  REQUIRE(plane.ok());
  const auto segment = SharedMemory::open(options.shm_prefix);
  REQUIRE(segment.ok());
  return segment->bytes();
}

}  // namespace

TEST_SUITE("engine setup") {
  TEST_CASE("engine setup: preflight counts the data planes of all processes, staged ones too") {
    Config config;
    config.model.preset = "micro";
    config.train.max_steps = 10;
    config.metrics.trace_events = 0;
    config.supervision.warm_processes = 3;
    config.parallel.strategy = Strategy::no_shard;
    for (const auto& [kind, device, staged, nodes] :
         {std::tuple{DeviceKind::cpu, std::optional<DeviceTransport>(), false, 1},
          std::tuple{DeviceKind::cpu, std::optional<DeviceTransport>(), false, 1023},
          std::tuple{DeviceKind::cuda, std::optional(DeviceTransport::nccl), false, 1023},
          std::tuple{DeviceKind::cuda, std::optional(DeviceTransport::staged), true, 1}}) {
      config.cluster.device = kind;
      config.cluster.nodes = nodes;
      const auto plan = make_plan(config);
      REQUIRE(plan.ok());
      const uint64_t plane = segment_bytes(plane_options(config, *plan, device));
      // A trainer and three warm processes; the rest are the state, the ring and the agent's plane.
      const uint64_t counted = host_needs(config, *plan, 1, staged).shared;
      config.supervision.warm_processes = 0;
      const uint64_t without = host_needs(config, *plan, 1, staged).shared;
      config.supervision.warm_processes = 3;
      CHECK(counted - without >= 3 * plane);
      CHECK(counted - without < 3 * (plane + (uint64_t{20} << 20)));
    }
    DataPlaneOptions agent;  // as make_agent_plane()
    agent.arena_bytes = size_t{1} << 20;
    CHECK(segment_bytes(agent) <= uint64_t{28} << 20);
  }
}
