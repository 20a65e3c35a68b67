#include "runtime/training/skipped_samples.hpp"

#include <doctest/doctest.h>

#include <set>

using namespace simplescale;

namespace {
SkippedSamples skipped(const std::string& text) {
  auto parsed = SkippedSamples::parse(text);
  REQUIRE_MESSAGE(parsed.ok(), text);
  return parsed.take();
}
}  // namespace

TEST_SUITE("skipped samples") {
  TEST_CASE("skipped samples: a text is read, put in order and merged") {
    CHECK(skipped("").empty());
    CHECK(skipped("  ").empty());
    CHECK(skipped("84-87").text() == "84-87");
    CHECK(skipped("92, 84-87,86-90 ,91").text() == "84-92");
    CHECK(skipped("5,3,3-3").text() == "3,5");
    CHECK(skipped("5").with(skipped("1-2,6")).text() == "1-2,5-6");
    for (const char* wrong : {"x", "3-", "-3", "4-3", "1,,2", "1,", "1 2", "0x1", "1-2-3",
                              "4611686018427387905", "99999999999999999999"})
      CHECK_MESSAGE(SkippedSamples::parse(wrong).status().code() == Code::bad_config, wrong);
    std::string many = "0";
    for (size_t i = 1; i <= SkippedSamples::ranges_max; ++i) many += "," + std::to_string(2 * i);
    CHECK_FALSE(SkippedSamples::parse(many).ok());
  }

  TEST_CASE("skipped samples: places hold all other samples, each once and in order") {
    for (const char* text : {"", "0", "0-4", "3", "3-5,7,11-30", "7,9,11"}) {
      const SkippedSamples list = skipped(text);
      std::set<uint64_t> left;
      for (uint64_t sample = 0; sample < 100; ++sample)
        if (list.in(sample, 1) == 0) left.insert(sample);
      uint64_t place = 0;
      for (const uint64_t sample : left) {
        CHECK(list.sample_at(place) == sample);
        CHECK(sample - list.before(sample) == place);
        ++place;
      }
    }
  }

  TEST_CASE("skipped samples: a run of places is split where samples are left out") {
    using Runs = std::vector<uint64_t>;
    const SkippedSamples list = skipped("3-5,7,20");
    CHECK(list.samples_at(0, 3) == Runs{0, 3});
    CHECK(list.samples_at(0, 6) == Runs{0, 3, 6, 1, 8, 2});
    CHECK(list.samples_at(4, 4) == Runs{8, 4});
    CHECK(list.samples_at(0, 0).empty());
    CHECK(list.in(2, 4) == 3);
    CHECK(list.in(8, 12) == 0);
    CHECK(list.in(8, 13) == 1);
    CHECK(list.in(8, UINT64_MAX) == 1);
  }

  TEST_CASE("skipped samples: runs are shown as the option takes them") {
    CHECK(samples_text({}) == "");
    CHECK(samples_text({8, 2, 4, 4, 12, 1}) == "4-9,12");
    CHECK(samples_text({0, 1, 2, 1, 4, 1}, 2) == "0-4");
  }
}
