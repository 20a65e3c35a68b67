// What tests of failed steps share: steps in which one rank differs.
#pragma once

#include "tests/model/engine_world.hpp"

namespace simplescale {

inline EngineOptions options_for(int leaves) {
  EngineOptions options;
  options.shape = test_shape();
  options.leaves = leaves;
  options.seed = 9;
  return options;
}

/// Runs `step` on all ranks. Rank `odd` gets its batches from odd_batch, and the usual one if that
/// returns null.
inline std::vector<Status> step_with(
    World& world, uint64_t step, size_t odd,
    const std::function<Result<const int32_t*>(int k, Seat&)>& odd_batch) {
  std::vector<Status> statuses(world.seats.size());
  world.each([&](Seat& seat) {
    const size_t rank = static_cast<size_t>(&seat - world.seats.data());
    std::vector<int32_t> tokens;
    const Engine::Batch batch = [&](int k) -> Result<const int32_t*> {
      if (rank == odd) {
        Result<const int32_t*> special = odd_batch(k, seat);
        if (!special.ok() || *special) return special;
      }
      tokens = test_tokens(world.options, step, seat.engine->leaf(k));
      return static_cast<const int32_t*>(tokens.data());
    };
    statuses[rank] = seat.engine->step(step, 1e-2f / static_cast<float>(step), {}, batch).status();
  });
  return statuses;
}

inline const Result<const int32_t*> kUsual = static_cast<const int32_t*>(nullptr);

/// The digest after `steps` undisturbed steps.
inline std::string undisturbed(const EngineOptions& options, int groups, int shards,
                               uint64_t steps) {
  World world(options, groups, shards);
  world.initialize();
  world.train(1, steps);
  return world.digest();
}

}  // namespace simplescale
