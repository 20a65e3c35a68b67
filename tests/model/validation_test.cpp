// Scores of tasks, computed by the ranks of a world together (actors/trainer/validation.hpp), over
// the real CPU backend.
#include "actors/trainer/validation.hpp"

#include <cmath>
#include <random>

#include "tests/model/engine_world.hpp"
#include "tests/model/test_model.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

EngineOptions options_for(DType precision) {
  EngineOptions options;
  options.shape = {.dim = 32,
                   .hidden = 48,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .vocab = 97,
                   .block_size = 24};
  options.precision = precision;
  options.micro_batch_size = 2;
  options.leaves = 12;
  return options;
}

MakeBackend cpu_backends() {
  return [](const BackendOptions& options) { return make_cpu_backend(options).take(); };
}

/// Questions of three choices, and every fourth row a text of two pieces.
std::vector<TaskTokens> rows(size_t count, const ModelShape& shape) {
  std::mt19937 random(3);
  const auto sequence = [&] {
    TaskSequence s{1 + random() % 4, {}};
    const size_t length =
        s.scored + 1 + random() % (static_cast<size_t>(shape.block_size) - s.scored);
    for (size_t i = 0; i < length; ++i)
      s.ids.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(shape.vocab)));
    return s;
  };
  std::vector<TaskTokens> all;
  for (size_t i = 0; i < count; ++i) {
    TaskTokens& row = all.emplace_back();
    row.task = i % 3 ? "a" : "b";
    const bool text = i % 4 == 3;
    if (text)
      row.words = 4, row.bytes = 20;
    else
      row.characters = {5, 3, 9}, row.answer = i % 3;
    for (int k = text ? 1 : 0; k < 3; ++k) row.sequences.push_back(sequence());
  }
  return all;
}

/// Questions whose choices share a prompt of up to `prompt` tokens.
std::vector<TaskTokens> questions(size_t count, size_t prompt, int64_t vocab) {
  std::mt19937 random(5);
  const auto add = [&](std::vector<int32_t>& ids, size_t tokens) {
    for (size_t i = 0; i < tokens; ++i)
      ids.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
  };
  std::vector<TaskTokens> all;
  for (size_t i = 0; i < count; ++i) {
    TaskTokens& row = all.emplace_back(TaskTokens{.task = "t", .characters = {5, 3, 9, 4}});
    std::vector<int32_t> seen;
    add(seen, 1 + random() % prompt);
    for (size_t choice = 0; choice < row.characters.size(); ++choice) {
      TaskSequence& sequence = row.sequences.emplace_back();
      sequence = {1 + random() % 5, seen};
      add(sequence.ids, sequence.scored);
    }
  }
  return all;
}

/// The log-likelihoods of all sequences.
std::vector<double> log_likelihoods(Engine& engine, const TaskBatches& tasks,
                                    const EngineOptions& options) {
  std::vector<int32_t> tokens(static_cast<size_t>(options.micro_batch_size) *
                              static_cast<size_t>(options.shape.block_size + 1));
  std::vector<double> all(tasks.sequences());
  for (uint64_t batch = 0; batch < tasks.batches(); ++batch) {
    tasks.fill(batch, tokens.data());
    const auto losses = must(engine.losses(tokens.data()));
    tasks.sum(batch, *losses, all.data() + tasks.first(batch));
  }
  return all;
}

/// The scores, which must be equal on all ranks.
TaskScores scores(World& world, const TaskBatches& tasks) {
  Plan plan;
  plan.shape = world.options.shape;
  plan.micro_batch_size = world.options.micro_batch_size;
  std::vector<TaskScores> of_rank(world.seats.size());
  world.each([&](Seat& seat) {
    WaitClock wait;
    auto result = task_scores(*seat.engine, world.axes(seat), tasks, plan, wait);
    if (result.ok()) of_rank[static_cast<size_t>(&seat - world.seats.data())] = result.take();
  });
  for (const TaskScores& one : of_rank) CHECK(one == of_rank[0]);
  return of_rank[0];
}

}  // namespace

TEST_SUITE("validation") {
  TEST_CASE("validation: the scores of tasks have the same bits on every layout") {
    for (const DType precision : {DType::f32, DType::bf16}) {
      // Fewer and more micro-batches than ranks.
      for (const size_t count : {1, 40}) {
        World alone(options_for(precision), 1, 1, cpu_backends());
        alone.initialize();
        const TaskBatches tasks(rows(count, alone.options.shape), alone.options.shape.block_size,
                                alone.options.micro_batch_size);
        CHECK(tasks.batches() == (count == 1 ? 2 : 43));
        const TaskScores expected = scores(alone, tasks);
        REQUIRE(expected.size() == (count == 1 ? 1 : 2));
        for (const auto& [groups, shards] :
             {std::pair{1, 2}, {2, 1}, {2, 2}, {1, 3}, {3, 2}, {4, 1}}) {
          INFO("groups = ", groups, ", shards = ", shards);
          World world(options_for(precision), groups, shards, cpu_backends());
          world.initialize();
          CHECK(scores(world, tasks) == expected);
        }
      }
    }
  }

  TEST_CASE("validation: a sequence among others is as likely as alone in a sample") {
    World world(options_for(DType::f32), 1, 1, cpu_backends());
    world.initialize();
    world.train(1, 3);
    const ModelShape& shape = world.options.shape;
    std::vector<TaskTokens> all = rows(40, shape);
    double apart = 0;
    uint64_t right = 0;
    for (const TaskTokens& row : all) {
      const TaskScores alone = scores(world, TaskBatches({row}, shape.block_size, 2));
      apart += alone[0].log_likelihood;
      right += alone[0].right;
    }
    double together = 0;
    uint64_t right_together = 0;
    for (const TaskScore& score : scores(world, TaskBatches(std::move(all), shape.block_size, 2))) {
      together += score.log_likelihood;
      right_together += score.right;
    }
    CHECK(together == doctest::Approx(apart).epsilon(1e-5));
    CHECK(right_together == right);
  }

  TEST_CASE("validation: choices that share their prompt are as likely as each with its own") {
    EngineOptions options = options_for(DType::f32);
    std::vector<ModelShape> shapes = testing::with_options(options.shape);
    shapes.push_back(options.shape);
    shapes.back().block_size = 200;  // more than a block of query rows and a chunk
    for (const ModelShape& shape : shapes) {
      CAPTURE(options_text(shape));
      options.shape = shape;
      World world(options, 1, 1, cpu_backends());
      world.initialize();
      world.train(1, 3);
      const auto prompt = static_cast<size_t>(shape.block_size) - 8;
      const std::vector<TaskTokens> rows = questions(12, prompt, shape.vocab);
      const TaskBatches shared(rows, shape.block_size, 2, true), apart(rows, shape.block_size, 2);
      CHECK(shared.batches() < apart.batches());
      Engine& engine = *world.seats.front().engine;
      const std::vector<double> one = log_likelihoods(engine, shared, options);
      const std::vector<double> other = log_likelihoods(engine, apart, options);
      for (size_t i = 0; i < one.size(); ++i) CHECK(std::abs(one[i] - other[i]) < 2e-4);
    }
  }
}
