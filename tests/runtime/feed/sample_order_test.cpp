#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

#include "runtime/feed/sample_order.hpp"

using namespace simplescale;

TEST_SUITE("sample order") {
  TEST_CASE("sample order: every epoch visits every position exactly once") {
    for (uint64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 64, 65, 127, 255, 256, 257, 1000, 4099, 65537}) {
      const SampleOrder order(n, 7, true);
      for (uint64_t epoch : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 20}) {
        std::vector<bool> seen(n);
        for (uint64_t i = 0; i < n; ++i) {
          const uint64_t position = order.position(epoch * n + i);
          REQUIRE(position < n);
          REQUIRE_FALSE(seen[position]);
          seen[position] = true;
        }
      }
    }
  }

  TEST_CASE("sample order: without shuffle every epoch is in file order") {
    const SampleOrder order(10, 7, false);
    for (uint64_t i = 0; i < 35; ++i) CHECK(order.position(i) == i % 10);
    CHECK(order.epoch(29) == 2);
  }

  TEST_CASE(
      "sample order: skipped samples are left out, and no other sample changes its position") {
    const SampleOrder all(100, 7, true), some(100, 7, true, *SkippedSamples::parse("3-5,90"));
    for (uint64_t place = 0; place < 3; ++place)
      CHECK(some.position_at(place) == all.position(place));
    for (uint64_t place = 3; place < 87; ++place)
      CHECK(some.position_at(place) == all.position(place + 3));
    CHECK(some.position_at(87) == all.position(91));
  }

  TEST_CASE("sample order: epochs and seeds give different orders, the same seed the same") {
    const uint64_t n = 1000;
    const SampleOrder a(n, 1, true), again(n, 1, true), b(n, 2, true);
    int same_epoch = 0, same_seed = 0;
    for (uint64_t i = 0; i < n; ++i) {
      CHECK(a.position(i) == again.position(i));
      same_epoch += a.position(i) == a.position(n + i);
      same_seed += a.position(i) == b.position(i);
    }
    CHECK(same_epoch < 10);  // about one is expected
    CHECK(same_seed < 10);
  }

  TEST_CASE("sample order: positions are uniform and neighbours uncorrelated") {
    const uint64_t n = 100'003, bins = 50;
    const SampleOrder order(n, 1234, true);
    // The first tenth of an epoch is spread evenly over the file.
    std::vector<double> counts(bins);
    const uint64_t taken = n / 10;
    for (uint64_t i = 0; i < taken; ++i) counts[order.position(i) * bins / n] += 1;
    const double expected = static_cast<double>(taken) / bins;
    double chi_squared = 0;
    for (double count : counts) chi_squared += (count - expected) * (count - expected) / expected;
    CHECK(chi_squared < 100);  // 49 degrees of freedom: 85 at p = 0.001
    // Correlation of neighbouring positions.
    double sum = 0;
    const double mean = (static_cast<double>(n) - 1) / 2;
    const double variance = static_cast<double>(n) * static_cast<double>(n) / 12;
    for (uint64_t i = 0; i + 1 < n; ++i)
      sum += (static_cast<double>(order.position(i)) - mean) *
             (static_cast<double>(order.position(i + 1)) - mean);
    CHECK(std::abs(sum / static_cast<double>(n) / variance) < 0.015);
    // Over many epochs a sample comes at every place of the order.
    const SampleOrder few(5, 99, true);
    std::vector<int> places(5);
    for (uint64_t epoch = 0; epoch < 5000; ++epoch) ++places[few.position(epoch * 5)];
    for (int count : places) CHECK(std::abs(count - 1000) < 150);
  }

  TEST_CASE("sample order: a step's samples are the same for every layout") {
    const BatchSchedule::Stage warmup[] = {{24, 100}};  // five steps of 24, then 48
    const BatchSchedule batch(48, warmup);
    const BatchLayout layouts[] = {{1, 1, 2, batch}, {2, 2, 2, batch}, {3, 4, 2, batch},
                                   {4, 1, 2, batch}, {1, 3, 2, batch}, {5, 1, 2, batch},
                                   {4, 2, 2, batch}, {2, 4, 2, batch}, {3, 5, 2, batch}};
    struct {
      uint64_t step, first, leaves;
    } const steps[] = {{1, 0, 12}, {5, 4 * 24, 12}, {6, 5 * 24, 24}, {8, 5 * 24 + 2 * 48, 24}};
    for (const BatchLayout& layout : layouts)
      for (const auto& [step, first, leaves] : steps) {
        const Shares& shares = layout.shares(step);
        CHECK(shares == Shares::even(leaves, layout.groups(), layout.shards()));
        std::set<uint64_t> samples;
        uint64_t micro_batches = 0;
        for (uint64_t g = 0; g < layout.groups(); ++g)
          for (uint64_t s = 0; s < layout.shards(); ++s)
            for (uint64_t k = 0; k < shares.count(g, s); ++k, ++micro_batches) {
              const uint64_t at = first_sample(layout, step, g, s, k);
              CHECK(at == first + shares.leaf(g, s, k) * 2);
              for (uint64_t b = 0; b < 2; ++b) samples.insert(at + b);
            }
        CHECK(micro_batches == leaves);
        CHECK(samples.size() == 2 * leaves);
        CHECK(*samples.begin() == first);
        CHECK(*samples.rbegin() == first + 2 * leaves - 1);
      }
  }
}
