// Collectives and the engine on one GPU, loaded as a trainer loads them: NCCL with communicators of
// one rank, and the staged transport through host memory.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "model/engine/engine.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/training/state_hash.hpp"
#include "tests/must.hpp"
#include "transport/nccl/device_plane.hpp"

using namespace simplescale;

namespace {

std::unique_ptr<DataPlane> host_plane() {
  static int count = 0;
  Result<std::unique_ptr<DataPlane>> plane = must(DataPlane::create(
      {.shm_prefix = "ss-test-gpu-" + std::to_string(getpid()) + "-" + std::to_string(count++),
       .arena_bytes = size_t{64} << 20}));
  return plane.take();
}

std::unique_ptr<DataPlane> device_plane(DeviceTransport transport) {
  Result<DevicePlaneOptions> device = must(choose_device(0, 1));
  device->transport = transport;
  Result<std::unique_ptr<DataPlane>> plane = must(make_device_plane(host_plane(), *device));
  return plane.take();
}

std::unique_ptr<Collective> join(DataPlane& plane, const std::string& name, uint64_t generation) {
  return must(plane.join({.generation = generation,
                          .name = name,
                          .rank = 0,
                          .members = {plane.address()},
                          .timeout_ms = 60'000}))
      .take();
}

struct Trained {
  std::vector<double> losses;
  std::vector<Hash128> states;  // state_hash() after every step
};

/// Trains one trainer over `plane`; null: on the CPU.
Trained train(std::unique_ptr<DataPlane> plane, DType precision, uint64_t steps) {
  EngineOptions options;
  options.shape = {.dim = 128,
                   .hidden = 352,
                   .layers = 4,
                   .heads = 4,
                   .kv_heads = 2,
                   .vocab = 4096,
                   .block_size = 128};
  options.precision = precision;
  options.micro_batch_size = 2;
  options.leaves = 3;
  BackendOptions backend_options;
  backend_options.shape = options.shape;
  backend_options.micro_batch_size = options.micro_batch_size;
  backend_options.precision = precision;
  const bool cpu = plane == nullptr;
  if (cpu) plane = host_plane();
  const std::unique_ptr<Backend> backend =
      must(cpu ? make_cpu_backend(backend_options) : make_cuda_backend(backend_options)).take();
  const std::unique_ptr<Collective> shard = join(*plane, "shard", 1),
                                    replicate = join(*plane, "replicate", 1);
  static int count = 0;
  auto state = must(TrainState::create(
      "ss-test-gpu-state-" + std::to_string(getpid()) + "-" + std::to_string(count++), 1,
      shard_layout(units_of(options.shape), 1).total));
  const std::span<float> first = state->side(0).params;
  auto engine = must(Engine::create(options, *backend, axes_of(*shard, *replicate), *state));
  REQUIRE((*engine)->initialize().ok());
  Trained trained;
  std::vector<int32_t> tokens(2 * 129);
  for (uint64_t step = 1; step <= steps; ++step) {
    const auto result = (*engine)->step(step, 1e-3f, {}, [&](int k) -> Result<const int32_t*> {
      for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] =
            static_cast<int32_t>((step % 4 * 977 + static_cast<uint64_t>(k) * 31 + i * i) % 4096);
      return static_cast<const int32_t*>(tokens.data());
    });
    INFO(result.status().message());
    REQUIRE(result.ok());
    trained.losses.push_back(result->loss);
    REQUIRE((*engine)->wait_for_commit().ok());
    CHECK(state->step() == step);
    trained.states.push_back(state_hash(state->committed()));
    CHECK(state->committed_hash() == trained.states.back());  // computed on the device
  }
  engine->reset();
  backend->unpin_host(first.data());
  return trained;
}

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE(
      "gpu: an engine's losses are near the CPU's; its bits are the same by NCCL and staged") {
    for (const DType precision : {DType::f32, DType::bf16}) {
      const Trained cpu = train(nullptr, precision, 20);
      const Trained nccl = train(device_plane(DeviceTransport::nccl), precision, 20);
      const Trained again = train(device_plane(DeviceTransport::nccl), precision, 20);
      const Trained staged = train(device_plane(DeviceTransport::staged), precision, 20);
      for (size_t i = 0; i < cpu.losses.size(); ++i) {
        CAPTURE(i);
        CHECK(std::abs(cpu.losses[i] - nccl.losses[i]) < (precision == DType::f32 ? 1e-3 : 3e-2));
      }
      CHECK(nccl.losses == again.losses);
      CHECK(nccl.states == again.states);
      CHECK(nccl.states == staged.states);
    }
  }

  TEST_CASE("gpu: NCCL is prepared; then 100 times a communicator of one rank is made and ended") {
    using Clock = std::chrono::steady_clock;
    const auto plane = device_plane(DeviceTransport::nccl);
    const auto ms_since = [](Clock::time_point begun) {
      return std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
    };
    const auto preparing = Clock::now();
    const Status prepared = prepare_nccl(0, 60'000).get();
    const double prepare_ms = ms_since(preparing);
    INFO(prepared.message());
    CHECK(prepared.ok());
    size_t free_early = 0, free_late = 0, total = 0;
    double first_ms = 0, make_ms = 0, end_ms[2] = {};  // closed, aborted
    for (uint64_t generation = 1; generation <= 100; ++generation) {
      const auto begun = Clock::now();
      std::unique_ptr<Collective> one = join(*plane, "one", generation);
      make_ms += ms_since(begun);
      if (generation == 1) first_ms = make_ms;
      const auto memory = must(one->allocate(1 << 20));
      REQUIRE(one->all_gather(*memory, *memory, 1 << 18, DType::f32)->wait().ok());
      REQUIRE(one->all_reduce(*memory, 1 << 18, DType::f32)->wait().ok());
      REQUIRE(one->broadcast(*memory, 1 << 18, DType::f32, 0)->wait().ok());
      const auto ending = Clock::now();
      if (generation % 2 == 0) {
        plane->abort(generation, "a test");
        CHECK(one->all_reduce(*memory, 4, DType::f32)->wait().code() == Code::aborted);
      }
      one.reset();
      end_ms[generation % 2 == 0] += ms_since(ending);
      if (generation == 20) REQUIRE(cudaMemGetInfo(&free_early, &total) == cudaSuccess);
    }
    REQUIRE(cudaMemGetInfo(&free_late, &total) == cudaSuccess);
    CHECK(free_late + (size_t{64} << 20) > free_early);
    std::printf(
        "{\"what\": \"nccl_one_rank\", \"prepare_ms\": %.1f, \"first_ms\": %.1f, "
        "\"make_ms\": %.1f, \"close_ms\": %.1f, \"abort_ms\": %.1f, \"grown_mib\": %.1f}\n",
        prepare_ms, first_ms, make_ms / 100, end_ms[0] / 50, end_ms[1] / 50,
        (static_cast<double>(free_early) - static_cast<double>(free_late)) / (1 << 20));
  }
}
