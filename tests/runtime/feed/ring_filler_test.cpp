#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>
#include <vector>

#include "runtime/feed/ring_filler.hpp"
#include "tests/must.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/runtime/feed/batch_layout.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

namespace {

constexpr int long_ms = 20'000;
constexpr uint64_t T = 4, B = 2;
constexpr Retries quick{.tries = 2, .first_pause = std::chrono::milliseconds(1)};
constexpr Retries for_ever{.tries = 20, .first_pause = std::chrono::hours(1)};

struct File {
  explicit File(const std::vector<uint16_t>& tokens) { write(tokens); }
  /// Replaces the file, or what is left of it.
  void write(const std::vector<uint16_t>& tokens) const {
    folder.write("a.bin", test::bytes_of(tokens));
  }
  void cut(uint64_t bytes) const { std::filesystem::resize_file(path, bytes); }
  void remove() const { std::filesystem::remove(path); }
  const test::TempFolder folder;
  const std::string path = folder / "a.bin";
};

std::vector<uint16_t> counting(int n) {
  return test::counting<uint16_t>(n);
}

TokenRings make_rings(uint64_t rings, uint64_t slots = 3) {
  auto made =
      must(TokenRings::create("ss-test-filler-" + std::to_string(getpid()), {rings, slots, B, T}));
  return made.take();
}

// The samples that a trainer reads in [step, step + steps), as positions in the data set.
std::vector<uint64_t> read_steps(TokenRings& rings, uint64_t ring, uint64_t generation,
                                 uint64_t step, uint64_t steps, const FillPlan& plan) {
  std::vector<uint64_t> positions;
  const auto [group, shard] = plan.trainers[ring];
  for (uint64_t s = step; s < step + steps; ++s)
    for (uint64_t k = 0; k < plan.layout.shares(s + 1).count(group, shard); ++k) {
      const auto batch = must(rings.acquire(ring, {generation, s, k}, long_ms));
      CHECK(batch->first_sample == first_sample(plan.layout, s + 1, group, shard, k));
      for (uint64_t row = 0; row < B; ++row) {
        const int32_t* tokens = batch->tokens + row * (T + 1);
        for (uint64_t i = 1; i <= T; ++i) REQUIRE(tokens[i] == tokens[0] + static_cast<int32_t>(i));
        positions.push_back(static_cast<uint64_t>(tokens[0]) / T);
      }
      REQUIRE(rings.release(ring).ok());
    }
  return positions;
}

}  // namespace

TEST_SUITE("ring filler") {
  TEST_CASE(
      "ring filler: all layouts read the same samples per step, each exactly once per epoch") {
    const File file(counting(24 * T + 1));
    const auto source = *TokenSource::open(file.path, "auto", 1000);
    const SampleOrder order(source.samples(T), 3, true);
    const BatchSchedule::Stage warmup[] = {{12, 24}};
    const BatchSchedule batch(24, warmup);  // steps 1 and 2 have 12 samples, later ones 24
    struct {
      uint64_t groups, shards;
    } const layouts[] = {{1, 1}, {2, 1}, {3, 2}, {1, 3}, {4, 1}, {2, 2}, {5, 1}, {2, 4}};
    for (const auto [groups, shards] : layouts) {
      FillPlan plan{.generation = 1, .start_step = 1, .layout = {groups, shards, B, batch}};
      for (uint64_t g = 0; g < groups; ++g)
        for (uint64_t s = 0; s < shards; ++s) plan.trainers.push_back({g, s});
      RingFiller filler(make_rings(plan.trainers.size()), source, order);
      REQUIRE(filler.start(plan).ok());
      auto rings = TokenRings::open(filler.name()).take();
      // 24 samples in the data set: the steps lie in epochs 0, 1 and 2.
      for (uint64_t step = 1; step < 4; ++step) {
        std::vector<uint64_t> seen, expected;
        for (uint64_t ring = 0; ring < plan.trainers.size(); ++ring)
          for (uint64_t position : read_steps(rings, ring, 1, step, 1, plan))
            seen.push_back(position);
        for (uint64_t i = batch.samples(step); i < batch.samples(step + 1); ++i)
          expected.push_back(order.position(i));
        std::sort(expected.begin(), expected.end());
        std::sort(seen.begin(), seen.end());
        CHECK(seen == expected);
      }
    }
  }

  TEST_CASE("ring filler: a new plan begins at its step, and the old generation is fenced off") {
    const File file(counting(100 * T + 1));
    const auto source = *TokenSource::open(file.path, "auto", 1000);
    RingFiller filler(make_rings(2), source, SampleOrder(source.samples(T), 3, false));
    auto rings = TokenRings::open(filler.name()).take();
    FillPlan plan{.generation = 4, .layout = equal_steps(1, 2, 2, B), .trainers = {{0, 0}, {0, 1}}};
    REQUIRE(filler.start(plan).ok());
    read_steps(rings, 0, 4, 0, 5, plan);
    REQUIRE(rings.acquire(1, {4, 0, 0}, long_ms).ok());
    plan.generation = 5;
    plan.start_step = 3;
    REQUIRE(filler.start(plan).ok());
    CHECK(read_steps(rings, 0, 5, 3, 2, plan) ==
          std::vector<uint64_t>{24, 25, 28, 29, 32, 33, 36, 37});
    CHECK(rings.acquire(0, {4, 5, 0}, long_ms).status().code() == Code::aborted);
    read_steps(rings, 1, 5, 3, 2, plan);
    // A restarted dataloader actor gives its plan again: the filler continues.
    CHECK(filler.start(plan).ok());
    CHECK(read_steps(rings, 0, 5, 5, 1, plan) == std::vector<uint64_t>{40, 41, 44, 45});
    ++plan.start_step;
    CHECK(filler.start(plan).code() == Code::aborted);  // a different plan for the same generation
    plan.generation = 6;
    plan.layout = equal_steps(1, 2, 2, B + 1);
    CHECK(filler.start(plan).code() == Code::bad_config);
    plan.layout = {2, 1, B, BatchSchedule(B)};  // the second trainer has no sample in any step
    plan.trainers = {{0, 0}, {1, 0}};
    CHECK(filler.start(plan).code() == Code::bad_config);
    // In a batch warm-up a trainer may have none: its ring goes on with its first sample.
    const BatchSchedule::Stage warmup[] = {{B, 3 * B}};  // steps 1 to 3
    plan.layout = {2, 1, B, BatchSchedule(2 * B, warmup)};
    plan.start_step = 1;
    REQUIRE(filler.start(plan).ok());
    CHECK(read_steps(rings, 0, 6, 1, 1, plan) == std::vector<uint64_t>{B, B + 1});
    CHECK(read_steps(rings, 1, 6, 1, 3, plan) == std::vector<uint64_t>{3 * B + B, 3 * B + B + 1});
  }

  TEST_CASE(
      "ring filler: a bad token id closes the rings with its place and never reaches a trainer") {
    auto tokens = counting(40 * T + 1);
    tokens[22] = 2000;
    const File file(tokens);
    const auto source = *TokenSource::open(file.path, "auto", 1000);
    std::promise<Status> reported;
    RingFiller filler(
        make_rings(1), source, SampleOrder(source.samples(T), 3, false),
        [&](const Status& status) { reported.set_value(status); }, for_ever);
    FillPlan plan{.generation = 1, .layout = equal_steps(1, 1, 1, B), .trainers = {{0, 0}}};
    REQUIRE(filler.start(plan).ok());
    const Status status = reported.get_future().get();
    CHECK(status.code() == Code::bad_data);
    CHECK(status.message() ==
          file.path + ": byte 44: token id 2000 is beyond the vocabulary of 1000");
    auto rings = TokenRings::open(filler.name()).take();
    CHECK(rings.acquire(0, {1, 2, 0}, long_ms).status().message() == status.message());
    // The filler works again with another plan, for instance one that begins behind the bad token.
    plan.generation = 2;
    plan.start_step = 3;
    REQUIRE(filler.start(plan).ok());
    CHECK(read_steps(rings, 0, 2, 3, 1, plan) == std::vector<uint64_t>{6, 7});
  }

  TEST_CASE(
      "ring filler: tokens that become readable within the retries continue without an error") {
    const auto tokens = counting(40 * T + 1);
    const File file(tokens);
    const auto source = *TokenSource::open(file.path, "auto", 1000);
    RingFiller filler(make_rings(1), source, SampleOrder(source.samples(T), 3, false),
                      [](const Status& status) { FAIL(status.message()); },
                      {.tries = 20, .first_pause = std::chrono::milliseconds(1)});
    auto rings = TokenRings::open(filler.name()).take();
    FillPlan plan{.generation = 1, .layout = equal_steps(1, 1, 1, B), .trainers = {{0, 0}}};
    file.cut(10);
    REQUIRE(filler.start(plan).ok());
    CHECK(rings.acquire(0, {1, 0, 0}, 10).status().code() == Code::deadline);
    file.remove();
    CHECK(rings.acquire(0, {1, 0, 0}, 10).status().code() == Code::deadline);
    file.write(tokens);  // another file of the same name
    CHECK(read_steps(rings, 0, 1, 0, 5, plan) ==
          std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  }

  TEST_CASE(
      "ring filler: a truncated file is named to the trainers after the retries; a new plan "
      "works") {
    const auto tokens = counting(40 * T + 1);
    const File file(tokens);
    const auto source = *TokenSource::open(file.path, "auto", 1000);
    std::promise<Status> reported;
    RingFiller filler(
        make_rings(1), source, SampleOrder(source.samples(T), 3, false),
        [&](const Status& status) { reported.set_value(status); }, quick);
    auto rings = TokenRings::open(filler.name()).take();
    FillPlan plan{.generation = 1, .layout = equal_steps(1, 1, 1, B), .trainers = {{0, 0}}};
    file.cut(100);
    REQUIRE(filler.start(plan).ok());
    read_steps(rings, 0, 1, 0, 4, plan);  // frees slots until the filler reads beyond the end
    const Status status = reported.get_future().get();
    CHECK(status.code() == Code::io);
    CHECK(status.message() == file.path + ": ends at byte 100");
    CHECK(rings.acquire(0, {1, 4, 0}, long_ms).status().message() == status.message());
    file.write(tokens);
    plan.generation = 2;
    plan.start_step = 6;
    REQUIRE(filler.start(plan).ok());
    CHECK(read_steps(rings, 0, 2, 6, 2, plan) == std::vector<uint64_t>{12, 13, 14, 15});
  }

  TEST_CASE("ring filler: a new plan and stop() end the pause between two retries") {
    const File file(counting(40 * T + 1));
    const auto source = *TokenSource::open(file.path, "auto", 1000);
    RingFiller filler(make_rings(1), source, SampleOrder(source.samples(T), 3, false), {},
                      for_ever);
    auto rings = TokenRings::open(filler.name()).take();
    FillPlan plan{.generation = 1, .layout = equal_steps(1, 1, 1, B), .trainers = {{0, 0}}};
    file.cut(100);
    for (plan.generation = 1; plan.generation < 4; ++plan.generation) {
      REQUIRE(filler.start(plan).ok());
      read_steps(rings, 0, plan.generation, 0, 6, plan);  // all that was filled
      CHECK(rings.acquire(0, {plan.generation, 6, 0}, 20).status().code() == Code::deadline);
    }
    filler.stop();
  }

  TEST_CASE("ring filler: stop() wakes waiting trainers") {
    const File file(counting(40 * T + 1));
    const auto source = *TokenSource::open(file.path, "auto", 1000);
    RingFiller filler(make_rings(1), source, SampleOrder(source.samples(T), 3, true));
    auto rings = TokenRings::open(filler.name()).take();
    Status got;
    std::thread trainer([&] { got = rings.acquire(0, {0, 0, 0}, long_ms).status(); });
    filler.stop();
    trainer.join();
    CHECK(got.code() == Code::aborted);
    CHECK(filler.start({.generation = 1, .layout = equal_steps(1, 1, 1, B)}).code() ==
          Code::aborted);
  }
}
