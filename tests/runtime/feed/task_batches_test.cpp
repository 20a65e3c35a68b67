#include "runtime/feed/task_batches.hpp"

#include <doctest/doctest.h>

#include <random>

#include "runtime/training/token_marks.hpp"

using namespace simplescale;

namespace {

constexpr int64_t T = 9, B = 2;
constexpr int32_t kDocument = kBeginsDocument | kNotTrained;

/// A text of one sequence of the ids from `first` on.
TaskTokens text(const char* task, int32_t first, uint64_t length, uint64_t scored) {
  TaskTokens row{.task = task, .words = 1, .bytes = 1};
  row.sequences.push_back({scored, {}});
  for (uint64_t i = 0; i < length; ++i)
    row.sequences[0].ids.push_back(first + static_cast<int32_t>(i));
  return row;
}

}  // namespace

TEST_SUITE("tasks") {
  TEST_CASE("token marks: positions by powers of two; samples are cut into shorter ones") {
    const std::vector<size_t> groups = {0, 1, 2, 2, 3, 3, 3, 3, 4};
    for (size_t p = 0; p < groups.size(); ++p)
      CHECK(position_group(static_cast<int64_t>(p)) == groups[p]);
    for (size_t group = 0; group < 20; ++group) {
      CHECK(position_group(first_position(group)) == group);
      if (group > 0) CHECK(position_group(first_position(group) - 1) == group - 1);
    }
    std::vector<int32_t> tokens(2 * 7, 5);
    cut_samples(tokens.data(), 2, 6, 2);
    for (size_t i = 0; i < tokens.size(); ++i)  // the last token of a row is only a target
      CHECK(tokens[i] == (i % 7 == 2 || i % 7 == 4 ? 5 | kBeginsDocument : 5));
    cut_samples(tokens.data(), 2, 6, 6);
    CHECK(tokens[0] == 5);
  }

  TEST_CASE("task batches: sequences share a sample as documents; only scored tokens count") {
    const TaskBatches tasks({text("t", 10, 4, 2), text("t", 20, 5, 4), text("t", 30, 2, 1)}, T, B);
    CHECK(tasks.batches() == 1);
    CHECK(tasks.most_sequences() == 3);
    std::vector<int32_t> tokens(B * (T + 1));
    tasks.fill(0, tokens.data());
    const std::vector<int32_t> expected = {10 | kDocument,
                                           11 | kNotTrained,
                                           12,
                                           13,  // the first
                                           20 | kDocument,
                                           21,
                                           22,
                                           23,
                                           24,
                                           kDocument,  // the second, and one that is left over
                                           30 | kDocument,
                                           31,
                                           kDocument,
                                           kNotTrained,
                                           kNotTrained,
                                           kNotTrained,
                                           kNotTrained,
                                           kNotTrained,
                                           kNotTrained,
                                           kNotTrained};
    CHECK(tokens == expected);
    CHECK(trained_targets(tokens.data(), B, T) == 2 + 4 + 1);
    std::vector<float> losses(B * T, 100);  // of each target: the next column
    losses[1] = 1, losses[2] = 2;
    for (size_t i = 4; i < 8; ++i) losses[i] = 0.5;
    losses[T] = 4;
    std::vector<double> sums(3);
    tasks.sum(0, losses, sums.data());
    CHECK(sums == std::vector<double>{-3, -2, -4});
  }

  TEST_CASE("task batches: choices in one sample share their prompt, but for its last token") {
    TaskTokens row{.task = "t", .characters = {1, 1, 1, 1}};
    for (const std::vector<int32_t>& choice :
         std::vector<std::vector<int32_t>>{{20}, {21, 22}, {23}, {24, 25, 26}}) {
      TaskSequence& sequence = row.sequences.emplace_back();
      sequence = {choice.size(), {10, 11, 12}};
      sequence.ids.insert(sequence.ids.end(), choice.begin(), choice.end());
    }
    const TaskBatches tasks({row}, T, B, true);
    CHECK(tasks.batches() == 1);
    constexpr int32_t kBehind = kDocument | kSeesPrompt;
    const std::vector<int32_t> expected = {10 | kDocument,
                                           11 | kNotTrained,
                                           12 | kBehind,
                                           20,
                                           12 | kBehind,
                                           21,
                                           22,
                                           12 | kBehind,
                                           23,
                                           kDocument,  // and one left over
                                           10 | kDocument,
                                           11 | kNotTrained,
                                           12 | kBehind,
                                           24,
                                           25,
                                           26,
                                           kDocument,
                                           kNotTrained,
                                           kNotTrained,
                                           kNotTrained};
    std::vector<int32_t> tokens(B * (T + 1));
    tasks.fill(0, tokens.data());
    CHECK(tokens == expected);
    std::vector<float> losses(B * T, 100);
    losses[2] = 1, losses[4] = 2, losses[5] = 0.5, losses[7] = 3;
    losses[T + 2] = 4, losses[T + 3] = 5, losses[T + 4] = 6;
    std::vector<double> sums(4);
    tasks.sum(0, losses, sums.data());
    CHECK(sums == std::vector<double>{-1, -2.5, -3, -15});
    // A prompt of one token has nothing to share, nor have prompts that differ, nor texts.
    const auto kept = [&](const TaskTokens& other) {
      std::vector<int32_t> one(tokens.size()), two(tokens.size());
      TaskBatches({other}, T, B, true).fill(0, one.data());
      TaskBatches({other}, T, B, false).fill(0, two.data());
      CHECK(one == two);
    };
    row.sequences = {{1, {10, 20}}, {2, {10, 21, 22}}};
    kept(row);
    row.sequences = {{1, {9, 10, 11, 20}}, {1, {9, 12, 11, 20}}};
    kept(row);
    row.sequences = {{1, {10, 11, 20}}, {1, {9, 10, 11, 20}}};
    kept(row);
    row.sequences = {{1, {10, 11, 20}}, {1, {10, 11, 12, 20}}};
    kept(row);
    TaskTokens pieces = text("t", 10, 4, 1);
    pieces.sequences.push_back(pieces.sequences[0]);
    kept(pieces);
  }

  TEST_CASE("task batches: every sequence is scored once, with its own tokens, in any layout") {
    std::mt19937 random(1);
    std::vector<TaskTokens> rows;
    uint64_t scored = 0;
    for (int32_t i = 0; i < 200; ++i) {
      const uint64_t length = 2 + random() % T;
      rows.push_back(text("t", i * 20, length, 1 + random() % (length - 1)));
      scored += rows.back().sequences[0].scored;
    }
    const TaskBatches tasks(rows, T, B);
    REQUIRE(tasks.sequences() == 200);
    CHECK(tasks.first(tasks.batches()) == 200);
    std::vector<double> sums(200);
    uint64_t trained = 0;
    for (uint64_t batch = 0; batch < tasks.batches(); ++batch) {
      std::vector<int32_t> tokens(B * (T + 1));
      tasks.fill(batch, tokens.data());
      trained += trained_targets(tokens.data(), B, T);
      // The loss of a target is its id, so that each sum tells which tokens it is of.
      std::vector<float> losses;
      for (int64_t b = 0; b < B; ++b)
        for (int64_t t = 1; t <= T; ++t)
          losses.push_back(static_cast<float>(token_id(tokens[size_t(b * (T + 1) + t)])));
      tasks.sum(batch, losses, sums.data() + tasks.first(batch));
      CHECK(tasks.first(batch + 1) - tasks.first(batch) <= tasks.most_sequences());
    }
    CHECK(trained == scored);
    for (size_t i = 0; i < 200; ++i) {
      const TaskSequence& s = rows[i].sequences[0];
      double sum = 0;
      for (size_t k = s.ids.size() - s.scored; k < s.ids.size(); ++k) sum -= s.ids[k];
      CHECK(sums[i] == sum);
    }
  }

  TEST_CASE("task batches: the scores are those of the rows, by task") {
    TaskTokens question{.task = "b", .characters = {1, 4}, .answer = 1};
    question.sequences = {{1, {0, 1}}, {1, {0, 2}}};
    TaskTokens pieces = text("a", 0, 5, 4);
    pieces.sequences.push_back({1, {0, 1}});
    const TaskBatches tasks({question, pieces, question}, T, B);
    const std::vector<double> likelihoods = {-2, -4, -5, -1, -4, -2};
    const TaskScores scores = tasks.scores(likelihoods);
    REQUIRE(scores.size() == 2);
    CHECK(scores[0] == TaskScore{.task = "a", .words = 1, .bytes = 1, .log_likelihood = -6});
    CHECK(scores[1] == TaskScore{.task = "b", .questions = 2, .right = 1, .right_normalized = 2});
  }
}
