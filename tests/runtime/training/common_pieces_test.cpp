// Which shards of two cuts of a state have elements in common.
#include <doctest/doctest.h>

#include "runtime/training/model_shape.hpp"

using namespace simplescale;

namespace {
bool shards_overlap(const std::vector<Unit>& units, size_t shards, size_t shard, size_t others,
                    size_t other) {
  return !common_pieces(units, shards, shard, others, other).empty();
}
}  // namespace

TEST_CASE("shards of two cuts overlap if they have elements of a unit in common, not padding") {
  const std::vector<Unit> units = {{"layers.0", {}, 6 * kShardAlign}};
  // Of 2: blocks 0-2, 3-5. Of 3: blocks 0-1, 2-3, 4-5.
  CHECK(shards_overlap(units, 2, 0, 3, 0));
  CHECK(shards_overlap(units, 2, 0, 3, 1));
  CHECK_FALSE(shards_overlap(units, 2, 0, 3, 2));
  CHECK_FALSE(shards_overlap(units, 2, 1, 3, 0));
  CHECK(shards_overlap(units, 3, 1, 2, 1));
  CHECK(shards_overlap(units, 1, 0, 3, 2));
  // One block: all other shards are padding.
  const std::vector<Unit> small = {{"head", {}, 10}};
  CHECK(shards_overlap(small, 2, 0, 1, 0));
  CHECK_FALSE(shards_overlap(small, 2, 1, 1, 0));
  CHECK_FALSE(shards_overlap(small, 2, 1, 3, 2));
  const std::vector<Unit> both = {units[0], small[0]};
  CHECK(shards_overlap(both, 2, 1, 1, 0));
  // In the second unit of both shards.
  CHECK(common_pieces(both, 2, 0, 3, 1) == std::vector<Piece>{{2 * kShardAlign, 0, kShardAlign}});
  CHECK(
      common_pieces(both, 1, 0, 2, 0) ==
      std::vector<Piece>{{0, 0, 3 * kShardAlign}, {6 * kShardAlign, 3 * kShardAlign, kShardAlign}});
}
