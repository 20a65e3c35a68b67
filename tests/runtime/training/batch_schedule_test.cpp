#include <doctest/doctest.h>

#include "runtime/training/batch_schedule.hpp"

using namespace simplescale;

TEST_SUITE("batch_schedule") {
  TEST_CASE("batch schedule: without a warm-up all steps are equal") {
    const BatchSchedule batch(24);
    CHECK(batch.size(1) == 24);
    CHECK(batch.size(1'000'000) == 24);
    CHECK(batch.samples(0) == 0);
    CHECK(batch.samples(7) == 7 * 24);
    CHECK(batch.steps_within(7 * 24) == 7);
    CHECK(batch.steps_within(7 * 24 + 23) == 7);
    CHECK(batch.steps_to(7 * 24) == 7);
    CHECK(batch.steps_to(7 * 24 + 1) == 8);
    CHECK(batch.runs().size() == 1);
  }

  TEST_CASE("batch schedule: a stage ends with the step that reaches its end") {
    const BatchSchedule::Stage warmup[] = {{4, 10}, {8, 13}, {16, 44}};
    const BatchSchedule batch(32, warmup);
    // 4 4 4 | 8 | 16 16 | 32 ...
    const uint64_t sizes[] = {4, 4, 4, 8, 16, 16, 32, 32, 32};
    uint64_t samples = 0;
    for (uint64_t step = 1; step <= 9; ++step) {
      CAPTURE(step);
      CHECK(batch.size(step) == sizes[step - 1]);
      CHECK(batch.samples(step - 1) == samples);
      for (uint64_t i = 0; i < sizes[step - 1]; ++i) {
        CHECK(batch.steps_within(samples + i) == step - 1);
        CHECK(batch.steps_to(samples + i) == (i == 0 ? step - 1 : step));
      }
      samples += sizes[step - 1];
    }
  }

  TEST_CASE("batch schedule: a stage that ends within the step before it has no step") {
    const BatchSchedule::Stage warmup[] = {{10, 5}, {3, 9}, {4, 11}};
    const BatchSchedule batch(6, warmup);
    CHECK(batch.size(1) == 10);
    CHECK(batch.size(2) == 4);
    CHECK(batch.size(3) == 6);
    CHECK(batch.samples(3) == 20);
    const BatchSchedule::Stage whole[] = {{4, 12}};  // three steps reach its end exactly
    CHECK(BatchSchedule(6, whole).size(3) == 4);
    CHECK(BatchSchedule(6, whole).size(4) == 6);
    const BatchSchedule::Stage same[] = {{6, 12}};
    CHECK(BatchSchedule(6, same) == BatchSchedule(6));
  }
}
