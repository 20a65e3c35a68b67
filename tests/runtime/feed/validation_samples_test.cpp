#include "runtime/feed/validation_samples.hpp"

#include <doctest/doctest.h>

#include <set>

using namespace simplescale;

TEST_SUITE("validation") {
  TEST_CASE("validation: at the start, at the end, and every validation_every_steps steps") {
    Config config;
    Plan plan;
    plan.max_steps = 25;
    const auto due = [&] {
      std::set<uint64_t> steps;
      for (uint64_t step = 0; step <= 25; ++step)
        if (validation_due(config, plan, step)) steps.insert(step);
      return steps;
    };
    CHECK(due() == std::set<uint64_t>{0, 25});
    config.train.validation_every_steps = 10;
    CHECK(due() == std::set<uint64_t>{0, 10, 20, 25});
  }

  TEST_CASE("validation: tasks are scored likewise, if there are any") {
    Config config;
    Plan plan;
    plan.max_steps = 25;
    config.train.tasks_every_steps = 10;
    CHECK_FALSE(tasks_due(config, plan, 0));
    config.train.tasks = "tasks.jsonl";
    for (uint64_t step = 0; step <= 25; ++step)
      CHECK(tasks_due(config, plan, step) == (step % 10 == 0 || step == 25));
  }

  TEST_CASE("validation: the samples are spread over the whole source, each at most once") {
    for (const uint64_t available : {64ULL, 65ULL, 1'000ULL, 1ULL << 50}) {
      std::set<uint64_t> positions;
      for (uint64_t i = 0; i < 64; ++i) positions.insert(validation_position(i, 64, available));
      CHECK(positions.size() == 64);
      CHECK(*positions.begin() == 0);
      CHECK(*positions.rbegin() >= available - available / 64 - 1);
      CHECK(*positions.rbegin() < available);
    }
  }
}
