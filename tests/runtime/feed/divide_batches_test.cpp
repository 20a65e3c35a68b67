#include "runtime/feed/divide_batches.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

namespace {

/// Steps 1 to 4 of 12 samples, 5 to 6 of 24, then 48; micro-batches of 2 samples.
Plan plan_of(int groups, int shards) {
  Plan plan;
  plan.topology.groups = groups;
  plan.topology.shards = shards;
  plan.micro_batch_size = 2;
  const BatchSchedule::Stage warmup[] = {{12, 48}, {24, 96}};
  plan.batch = BatchSchedule(48, warmup);
  return plan;
}

std::string error(int groups, int shards, uint64_t step) {
  const Status status = check_batches(plan_of(groups, shards), step);
  CHECK((status.ok() || status.code() == Code::bad_config));
  return status.message();
}

}  // namespace

TEST_SUITE("divide batches") {
  TEST_CASE("divide batches: rows may be uneven, but whole, and one for each group at least") {
    for (const auto& [groups, shards] : {std::pair{1, 1}, {4, 1}, {6, 1}, {1, 6}, {2, 3}, {3, 2}})
      CHECK(error(groups, shards, 0) == "");
    CHECK(error(8, 1, 0) ==
          "train.batch_warmup: step 1 has 12 samples, which 8 groups of 1 trainer x 2 samples "
          "cannot divide: use a size that is a multiple of 2 and at least 16, or at most 6 groups");
    CHECK(error(2, 4, 0) ==
          "train.batch_warmup: step 1 has 12 samples, which 2 groups of 4 trainers x 2 samples "
          "cannot divide: use a size that is a multiple of 8 and at least 16, or groups whose "
          "trainers x micro_batch_size divides 12");
  }

  TEST_CASE("divide batches: one group must divide its samples, too") {
    CHECK(error(1, 4, 0).starts_with("train.batch_warmup: step 1 has 12 samples"));
    CHECK(error(1, 4, 4) == "");
  }

  TEST_CASE("divide batches: only steps that are still to come matter") {
    CHECK(error(8, 1, 3).starts_with("train.batch_warmup: step 4 has 12 samples"));
    CHECK(error(8, 1, 3).ends_with("cannot divide: use at most 6 groups"));
    CHECK(error(8, 1, 4) == "");
    CHECK(error(24, 1, 4).starts_with("train.batch_warmup: step 5 has 24 samples"));
    CHECK(error(24, 1, 5).starts_with("train.batch_warmup: step 6 has 24 samples"));
    CHECK(error(24, 1, 6) == "");
    CHECK(error(1, 24, 6) == "");
    CHECK(error(1, 24, 1000) == "");
  }
}
