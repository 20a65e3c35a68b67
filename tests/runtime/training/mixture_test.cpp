#include "runtime/training/mixture.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>

#include "tests/must.hpp"

using namespace simplescale;

namespace {

uint64_t test_seed() {
  const char* given = std::getenv("SIMPLESCALE_TEST_SEED");
  return given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

std::vector<uint64_t> whole(std::vector<double> weights) {
  return must(whole_weights(weights)).take();
}

Mixture mixture_of(std::vector<Mixture::Stage> stages) {
  Mixture mixture;
  for (size_t i = 0; i < stages.front().weights.size(); ++i)
    mixture.names.push_back("s" + std::to_string(i));
  mixture.stages = std::move(stages);
  return mixture;
}

/// Random weights without a common divisor; some are 0, some much larger than others.
std::vector<uint64_t> random_weights(std::mt19937_64& random, size_t sources) {
  std::vector<uint64_t> weights(sources, 0);
  for (uint64_t& weight : weights)
    if (random() % 5 > 0) weight = 1 + random() % (random() % 4 == 0 ? 500 : 9);
  if (std::accumulate(weights.begin(), weights.end(), uint64_t{0}) == 0) weights[0] = 1;
  uint64_t divisor = 0;
  for (const uint64_t weight : weights) divisor = std::gcd(divisor, weight);
  for (uint64_t& weight : weights) weight /= divisor;
  return weights;
}

/// Checks MIX-1, MIX-2, at() and count() of the first `samples` samples against counting.
void check_by_counting(const Mixture& mixture, uint64_t samples) {
  const MixtureSchedule schedule(mixture);
  std::vector<uint64_t> counts(mixture.names.size(), 0), at_stage = counts;
  size_t stage = 0;
  for (uint64_t sample = 0; sample < samples; ++sample) {
    if (stage + 1 < mixture.stages.size() && sample == mixture.stages[stage + 1].first) {
      ++stage;
      at_stage = counts;
    }
    const auto [source, rank] = schedule.at(sample);
    REQUIRE(rank == counts[source]);  // MIX-2
    ++counts[source];
    const Mixture::Stage& now = mixture.stages[stage];
    const auto made = static_cast<int64_t>(sample + 1 - now.first);
    const auto period = static_cast<int64_t>(now.period());
    for (size_t i = 0; i < counts.size(); ++i) {
      REQUIRE(schedule.count(i, sample + 1) == counts[i]);
      // MIX-1: |count - made * weight / period| < 1, in whole numbers.
      const auto count = static_cast<int64_t>(counts[i] - at_stage[i]);
      REQUIRE(std::abs(count * period - made * static_cast<int64_t>(now.weights[i])) < period);
    }
  }
}

}  // namespace

TEST_SUITE("mixture") {
  TEST_CASE("mixture: decimals become whole numbers exactly as they are written") {
    CHECK(whole({0.7, 0.2, 0.1}) == std::vector<uint64_t>{7, 2, 1});
    CHECK(whole({1, 1}) == std::vector<uint64_t>{1, 1});
    CHECK(whole({3000, 1e3}) == std::vector<uint64_t>{3, 1});
    CHECK(whole({0.333, 0.667}) == std::vector<uint64_t>{333, 667});
    CHECK(whole({1.0 / 3, 1.0 / 3, 1.0 / 3}) == std::vector<uint64_t>{1, 1, 1});
    CHECK(whole({1e-5, 0, 0.5}) == std::vector<uint64_t>{1, 0, 50000});
    CHECK(whole({5e300}) == std::vector<uint64_t>{1});
    CHECK(whole({5e-324}) == std::vector<uint64_t>{1});
    const double nan = std::numeric_limits<double>::quiet_NaN(), inf = 1 / 0.0;
    for (const std::vector<double>& wrong : {std::vector<double>{},
                                             {0.0, 0.0},
                                             {1, -1},
                                             {1, nan},
                                             {inf},
                                             {0.123456789, 0.5},
                                             {1e-9, 1},
                                             {1e300, 1},
                                             {1e18, 3}})
      CHECK(whole_weights(wrong).status().code() == Code::bad_config);
  }

  TEST_CASE("mixture: MIX-1 the counts of every prefix are within one of their shares") {
    for (const auto& weights : std::vector<std::vector<uint64_t>>{
             {1}, {1, 1}, {7, 2, 1}, {1, 1, 1, 1, 1}, {999, 1}, {1, 0, 3}, {3, 3, 2, 2, 1}})
      check_by_counting(mixture_of({{0, weights}}), 2500);
    uint64_t seed = test_seed();
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    for (int i = 0; i < 60; ++i) {
      const auto weights = random_weights(random, 1 + random() % 12);
      const Mixture mixture = mixture_of({{0, weights}});
      check_by_counting(mixture, std::min<uint64_t>(2500, 2 * mixture.stages[0].period() + 3));
    }
  }

  TEST_CASE("mixture: MIX-2 ranks go on over the stages") {
    uint64_t seed = test_seed();
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    for (int i = 0; i < 40; ++i) {
      const size_t sources = 1 + random() % 6;
      std::vector<Mixture::Stage> stages;
      uint64_t first = 0;
      for (size_t k = 0; k < 1 + random() % 5; ++k) {
        stages.push_back({first, random_weights(random, sources)});
        first += 1 + random() % 300;
      }
      check_by_counting(mixture_of(std::move(stages)), first + 100);
    }
  }

  TEST_CASE("mixture: the largest period is made, and far samples are found at once") {
    const Mixture mixture = mixture_of({{0, {999'998, 1, 1}}});
    const MixtureSchedule schedule(mixture);
    const uint64_t far = uint64_t{1} << 50;
    CHECK(schedule.count(0, far) + schedule.count(1, far) + schedule.count(2, far) == far);
    const auto [source, rank] = schedule.at(far);
    CHECK(rank == schedule.count(source, far));
    CHECK(schedule.count(source, far + 1) == rank + 1);
  }

  TEST_CASE("mixture: many sources of equal weight take turns") {
    const MixtureSchedule schedule(mixture_of({{0, std::vector<uint64_t>(255, 1)}}));
    for (uint64_t i = 0; i < 600; ++i)
      CHECK(schedule.at(i) == MixtureSchedule::Draw{i % 255, i / 255});
  }

  TEST_CASE("mixture: trained samples are counted without those that are skipped") {
    const Mixture mixture = mixture_of({{0, {7, 3}}, {50, {1, 4}}});
    const MixtureSchedule schedule(mixture);
    const auto skipped = must(SkippedSamples::parse("3-5,48-52,60"));
    std::vector<uint64_t> counts(2, 0);
    for (uint64_t place = 0; place < 90; ++place) {
      CHECK(schedule.trained(0, place, *skipped) == counts);
      ++counts[schedule.at(skipped->sample_at(place)).source];
    }
  }

  TEST_CASE("mixture: a change is found only where samples were trained") {
    const Mixture one = mixture_of({{0, {7, 3}}, {100, {1, 1}}});
    CHECK(mixture_change(one, one, 1000) == "");
    Mixture later = one;
    later.stages.push_back({500, {0, 1}});
    CHECK(mixture_change(one, later, 500) == "");
    CHECK(mixture_change(one, later, 501) ==
          "from sample 500 on the weights are now s1 1, and did not change there");
    CHECK(mixture_change(later, one, 500) == "");
    CHECK(mixture_change(later, one, 501) ==
          "from sample 500 on the weights were s1 1, and now do not change there");
    Mixture other = one;
    other.stages[1].weights = {1, 2};
    CHECK(mixture_change(one, other, 100) == "");
    CHECK(mixture_change(one, other, 101) ==
          "from sample 100 on the weights were s0 1, s1 1 and are now s0 1, s1 2");
    other = one;
    other.stages[1].first = 90;
    CHECK(mixture_change(one, other, 90) == "");
    CHECK(mixture_change(one, other, 91) != "");
    // A source that no trained stage uses may be added anywhere; the order of the others counts.
    Mixture added = one;
    added.names.insert(added.names.begin(), "new");
    for (Mixture::Stage& stage : added.stages) stage.weights.insert(stage.weights.begin(), 0);
    CHECK(mixture_change(one, added, 1000) == "");
    Mixture turned = one;
    std::swap(turned.names[0], turned.names[1]);
    for (Mixture::Stage& stage : turned.stages) std::swap(stage.weights[0], stage.weights[1]);
    CHECK(mixture_change(one, turned, 1000) != "");
  }
}
