// The state of a run on a GPU: the average of the weights and moments in bf16 are updated in device
// memory as on the CPU, with the same bits on every layout, and arrive in host memory.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "model/cuda/cuda_backend.hpp"
#include "model/engine/engine.hpp"
#include "tests/model/thread_collective.hpp"
#include "transport/nccl/communicator.hpp"

using namespace simplescale;
using nccl::NcclCommunicator;

namespace {

constexpr float kDecay = 0.75f;
constexpr int kLeaves = 4;
constexpr uint64_t kSteps = 3;

std::unique_ptr<NcclCommunicator> communicator(const std::string& name, Collective& host) {
  auto stream = nccl::Stream::create(host.rank());
  REQUIRE(stream.ok());
  auto made = std::make_unique<NcclCommunicator>(NcclCommunicator::Spec{name, 1, 60'000},
                                                 std::make_unique<ForwardingCollective>(host),
                                                 stream.take(), [](NcclCommunicator*) {});
  REQUIRE(made->connect().ok());
  return made;
}

EngineOptions options_for(int shards, Optimizer optimizer) {
  EngineOptions options;
  options.shape = {.dim = 32,
                   .hidden = 64,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .vocab = 96,
                   .block_size = 8};
  options.rows = kLeaves / shards;
  options.optimizer = optimizer;
  options.moments = DType::bf16;
  options.ema_decay = kDecay;
  return options;
}

/// The parts of a whole model, unit by unit and without padding: fp32, moments widened.
using Whole = std::vector<std::vector<float>>;

/// Adds a rank's elements of its shard to `whole`, which has room for all elements.
void add_shard(Whole& whole, const TrainState::Side& side, const ModelShape& shape, size_t shards,
               size_t shard) {
  const std::vector<Unit> units = units_of(shape);
  const ShardLayout layout = shard_layout(units, shards), one = shard_layout(units, 1);
  for (const StateKind kind : kStateKinds) {
    const std::span<float> part = side.parts()[static_cast<size_t>(kind)];
    std::vector<float>& all = whole[static_cast<size_t>(kind)];
    for (size_t u = 0; u < units.size(); ++u)
      for (size_t i = 0; i < layout.count[u]; ++i) {
        const size_t element = shard * layout.count[u] + i, at = layout.offset[u] + i;
        if (element >= units[u].count) continue;
        all[one.offset[u] + element] = side.format().dtype(kind) == DType::f32
                                           ? part[at]
                                           : bf16_to_f32(bf16_elements(part)[at]);
      }
  }
}

/// The state after each step of a run on fake GPUs, read from the copies in host memory.
std::vector<Whole> states_of(int groups, int shards, Optimizer optimizer) {
  const EngineOptions o = options_for(shards, optimizer);
  const size_t elements = shard_layout(units_of(o.shape), 1).total;
  std::vector<Whole> states(kSteps + 1, Whole(4, std::vector<float>(elements)));
  std::vector<std::unique_ptr<ThreadCommunicator>> shard_wise, replicate_wise;
  for (int i = 0; i < groups; ++i)
    shard_wise.push_back(std::make_unique<ThreadCommunicator>(shards, 60'000));
  for (int i = 0; i < shards; ++i)
    replicate_wise.push_back(std::make_unique<ThreadCommunicator>(groups, 60'000));
  std::vector<std::thread> trainers;
  for (int t = 0; t < groups * shards; ++t)
    trainers.emplace_back([&, t] {
      const int group = t / shards, shard = t % shards;
      auto of_group = communicator("shard", shard_wise[static_cast<size_t>(group)]->rank(shard));
      auto of_shard =
          communicator("replicate", replicate_wise[static_cast<size_t>(shard)]->rank(group));
      const std::string name =
          "ss-test-gpu-state-" + std::to_string(getpid()) + "-" + std::to_string(t);
      auto state = TrainState::create(
          name, 1, shard_layout(units_of(o.shape), static_cast<size_t>(shards)).total,
          state_format(o));
      REQUIRE(state.ok());
      auto backend = cuda::make_backend({.shape = o.shape, .muon = optimizer == Optimizer::muon});
      REQUIRE(backend.ok());
      auto engine = Engine::create(o, **backend, *of_group, *of_shard, *state);
      INFO(engine.status().message());
      REQUIRE(engine.ok());
      REQUIRE((*engine)->initialize().ok());
      std::vector<int32_t> tokens(static_cast<size_t>(o.shape.block_size + 1));
      for (uint64_t step = 0; step <= kSteps; ++step) {
        if (step > 0) {
          const auto result =
              (*engine)->step(step, 1e-3f, {}, [&](int k) -> Result<const int32_t*> {
                for (size_t i = 0; i < tokens.size(); ++i)
                  tokens[i] = static_cast<int32_t>((step + (*engine)->leaf(k) * 7 + i * i) % 96);
                return tokens.data();
              });
          INFO(result.status().message());
          REQUIRE(result.ok());
          REQUIRE((*engine)->wait_for_commit().ok());
          CHECK(state_hash(state->committed()) == state->committed_hash());
        }
        if (group == 0)  // the shards write different elements
          add_shard(states[step], state->committed(), o.shape, static_cast<size_t>(shards),
                    static_cast<size_t>(shard));
      }
    });
  for (std::thread& trainer : trainers) trainer.join();
  return states;
}

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE("gpu: average and moments in bf16 have the same bits on every layout") {
    for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::muon}) {
      const std::vector<Whole> states = states_of(1, 1, optimizer);
      const auto of = [&](uint64_t step, StateKind kind) -> const std::vector<float>& {
        return states[step][static_cast<size_t>(kind)];
      };
      std::vector<float> mean = of(0, StateKind::params);
      CHECK(mean == of(0, StateKind::ema));
      for (uint64_t step = 1; step <= kSteps; ++step) {
        const std::vector<float>& params = of(step, StateKind::params);
        CHECK(params != of(step - 1, StateKind::params));
        for (size_t i = 0; i < mean.size(); ++i) {
          volatile float moved = (params[i] - mean[i]) * (1 - kDecay);
          mean[i] += moved;
        }
        CHECK(mean == of(step, StateKind::ema));
        for (const StateKind kind : {StateKind::exp_avg, StateKind::exp_avg_sq})
          CHECK(std::ranges::count(of(step, kind), 0.0f) <
                static_cast<ptrdiff_t>(mean.size()) * 9 / 10);
      }
      CHECK(states_of(2, 1, optimizer) == states);
      CHECK(states_of(2, 2, optimizer) == states);
    }
  }
}
