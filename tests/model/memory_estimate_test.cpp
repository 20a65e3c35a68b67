// Compares the configuration's memory estimate with what the engine allocates.
#include <doctest/doctest.h>

#include <algorithm>

#include "model/program/buffer_plan.hpp"
#include "runtime/config/topology.hpp"
#include "tests/long.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

struct Layout {
  int groups, shards, leaves;
};

}  // namespace

TEST_SUITE("memory_estimate") {
  TEST_CASE("memory: the estimate is never below the engine's buffers, for any preset and layout") {
    std::vector<Layout> layouts;
    using Counts = std::vector<int>;
    const bool all = test::long_tests();
    for (int groups : all ? Counts{1, 2, 3, 8} : Counts{1, 3, 8})
      for (int shards : all ? Counts{1, 2, 3, 8, 32} : Counts{1, 3, 32})
        for (int turns : all ? Counts{groups, 2 * groups, 3 * groups + 1, 8 * groups, 13 * groups}
                             : Counts{groups, 3 * groups + 1, 13 * groups})
          layouts.push_back({groups, shards, turns * shards - (turns % 2 == 0 ? 1 : 0)});
    for (const std::string& preset : model_presets()) {
      CAPTURE(preset);
      for (const bool tied : {false, true}) {
        for (const DType precision : {DType::f32, DType::bf16}) {
          for (const Layout& layout : layouts) {
            INFO("layout.groups = ", layout.groups, ", layout.shards = ", layout.shards,
                 ", layout.leaves = ", layout.leaves);
            for (const Sharding sharding :
                 {Sharding::full_shard, Sharding::shard_grad_op, Sharding::no_shard}) {
              if ((sharding == Sharding::no_shard) != (layout.shards == 1)) continue;
              for (const bool host : {true, false}) {
                Config config;
                if (tied) config.train.optimizer = Optimizer::muon;
                if (tied) config.train.ema_decay = 0.999;
                if (layout.shards > 1) config.train.moments_precision = DType::bf16;
                config.model.preset = preset;
                config.train.precision = precision;
                config.cluster.device = host ? DeviceKind::cpu : DeviceKind::cuda;
                auto shape = must(model_shape(config));
                shape->tie_embeddings = tied;
                EngineOptions options;
                options.shape = *shape;
                options.precision = precision;
                options.sharding = sharding;
                options.leaves = layout.leaves;
                options.optimizer = config.train.optimizer;
                options.ema_decay = config.train.ema_decay;
                options.moments = config.train.moments_precision;
                const auto shards = static_cast<size_t>(layout.shards);
                const size_t own = shard_layout(units_of(*shape), shards).total;
                size_t taken = 0;  // the most for any number of groups, as arena_bytes()
                for (size_t groups = 1; groups <= static_cast<size_t>(layout.groups); ++groups)
                  taken = std::max(
                      taken,
                      buffer_plan(options, groups, shards, host, false).bytes(precision, own));
                const MemoryEstimate estimate = memory_estimate(
                    config, *shape, sharding, layout.shards, layout.groups, layout.leaves);
                // With device memory the master state is one of the engine's buffers.
                CHECK(estimate.parameters + estimate.gradients + (host ? 0 : estimate.state) >=
                      taken);
              }
            }
          }
        }
      }
    }
  }
}
