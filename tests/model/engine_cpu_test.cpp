// The engine over the real CPU backend.
#include <cmath>

#include "tests/model/engine_world.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

EngineOptions options_for(DType precision, bool tied) {
  EngineOptions options;
  options.shape = {.dim = 64,
                   .hidden = 96,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .vocab = 211,
                   .block_size = 24};
  options.shape.tie_embeddings = tied;
  options.precision = precision;
  options.micro_batch_size = 2;
  options.leaves = 12;
  return options;
}

MakeBackend cpu_backends(int threads, bool checkpointing) {
  return [=](BackendOptions options) {
    options.threads = threads;
    options.recompute = checkpointing ? Recompute::block : Recompute::nothing;
    Result<std::unique_ptr<Backend>> backend = must(make_cpu_backend(options));
    return backend.take();
  };
}

std::string digest_after(uint64_t steps, World& world) {
  world.initialize();
  world.train(1, steps);
  const std::string digest = world.digest();
  for (int group = 1; group < world.groups; ++group) CHECK(world.digest(group) == digest);
  return digest;
}

}  // namespace

TEST_SUITE("engine_cpu") {
  TEST_CASE(
      "engine on the CPU: equal digests for all layouts, strategies, threads, with and without "
      "checkpointing") {
    for (DType precision : {DType::f32, DType::bf16}) {
      for (bool tied : {false, true}) {
        World alone(options_for(precision, tied), 1, 1, cpu_backends(1, false));
        const std::string expected = digest_after(3, alone);
        struct {
          int groups, shards;
        } const layouts[] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2},
                             {2, 3}, {3, 1}, {3, 2}, {3, 4}, {4, 1}, {4, 3}};
        for (const auto& [groups, shards] : layouts) {
          for (Sharding sharding : {Sharding::full_shard, Sharding::shard_grad_op}) {
            INFO("groups = ", groups, ", shards = ", shards, ", tied = ", tied,
                 ", precision = ", static_cast<int>(precision));
            EngineOptions options = options_for(precision, tied);
            options.sharding = sharding;
            const bool odd = (groups + shards) % 2 == 1;
            World world(options, groups, shards,
                        cpu_backends(odd ? 2 : 1, odd && sharding == Sharding::full_shard));
            CHECK(digest_after(3, world) == expected);
          }
        }
      }
    }
  }

  TEST_CASE("engine on the CPU: a model with every option has equal digests for layouts") {
    for (DType precision : {DType::f32, DType::bf16}) {
      EngineOptions o = options_for(precision, true);
      o.fp8 = precision == DType::bf16;
      o.shape.head_width = 20, o.shape.qkv_bias = true, o.shape.qk_norm = QkNorm::whole;
      o.shape.norm = NormPlacement::post, o.shape.sliding_window = 7;
      o.shape.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 2};
      World alone(o, 1, 1, cpu_backends(1, false));
      const std::string expected = digest_after(3, alone);
      for (const auto& [groups, shards] : {std::pair{1, 3}, {2, 2}, {4, 1}}) {
        World world(o, groups, shards, cpu_backends(2, groups == 2));
        CHECK(digest_after(3, world) == expected);
      }
    }
  }

  TEST_CASE("engine on the CPU: the loss begins near ln V and falls on repeated data") {
    for (DType precision : {DType::f32, DType::bf16}) {
      const EngineOptions options = options_for(precision, false);
      World world(options, 1, 2, cpu_backends(1, false));
      world.initialize();
      std::vector<double> losses(30);
      world.each([&](Seat& seat) {
        std::vector<int32_t> tokens;
        for (uint64_t step = 1; step <= losses.size(); ++step) {
          const Result<StepResult> result =
              seat.engine->step(step, 3e-3f, {}, [&](int k) -> Result<const int32_t*> {
                tokens = test_tokens(options, 1, seat.engine->leaf(k));
                return static_cast<const int32_t*>(tokens.data());
              });
          if (!result.ok()) return;
          if (seat.shard == 0) losses[step - 1] = result->loss;
        }
      });
      CHECK(losses[0] == doctest::Approx(std::log(211)).epsilon(0.02));
      CHECK(losses[29] < losses[0] - 0.7);
      CHECK(losses[29] > 0);
    }
  }

  TEST_CASE("engine on the CPU: the loss of products in fp8 stays near that of fp32 and bf16") {
    // A language in which each token has four successors: no model has a loss below ln 4.
    constexpr int kSteps = 300, kMean = 20;
    const auto last_loss = [&](DType precision, bool fp8) {
      EngineOptions options = options_for(precision, false);
      options.shape.vocab = 64, options.leaves = 4, options.fp8 = fp8;
      World world(options, 1, 1, cpu_backends(2, false));
      world.initialize();
      Seat& seat = world.seats[0];
      double sum = 0;
      std::vector<int32_t> tokens;
      for (uint64_t step = 1; step <= kSteps; ++step) {
        const Result<StepResult> result =
            seat.engine->step(step, 3e-3f, {}, [&](int k) -> Result<const int32_t*> {
              tokens = test_tokens(options, step, seat.engine->leaf(k));
              for (size_t i = 1; i < tokens.size(); ++i)
                tokens[i] = (5 * tokens[i - 1] + tokens[i] % 4) % 64;
              return static_cast<const int32_t*>(tokens.data());
            });
        REQUIRE(result.ok());
        if (step > kSteps - kMean) sum += result->loss / kMean;
      }
      return sum;
    };
    const double fp32 = last_loss(DType::f32, false), bf16 = last_loss(DType::bf16, false);
    const double fp8 = last_loss(DType::bf16, true), of_fp32 = last_loss(DType::f32, true);
    MESSAGE("fp32 " << fp32 << ", bf16 " << bf16 << ", fp8 in bf16 " << fp8 << ", fp8 in fp32 "
                    << of_fp32);
    CHECK(fp32 < std::log(4) + 0.15);
    CHECK(fp8 == doctest::Approx(bf16).epsilon(0.005));
    CHECK(of_fp32 == doctest::Approx(fp32).epsilon(0.005));
  }
}
