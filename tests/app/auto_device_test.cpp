// What a start decides on a host with GPUs: cluster.device = "auto", and the memory of a trainer.
#include "app/launch/auto_device.hpp"

#include <doctest/doctest.h>

#include "runtime/config/topology.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

constexpr uint64_t kGib = uint64_t{1} << 30;

LoadedConfig tinyllama() {
  LoadedConfig loaded;
  loaded.config.model.preset = "tinyllama";
  loaded.config.train.precision = DType::bf16;
  loaded.config.cluster.nodes = 2;
  loaded.config.cluster.trainers_per_node = 8;
  loaded.config.parallel.strategy = Strategy::automatic;
  return loaded;
}

DevicePlaneOptions gpu_of(double gib) {
  DevicePlaneOptions gpu;
  gpu.memory_bytes = static_cast<uint64_t>(gib * static_cast<double>(kGib));
  return gpu;
}

}  // namespace

TEST_SUITE("auto device") {
  TEST_CASE("auto device: GPUs that can be used make it cuda, and the plan that of GPUs") {
    LoadedConfig loaded = tinyllama();
    REQUIRE(loaded.config.cluster.device == DeviceKind::automatic);
    CHECK(take_gpus(loaded, gpu_of(139.8)) == "");
    CHECK(loaded.config.cluster.device == DeviceKind::cuda);
    CHECK(loaded.origin.at("cluster.device") == "this host has a GPU");
    CHECK(loaded.config.cluster.memory_per_trainer_gib == doctest::Approx(125.8));
    CHECK(loaded.origin.at("cluster.memory_per_trainer_gib") == "90 % of this host's GPU");
    const auto topology = must(plan_topology(loaded.config));
    CHECK(topology->strategy == Strategy::shard_grad_op);
    CHECK(topology->group_nodes == 1);
  }

  TEST_CASE("auto device: GPUs that cannot be used are told, and the host's CPUs are taken") {
    LoadedConfig loaded = tinyllama();
    const Status none(Code::unavailable, "no NVIDIA driver");
    const std::string warning = take_gpus(loaded, none);
    CHECK(warning.starts_with("this host has GPUs, but trains on its CPUs: no NVIDIA driver "));
    CHECK(loaded.config.cluster.device == DeviceKind::automatic);
    CHECK(loaded.origin.empty());
    loaded.config.cluster.device = DeviceKind::cuda;  // its trainers refuse to start
    CHECK(take_gpus(loaded, none) == "");
  }

  TEST_CASE("auto device: GPUs that cannot compute the model are refused, and not taken by auto") {
    LoadedConfig loaded = tinyllama();
    loaded.config.train.fp8 = true;
    DevicePlaneOptions gpu = gpu_of(80);
    gpu.capability = 90;
    CHECK(check_gpu(loaded.config, gpu).ok());
    gpu.capability = 80;
    CHECK(check_gpu(loaded.config, gpu).message().ends_with("and this one is sm_80"));
    CHECK(has(take_gpus(loaded, gpu), "trains on its CPUs: train.fp8: only Hopper"));
    loaded.config.train.fp8 = false;
    loaded.config.model.head_dim = 12;
    CHECK(check_gpu(loaded.config, gpu).message().starts_with("heads of 12 elements: on a GPU "));
  }

  TEST_CASE("auto device: a GPU's memory counts only for strategy = \"auto\"") {
    LoadedConfig loaded = tinyllama();
    loaded.config.cluster.device = DeviceKind::cuda;
    loaded.config.parallel.strategy = Strategy::full_shard;
    CHECK(take_gpus(loaded, gpu_of(139.8)) == "");
    CHECK(loaded.config.cluster.memory_per_trainer_gib == 0);
    CHECK(loaded.origin.empty());
  }

  TEST_CASE("auto device: memory that is set stays, unless the GPU has less") {
    for (const bool larger : {false, true}) {
      LoadedConfig loaded = tinyllama();
      loaded.config.cluster.memory_per_trainer_gib = larger ? 81 : 79;
      CHECK(take_gpus(loaded, gpu_of(80)) == "");
      CHECK(loaded.config.cluster.memory_per_trainer_gib == (larger ? 72 : 79));
    }
  }

  TEST_CASE("auto device: a model that may not fit is told, and starts as without the memory") {
    LoadedConfig loaded = tinyllama();
    loaded.config.model.preset = "llama3-8b";
    REQUIRE(plan_topology(loaded.config).ok());
    const std::string warning = take_gpus(loaded, gpu_of(8));
    CHECK(
        warning.starts_with("the model may not fit this host's GPUs: cluster.memory_per_trainer_"));
    CHECK(loaded.config.cluster.device == DeviceKind::cuda);
    CHECK(loaded.config.cluster.memory_per_trainer_gib == 0);
    const auto topology = must(plan_topology(loaded.config));
    CHECK(topology->group_nodes == 2);
  }
}
