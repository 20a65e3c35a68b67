// What cluster.device = "auto" becomes on a host with GPUs.
#include "app/launch/auto_device.hpp"

#include <doctest/doctest.h>

#include "runtime/config/topology.hpp"

using namespace simplescale;

namespace {

LoadedConfig tinyllama() {
  LoadedConfig loaded;
  loaded.config.model.preset = "tinyllama";
  loaded.config.train.precision = DType::bf16;
  loaded.config.cluster.nodes = 1;
  loaded.config.cluster.trainers_per_node = 8;
  loaded.config.cluster.memory_per_trainer_gib = 139;
  return loaded;
}

}  // namespace

TEST_SUITE("auto device") {
  TEST_CASE("auto device: GPUs that can be used make it cuda, and the plan that of GPUs") {
    LoadedConfig loaded = tinyllama();
    REQUIRE(loaded.config.cluster.device == DeviceKind::automatic);
    CHECK(take_gpus(loaded, {}) == "");
    CHECK(loaded.config.cluster.device == DeviceKind::cuda);
    CHECK(loaded.origin.at("cluster.device") == "this host has a GPU");
    const auto topology = plan_topology(loaded.config);
    REQUIRE(topology.ok());
    CHECK(topology->strategy == Strategy::shard_grad_op);
  }

  TEST_CASE("auto device: GPUs that cannot be used are told, and the host's CPUs are taken") {
    LoadedConfig loaded = tinyllama();
    const std::string warning = take_gpus(loaded, Status(Code::unavailable, "no NVIDIA driver"));
    CHECK(warning.starts_with("this host has GPUs, but trains on its CPUs: no NVIDIA driver "));
    CHECK(loaded.config.cluster.device == DeviceKind::automatic);
    CHECK(loaded.origin.empty());
  }
}
