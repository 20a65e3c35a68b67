#include "runtime/training/task_score.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace simplescale;

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
