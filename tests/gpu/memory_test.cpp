// Compares the configuration's memory estimate with what the CUDA backend allocates over a fake GPU.
#include <doctest/doctest.h>

#include "model/cuda/cuda_backend.hpp"
#include "runtime/config/topology.hpp"
#include "tests/gpu/fake_gpu.hpp"

using namespace simplescale;

namespace {

/// Bytes of device memory after the forward and backward pass of one micro-batch.
size_t allocated(const ModelShape& shape, const TrainConfig& train) {
  auto made = cuda::make_backend({.shape = shape,
                                  .micro_batch_size = static_cast<int>(train.micro_batch_size),
                                  .precision = train.precision,
                                  .activation_checkpointing = train.activation_checkpointing});
  INFO(made.status().message());
  REQUIRE(made.ok());
  Backend& backend = **made;
  const std::vector<int32_t> tokens(
      static_cast<size_t>(train.micro_batch_size * (shape.block_size + 1)));
  char unit[8] = {};  // parameters and gradients: the fake does not read or write them
  backend.embed(unit, tokens.data());
  const int layers = static_cast<int>(shape.layers);
  for (int layer = 0; layer < layers; ++layer) backend.forward_block(layer, unit);
  backend.head(unit, nullptr, 1, unit, nullptr);
  for (int layer = layers; layer-- > 0;) backend.backward_block(layer, unit, unit);
  return fake_gpu::device_bytes();
}

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE("gpu: the estimate of activations is within 5 % of what the backend allocates") {
    REQUIRE(fake_gpu::device_bytes() == 0);
    fake_gpu::count_only(true);
    for (const std::string preset : {"tinyllama", "llama-3.2-1b", "qwen3-0.6b", "olmo2-1b"})
      for (const DType precision : {DType::bf16, DType::f32})
        for (const bool checkpointing : {false, true})
          for (const int64_t micro_batch_size : {1, 8}) {
            CAPTURE(preset);
            CAPTURE(checkpointing);
            CAPTURE(micro_batch_size);
            Config config;
            config.model.preset = preset;
            config.model.block_size = 2048;
            config.cluster.device = DeviceKind::cuda;
            config.train.precision = precision;
            config.train.activation_checkpointing = checkpointing;
            config.train.micro_batch_size = micro_batch_size;
            const auto shape = model_shape(config);
            REQUIRE(shape.ok());
            const auto estimate = static_cast<double>(
                memory_estimate(config, *shape, Sharding::no_shard, 1, 1, 1).activations);
            const auto bytes = static_cast<double>(allocated(*shape, config.train));
            CHECK(estimate >= bytes);
            CHECK(estimate <= 1.05 * bytes);
          }
    CHECK(fake_gpu::device_bytes() == 0);
    fake_gpu::count_only(false);
  }
}
