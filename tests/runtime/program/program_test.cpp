// Programs of random models and layouts: every gradient is made from parameters that a buffer holds,
// and reaches its sum exactly once.
#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

#include "runtime/program/program.hpp"

namespace simplescale {
namespace {

struct Case {
  ModelShape shape;
  EngineOptions engine;
  ProgramOptions program;
  BufferPlan plan;
  bool host;
  int micro_batches;
};

Case some_case(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Case c;
  c.shape = {.dim = 32,
             .hidden = 48,
             .layers = 1 + below(5),
             .heads = 2,
             .kv_heads = 2,
             .vocab = 64,
             .block_size = 8};
  c.shape.tie_embeddings = below(2) == 0;
  c.host = below(2) == 0;
  const int shards = 1 + below(4), groups = 1 + below(3);
  c.engine.wave = 1 << below(4);
  const int turns = 1 + below(4);
  c.program.turns.clear();
  for (int i = 0, size = c.engine.wave; i < turns; ++i) {
    c.program.turns.push_back(size);
    if (below(2) == 0) size = std::max(1, size / 2);
  }
  c.micro_batches = std::accumulate(c.program.turns.begin(), c.program.turns.end(), 0);
  c.engine.shape = c.shape;
  c.engine.precision = below(2) == 0 ? DType::f32 : DType::bf16;
  c.engine.leaves = c.micro_batches * groups * shards;
  c.engine.sharding = shards == 1     ? Sharding::no_shard
                      : below(2) == 0 ? Sharding::full_shard
                                      : Sharding::shard_grad_op;
  c.engine.state_in_host = !c.host && below(2) == 0;
  c.plan = buffer_plan(c.engine, static_cast<size_t>(groups), static_cast<size_t>(shards), c.host,
                       false);
  c.program.units = units_of(c.shape).size();
  c.program.tied = c.shape.tie_embeddings;
  return c;
}

size_t slots_of(const std::vector<BufferPool>& pools) {
  size_t slots = 0;
  for (const BufferPool& pool : pools) slots += pool.slots;
  return slots;
}

/// What a replay of a program checks and knows.
struct Replay {
  explicit Replay(const Case& of) : c(of) {}

  void gather(const Task& task) {
    REQUIRE(task.slot < slots_of(c.plan.gather));
    CHECK_FALSE(held.contains(task.unit));
    std::erase_if(held, [&](const auto& entry) { return entry.second == task.slot; });
    held[task.unit] = task.slot;
    used.insert(task.slot);
  }
  void needs(size_t unit) { CHECK((c.plan.gather.empty() || held.contains(unit))); }
  void gradient(size_t unit, size_t slot) {
    if (c.plan.gradient.empty()) return;
    REQUIRE(slot < slots_of(c.plan.gradient));
    CHECK_FALSE(in_flight.contains(slot));
    CHECK_FALSE(unread.contains(slot));
    unread[slot] = unit;
    used_by_gradients.insert(slot);
  }
  /// A wave's gradients are added one by one, and then reduced together.
  void add(const Task& task) {
    REQUIRE(task.sum < slots_of(c.plan.sums));
    CHECK_FALSE(sums_in_flight.contains(task.sum));
    if (task.frame == 0) CHECK(waves.emplace(task.sum, task.unit).second);
    CHECK(waves[task.sum] == task.unit);
    CHECK(unread[task.slot] == task.unit);
    unread.erase(task.slot);
    CHECK(task.micro_batch == sums[task.unit]++);
    used_sums.insert(task.sum);
  }
  void reduce_wave(const Task& task) {
    CHECK(waves[task.sum] == task.unit);
    CHECK(task.frame + 1 == c.program.turns[static_cast<size_t>(task.turn)]);
    waves.erase(task.sum);
    CHECK(sums_in_flight.emplace(task.sum, task.unit).second);
  }
  void add_to(const Task& task) {
    if (c.plan.sums_in_background) CHECK(in_flight.emplace(task.slot, task.unit).second);
    CHECK(task.micro_batch == sums[task.unit]++);
  }
  void reduce(const Task& task) {
    window(task);
    if (task.sum != Task::kNone) return reduce_wave(task);
    if (!c.plan.gradient.empty()) {
      REQUIRE(unread.contains(task.slot));
      CHECK(unread[task.slot] == task.unit);
      unread.erase(task.slot);
    }
    add_to(task);
  }
  void reduced(const Task& task) {
    if (task.sum != Task::kNone) {
      CHECK(sums_in_flight[task.sum] == task.unit);
      sums_in_flight.erase(task.sum);
      return;
    }
    REQUIRE(in_flight.contains(task.slot));
    CHECK(in_flight[task.slot] == task.unit);
    in_flight.erase(task.slot);
  }
  void exchange(size_t unit) {
    CHECK(sums[unit] == c.micro_batches);
    for (const auto& [slot, other] : in_flight) CHECK(other != unit);
    for (const auto& [sum, other] : sums_in_flight) CHECK(other != unit);
    CHECK(exchanged.insert(unit).second);
  }
  void download(size_t unit) {
    CHECK(c.plan.through_host);
    CHECK(exchanged.contains(unit));
    CHECK_FALSE(finished);
    // This total has lm_head's part, too.
    if (c.program.tied && unit == 0) CHECK(exchanged.contains(c.program.units));
    CHECK(downloaded.insert(unit).second);
  }
  /// Sums go to a window that no other unit's need.
  void window(const Task& task) {
    CHECK((task.window == Task::kNone) == c.plan.windows.empty());
    if (task.window == Task::kNone) return;
    REQUIRE(task.window < slots_of(c.plan.windows));
    const auto [held, taken] = windows.emplace(task.window, task.unit);
    CHECK(held->second == task.unit);
    if (taken) CHECK(with_window.insert(task.unit).second);
    used_windows.insert(task.window);
  }
  void downloaded_all(size_t unit) {
    CHECK(downloaded.contains(unit));
    CHECK(std::erase_if(windows, [&](const auto& entry) { return entry.second == unit; }) == 1);
  }

  const Case& c;
  std::map<size_t, size_t> held;                                      // unit to slot
  std::map<size_t, size_t> in_flight, unread, sums_in_flight, waves;  // slot or sum to unit
  std::map<size_t, int> sums;                                         // micro-batches, by unit
  std::map<size_t, size_t> windows;                                   // to unit
  std::set<size_t> exchanged, downloaded, used, used_by_gradients, used_sums;
  std::set<size_t> with_window, used_windows;
  bool finished = false;
};

/// The passes of a program, in order: which unit, and in which direction.
std::vector<std::pair<Op, size_t>> passes_of(const Program& program, int micro_batch) {
  std::vector<std::pair<Op, size_t>> passes;
  for (const Task& task : program)
    if (task.op >= Op::embed && task.op <= Op::backward_embed && task.micro_batch == micro_batch)
      passes.emplace_back(task.op, task.unit);
  return passes;
}

}  // namespace

TEST_SUITE("program") {
  TEST_CASE(
      "program: any model and layout gathers, computes and sums each unit as the step needs it") {
    std::mt19937 random(1);
    for (int i = 0; i < 400; ++i) {
      const Case c = some_case(random);
      CAPTURE(i);
      CAPTURE(c.shape.layers);
      CAPTURE(c.micro_batches);
      CAPTURE(c.engine.wave);
      const Program program = step_program(c.program, c.plan);
      Replay replay(c);
      for (const Task& task : program) {
        switch (task.op) {
          case Op::gather:
            replay.gather(task);
            break;
          case Op::head:
            if (c.program.tied) replay.needs(0);
            if (c.program.tied) replay.gradient(c.program.units, task.slot2);
            [[fallthrough]];
          case Op::backward:
            replay.needs(task.unit);
            [[fallthrough]];
          case Op::backward_embed:
            replay.gradient(task.unit, task.slot);
            break;
          case Op::embed:
          case Op::forward:
            replay.needs(task.unit);
            break;
          case Op::add:
            replay.add(task);
            break;
          case Op::reduce:
            replay.reduce(task);
            break;
          case Op::reduced:
            replay.reduced(task);
            break;
          case Op::exchange:
            replay.exchange(task.unit);
            break;
          case Op::download:
            replay.download(task.unit);
            break;
          case Op::downloaded:
            replay.downloaded_all(task.unit);
            break;
          case Op::finish:
            replay.finished = true;
            CHECK(replay.exchanged.size() == c.program.units + (c.program.tied ? 1 : 0));
            CHECK(replay.in_flight.empty());
            CHECK(replay.unread.empty());
            CHECK(replay.sums_in_flight.empty());
            CHECK(replay.waves.empty());
            break;
          default:
            break;
        }
      }
      CHECK(replay.downloaded.size() == (c.plan.through_host ? c.program.units : 0));
      // The buffers of the plan are those that a step needs.
      CHECK(replay.used.size() == slots_of(c.plan.gather));
      CHECK(replay.used_by_gradients.size() == slots_of(c.plan.gradient));
      CHECK(replay.used_windows.size() == slots_of(c.plan.windows));
      if (c.program.turns[0] > 1) CHECK(replay.used_sums.size() == slots_of(c.plan.sums));

      std::vector<std::pair<Op, size_t>> expected{{Op::embed, 0}};
      for (size_t unit = 1; unit + 1 < c.program.units; ++unit)
        expected.emplace_back(Op::forward, unit);
      expected.emplace_back(Op::head, c.program.units - 1);
      for (size_t unit = c.program.units - 1; unit-- > 1;)
        expected.emplace_back(Op::backward, unit);
      expected.emplace_back(Op::backward_embed, 0);
      for (int k = 0; k < c.micro_batches; ++k) CHECK(passes_of(program, k) == expected);
      CHECK(program.back() == Task{.op = Op::commit});
    }
  }

  TEST_CASE(
      "program: a total gradient is downloaded after the next exchange, and frees its window") {
    const ModelShape shape{.dim = 32,
                           .hidden = 48,
                           .layers = 2,
                           .heads = 2,
                           .kv_heads = 2,
                           .vocab = 64,
                           .block_size = 8,
                           .tie_embeddings = true};
    EngineOptions engine;
    engine.shape = shape;
    engine.state_in_host = true;
    engine.leaves = 2;  // in two turns
    const BufferPlan plan = buffer_plan(engine, 1, 1, false, false);
    CHECK(plan.windows.empty());
    Program program = step_program({.units = 4, .tied = true}, plan);
    std::erase_if(program, [](const Task& task) {
      return task.op < Op::exchange && task.op != Op::backward && task.op != Op::backward_embed;
    });
    CHECK(to_text(program, units_of(shape)) ==
          "exchange head\n"
          "hash\n"
          "backward layers.1, micro-batch 0\n"
          "exchange lm_head\n"
          "download head\n"
          "backward layers.0, micro-batch 0\n"
          "exchange layers.1\n"
          "backward_embed embed, micro-batch 0\n"
          "exchange layers.0\n"
          "download layers.1\n"
          "record embed, micro-batch 0\n"
          "check\n"
          "exchange embed\n"
          "download layers.0\n"
          "download embed\n"
          "finish\n"
          "vote\n"
          "update\n"
          "commit\n");

    // One turn of a model with five blocks, three of which have windows.
    engine.leaves = engine.wave = 2;
    engine.shape.tie_embeddings = false;
    engine.shape.layers = 5;
    const BufferPlan windows = buffer_plan(engine, 1, 1, false, false);
    CHECK(slots_of(windows.windows) == 1 + 3);
    program = step_program({.units = 7, .turns = {2}}, windows);
    std::erase_if(program, [](const Task& task) {
      return task.op != Op::reduce && task.op != Op::download && task.op != Op::downloaded;
    });
    std::erase_if(program,
                  [](const Task& task) { return task.op == Op::reduce && task.frame > 0; });
    CHECK(to_text(program, units_of(engine.shape)) ==
          "reduce head, micro-batch 0, buffer 0\n"
          "reduce layers.4, micro-batch 0, buffer 1\n"
          "reduce layers.3, micro-batch 0, buffer 1\n"
          "download head\n"
          "reduce layers.2, micro-batch 0, buffer 1\n"
          "download layers.4\n"
          "downloaded layers.4\n"
          "reduce layers.1, micro-batch 0, buffer 1\n"
          "download layers.3\n"
          "downloaded layers.3\n"
          "reduce layers.0, micro-batch 0, buffer 1\n"
          "download layers.2\n"
          "downloaded head\n"
          "reduce embed, micro-batch 0, buffer 0\n"
          "download layers.1\n"
          "download layers.0\n"
          "download embed\n");
  }

  TEST_CASE("program: a unit is gathered while the one before it is computed") {
    const ModelShape shape{.dim = 32,
                           .hidden = 48,
                           .layers = 3,
                           .heads = 2,
                           .kv_heads = 2,
                           .vocab = 64,
                           .block_size = 8};
    EngineOptions engine;
    engine.shape = shape;
    engine.sharding = Sharding::full_shard;
    const BufferPlan plan = buffer_plan(engine, 1, 2, true, false);
    const Program program = loss_program({.units = 5}, plan);
    CHECK(to_text(program, units_of(shape)) ==
          "gather embed, buffer 0\n"
          "gather layers.0, buffer 1\n"
          "embed embed, micro-batch 0\n"
          "gather layers.1, buffer 2\n"
          "forward layers.0, micro-batch 0\n"
          "gather layers.2, buffer 1\n"
          "forward layers.1, micro-batch 0\n"
          "gather head, buffer 0\n"
          "forward layers.2, micro-batch 0\n"
          "evaluate head, micro-batch 0\n");
  }
}

}  // namespace simplescale
