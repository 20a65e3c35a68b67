// Compares the configuration's memory estimate with what the CUDA backend allocates over a fake GPU.
#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <barrier>

#include "model/cuda/cuda_backend.hpp"
#include "model/engine/engine.hpp"
#include "runtime/config/offload.hpp"
#include "tests/gpu/fake_gpu.hpp"
#include "tests/gpu/fake_ranks.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using namespace simplescale::testing;

namespace {

/// The kernels of attention's passes, in bf16.
struct Kernels {
  const char *forward, *backward;
};

/// The most bytes of device memory after a micro-batch of whole samples and, with data.document_mask,
/// after one of documents.
size_t allocated(const ModelShape& shape, const Config& config, const Kernels& kernels) {
  const int frames = static_cast<int>(std::max<int64_t>(1, config.parallel.wave));
  const TrainConfig& train = config.train;
  const test::TempFolder folder;
  const cuda::AttentionShape attention{.batch = train.micro_batch_size,
                                       .heads = shape.heads,
                                       .kv_heads = shape.kv_heads,
                                       .T = shape.block_size,
                                       .D = shape.head_dim()};
  const auto chosen = cuda::ChosenAlgorithms::of_run(folder.path, 0);
  REQUIRE(chosen->keep(attention.text() + ", forward", kernels.forward).ok());
  REQUIRE(chosen->keep(attention.text() + ", backward", kernels.backward).ok());
  auto made = must(cuda::make_backend({.shape = shape,
                                       .micro_batch_size = static_cast<int>(train.micro_batch_size),
                                       .precision = train.precision,
                                       .recompute = train.activation_checkpointing,
                                       .frames = frames,
                                       .gemm_folder = folder.path,
                                       .fp8 = train.fp8}));
  Backend& backend = **made;
  std::vector<int32_t> tokens(static_cast<size_t>(train.micro_batch_size * (shape.block_size + 1)));
  char unit[8] = {};  // parameters and gradients: the fake does not read or write them
  const int layers = static_cast<int>(shape.layers);
  size_t most = 0;
  for (const bool documents : {false, true}) {
    if (documents && !config.data.document_mask) break;
    if (documents) tokens[1] |= kBeginsDocument;
    for (int frame = 0; frame < frames; ++frame) {
      backend.embed(frame, unit, tokens.data());
      for (int layer = 0; layer < layers; ++layer) backend.forward_block(frame, layer, unit);
    }
    for (int frame = 0; frame < frames; ++frame) {
      backend.head(frame, unit, nullptr, 1, unit, nullptr);
      for (int layer = layers; layer-- > 0;) backend.backward_block(frame, layer, unit, unit);
    }
    most = std::max(most, fake_gpu::device_bytes());
  }
  return most;
}

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE("gpu: the estimate of activations is within 3 % of what the backend allocates") {
    REQUIRE(fake_gpu::device_bytes() == 0);
    fake_gpu::count_only(true);
    for (const std::string preset : {"tinyllama", "llama-3.2-1b", "qwen3-0.6b", "olmo2-1b"})
      for (const DType precision : {DType::bf16, DType::f32})
        for (const Recompute recompute : {Recompute::nothing, Recompute::block, Recompute::mlp})
          for (const auto& [micro_batch_size, documents] :
               {std::pair<int64_t, bool>{1, false}, {8, false}, {8, true}, {64, false}}) {
            const bool fp8 = precision == DType::bf16 && (documents || micro_batch_size == 64);
            INFO("preset = ", preset, ", documents = ", documents,
                 ", recompute = ", static_cast<int>(recompute),
                 ", micro_batch_size = ", micro_batch_size);
            Config config;
            config.model.preset = preset;
            config.model.block_size = 2048;
            config.cluster.device = DeviceKind::cuda;
            config.train.precision = precision;
            config.train.activation_checkpointing = recompute;
            config.train.micro_batch_size = micro_batch_size;
            config.train.fp8 = fp8;
            config.data.document_mask = documents;
            config.parallel.wave = micro_batch_size == 8 ? 4 : 1;
            const auto shape = must(model_shape(config));
            const auto estimate = static_cast<double>(
                memory_estimate(config, *shape, Sharding::no_shard, 1, 1, 1).activations);
            double most = 0;
            for (const Kernels& kernels : {Kernels{"flash", "cuDNN"}, {"cuDNN", "flash"}}) {
              if (most > 0 && precision == DType::f32) continue;  // it takes neither
              const auto bytes = static_cast<double>(allocated(*shape, config, kernels));
              CHECK(estimate >= bytes);
              most = std::max(most, bytes);
            }
            CHECK(estimate <= 1.03 * most);
          }
    CHECK(fake_gpu::device_bytes() == 0);
    fake_gpu::count_only(false);
  }

  TEST_CASE("gpu: the estimate of a trainer is within 3 % of what its step allocates") {
    struct Layout {
      Sharding sharding;
      int groups, shards, leaves;
      bool native_sums = false;
      int wave = 1;
      Offload offload = Offload::none;
    };
    REQUIRE(fake_gpu::device_bytes() == 0);
    fake_gpu::count_only(true);
    for (const auto& [sharding, groups, shards, leaves, native_sums, wave, offload] :
         {Layout{Sharding::no_shard, 1, 1, 1},
          Layout{Sharding::no_shard, 1, 1, 3},
          Layout{Sharding::no_shard, 2, 1, 2},
          Layout{Sharding::full_shard, 2, 2, 4},
          Layout{Sharding::shard_grad_op, 1, 2, 4},
          Layout{Sharding::no_shard, 1, 1, 3, true},
          Layout{Sharding::full_shard, 2, 2, 12, true},
          Layout{Sharding::no_shard, 2, 1, 6, true},
          Layout{Sharding::full_shard, 1, 2, 8, false, 4},
          Layout{Sharding::full_shard, 2, 2, 8, true, 2},
          Layout{Sharding::no_shard, 1, 1, 3, false, 1, Offload::all},
          Layout{Sharding::no_shard, 2, 1, 2, false, 1, Offload::optimizer},
          Layout{Sharding::no_shard, 1, 1, 4, false, 4, Offload::activations},
          Layout{Sharding::no_shard, 1, 1, 1, false, 1, Offload::all},
          Layout{Sharding::no_shard, 1, 1, 8, false, 8, Offload::all},
          Layout{Sharding::no_shard, 2, 1, 4, false, 4, Offload::optimizer},
          Layout{Sharding::full_shard, 1, 3, 3, false, 1, Offload::optimizer},
          Layout{Sharding::full_shard, 2, 2, 8, false, 4, Offload::all},
          Layout{Sharding::full_shard, 1, 2, 8, false, 4, Offload::all},
          Layout{Sharding::shard_grad_op, 2, 2, 4, true, 1, Offload::all}})
      for (const DType precision : {DType::bf16, DType::f32}) {
        INFO("groups = ", groups, ", shards = ", shards, ", leaves = ", leaves);
        Config config;
        config.model.preset = "tinyllama";
        config.model.dim = 256;
        config.model.hidden = 704;
        config.model.layers = 12;
        config.model.heads = 8;
        config.model.vocab = 8192;
        config.model.block_size = 128;
        config.cluster.device = DeviceKind::cuda;
        config.train.precision = precision;
        config.train.micro_batch_size = 1;
        config.train.deterministic = !native_sums;
        config.parallel.wave = wave;
        config.parallel.offload = offload;
        if (offload != Offload::none) config.train.activation_checkpointing = Recompute::block;
        const auto shape = must(model_shape(config));
        size_t bytes = 0, pinned = 0;  // of all trainers
        std::barrier all_made(groups * shards, [&]() noexcept {
          bytes = fake_gpu::device_bytes();
          pinned = fake_gpu::pinned_bytes();
        });
        run_trainers(
            groups, shards,
            [&](int group, int shard, Collective& of_group, Collective& of_shard) {
              EngineOptions o;
              o.shape = *shape;
              o.precision = precision;
              o.leaves = leaves;
              o.sharding = sharding;
              o.wave = wave;
              o.state_in_host = offloads_state(offload);
              auto state = must(TrainState::create(
                  "ss-test-memory-" + std::to_string(getpid()) + "-" +
                      std::to_string(group * shards + shard),
                  1, shard_layout(units_of(o.shape), static_cast<size_t>(shards)).total));
              auto backend =
                  must(cuda::make_backend({.shape = o.shape,
                                           .precision = precision,
                                           .recompute = config.train.activation_checkpointing,
                                           .frames = wave,
                                           .deterministic = !native_sums,
                                           .inputs_in_host = offloads_inputs(offload)}));
              auto engine = must(Engine::create(o, **backend, axes_of(of_group, of_shard), *state));
              REQUIRE((*engine)->initialize().ok());
              const std::vector<int32_t> tokens(static_cast<size_t>(o.shape.block_size + 1));
              // Without memory the values mean nothing: every rank finds so in the vote, by the hash
              // of the state if that is in device memory.
              const auto made = (*engine)->step(
                  1, 1e-3f, {}, [&](int) -> Result<const int32_t*> { return tokens.data(); });
              CHECK(made.ok() == offloads_state(offload));
              all_made.arrive_and_wait();
            },
            native_sums);
        const MemoryEstimate all =
            memory_estimate(config, *shape, sharding, shards, groups, leaves);
        const auto estimate = static_cast<double>(all.total() - all.nccl);
        const double each = static_cast<double>(bytes) / (groups * shards);
        CHECK(estimate >= each);
        CHECK(estimate <= 1.03 * each);
        // Tokens, losses and results are pinned, too.
        const double of_host = static_cast<double>(pinned) / (groups * shards);
        CHECK(static_cast<double>(all.host) <= of_host);
        if (offload != Offload::none)
          CHECK(of_host <= 1.03 * static_cast<double>(all.host) + (1 << 20));
      }
    CHECK(fake_gpu::device_bytes() == 0);
    fake_gpu::count_only(false);
  }
}
