#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "runtime/training/batch_schedule.hpp"
#include "runtime/training/skipped_samples.hpp"
#include "runtime/training/task_score.hpp"

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

TEST_SUITE("tasks") {
  TEST_CASE("task score: accuracy, by sum and by character; perplexity by word and byte") {
    TaskScore score{.task = "mine"};
    CHECK(std::isnan(score.accuracy()));
    const std::vector<uint64_t> characters = {1, 4};
    const auto add = [&](std::vector<double> log_likelihoods) {
      score.add_question(log_likelihoods, characters, 1);
    };
    add({-2, -4});  // by sum the first, by character the second
    add({-4, -2});
    add({-1, -8});
    CHECK(score.accuracy() == doctest::Approx(1 / 3.0));
    CHECK(score.normalized_accuracy() == doctest::Approx(2 / 3.0));
    add({-3, -3});  // of equal ones the first
    CHECK(score.right == 1);
    score.add_text(-6, 3, 14);
    CHECK(score.word_perplexity() == doctest::Approx(std::exp(2)));
    CHECK(score.byte_perplexity() == doctest::Approx(std::exp(6 / 14.0)));
    CHECK(task_table({score}).find("0.2500") != std::string::npos);
  }

  TEST_CASE("task score: the same scores as an object, as a line, and as one accuracy") {
    CHECK(task_json({}).is_null());
    TaskScore questions{.task = "capitals", .questions = 4, .right = 2, .right_normalized = 3};
    TaskScore texts{.task = "prose", .words = 3, .bytes = 14, .log_likelihood = -6};
    const auto all = task_json({questions, texts});
    CHECK(all["capitals"] == nlohmann::json{{"questions", 4}, {"acc", 0.5}, {"acc_norm", 0.75}});
    CHECK(all["prose"]["words"] == 3);
    CHECK_FALSE(all["prose"].contains("acc"));
    CHECK(task_text(all) ==
          "capitals accuracy 0.5000, by character 0.7500; "
          "prose perplexity by word 7.39, by byte 1.5351");
    CHECK(mean_accuracy(all) == 0.5);
    CHECK(std::isnan(mean_accuracy(nullptr)));
    CHECK(std::isnan(mean_accuracy(task_json({texts}))));
    CHECK(task_text(nullptr) == "");
    texts.log_likelihood = -1e9;  // e^1e9 is no number of JSON
    CHECK(task_json({texts})["prose"]["byte_perplexity"].is_null());
  }
}
