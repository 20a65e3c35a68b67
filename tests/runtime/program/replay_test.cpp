// Replays of all ranks of random layouts in virtual time: they end, and mistakes in the order of
// collectives are found.
#include "runtime/program/replay.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "runtime/program/costs.hpp"
#include "tests/must.hpp"

namespace simplescale {
namespace {

struct Layout {
  EngineOptions options;
  size_t groups = 1, shards = 1;
  std::vector<Program> of_group;

  std::vector<const Program*> of_ranks() const {
    std::vector<const Program*> programs;
    for (size_t rank = 0; rank < groups * shards; ++rank)
      programs.push_back(&of_group[rank / shards]);
    return programs;
  }
};

Layout layout_of(size_t groups, size_t shards, int leaves, int wave, bool tied, int layers,
                 bool host = true, bool state_in_host = false) {
  Layout made{.groups = groups, .shards = shards};
  made.options.shape = {.dim = 32,
                        .hidden = 48,
                        .layers = layers,
                        .heads = 2,
                        .kv_heads = 2,
                        .vocab = 64,
                        .block_size = 8,
                        .tie_embeddings = tied};
  made.options.leaves = leaves;
  made.options.wave = wave;
  made.options.state_in_host = state_in_host;
  made.options.sharding = shards == 1 ? Sharding::no_shard : Sharding::full_shard;
  const BufferPlan plan = buffer_plan(made.options, groups, shards, host, false);
  const Shares shares =
      Shares::even(static_cast<uint64_t>(leaves), groups, shards, static_cast<uint64_t>(wave));
  for (size_t group = 0; group < groups; ++group)
    made.of_group.push_back(step_program(
        {.units = units_of(made.options.shape).size(), .tied = tied, .turns = shares.turns(group)},
        plan));
  return made;
}

Layout some_layout(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto groups = static_cast<size_t>(1 + below(4)), shards = static_cast<size_t>(1 + below(4));
  return layout_of(groups, shards, 1 + below(30), 1 << below(3), below(2) == 0, 1 + below(4),
                   below(2) == 0, below(2) == 0);
}

/// Where the program has the n-th task of that kind.
size_t find(const Program& program, Op op, size_t n = 0) {
  for (size_t i = 0; i < program.size(); ++i)
    if (program[i].op == op && n-- == 0) return i;
  FAIL("no such task");
  return 0;
}

const Cost kOne = [](const Task&) { return 1.0; };

}  // namespace

TEST_SUITE("program") {
  TEST_CASE("replay: a reduction is waited for by itself, not with the next one of its unit") {
    const Layout layout = layout_of(1, 1, 2, 2, false, 2, false);
    const Program& program = layout.of_group[0];
    const auto times = must(replay(layout.of_ranks(), 1, [](const Task& task) {
                         return task.op == Op::backward ? 5.0 : task.op == Op::reduce ? 4.0 : 0.0;
                       })).take()[0];
    size_t reduction = find(program, Op::reduced);
    while (program[reduction].op != Op::reduced || program[reduction].unit != 2) ++reduction;
    CHECK(program[reduction].micro_batch == 0);
    CHECK(times[reduction].end_s == times[reduction].begin_s);
  }

  TEST_CASE("replay: in virtual time all ranks of any layout come to the end of the step") {
    std::mt19937 random(5);
    for (int i = 0; i < 300; ++i) {
      const Layout layout = some_layout(random);
      const auto programs = layout.of_ranks();
      const Cost cost = [&](const Task& task) {  // also of a collective each time another one
        return task.op == Op::vote ? 1.0 : static_cast<double>(1 + random() % 9);
      };
      INFO("case ", i, ": ", layout.groups, " groups, ", layout.shards, " shards");
      const Result<Timeline> replayed = replay(programs, layout.shards, cost);
      must(replayed.status());
      for (size_t rank = 0; rank < programs.size(); ++rank) {
        const std::vector<TimedTask>& times = (*replayed)[rank];
        REQUIRE(times.size() == programs[rank]->size());
        double free = 0;  // when the compute thread is
        const size_t update = find(*programs[rank], Op::update),
                     check = find(*programs[rank], Op::check);
        for (size_t task = 0; task < times.size(); ++task) {
          REQUIRE(times[task].end_s >= times[task].begin_s);
          if (times[task].lane == Lane::download)
            REQUIRE(times[task].end_s <= times[update].begin_s);
          if (times[task].lane == Lane::hash) REQUIRE(times[task].end_s <= times[check].end_s);
          if (times[task].lane != Lane::compute) {
            REQUIRE(times[task].begin_s >= free);
            continue;
          }
          REQUIRE(times[task].begin_s >= free);
          free = times[task].end_s;
        }
        // A commit follows a vote, which all ranks end together.
        const size_t vote = find(*programs[rank], Op::vote);
        REQUIRE(times[vote].end_s == (*replayed)[0][find(*programs[0], Op::vote)].end_s);
      }
    }
  }

  TEST_CASE("replay: ranks that start the collectives of an axis in another order are found") {
    const Layout layout = layout_of(2, 2, 8, 1, false, 3);
    auto programs = layout.of_ranks();
    Program swapped = layout.of_group[1];
    const size_t first = find(swapped, Op::gather), second = find(swapped, Op::gather, 1);
    std::swap(swapped[first], swapped[second]);
    programs[3] = &swapped;
    const Status status = replay(programs, 2, kOne).status();
    CHECK(status.message() ==
          "rank 3: starts gather of unit 1 in turn 0 where another one starts gather of unit 0 in "
          "turn 0");
    programs[2] = &swapped;  // the whole group
    CHECK(replay(programs, 2, kOne).ok());

    Program other = layout.of_group[1];  // exchanges in another order than group 0
    std::swap(other[find(other, Op::exchange)], other[find(other, Op::exchange, 1)]);
    programs[2] = programs[3] = &other;
    CHECK(replay(programs, 2, kOne).status().message().starts_with("rank 2: starts exchange of"));
  }

  TEST_CASE("replay: a collective that one rank never starts does not end") {
    const Layout layout = layout_of(2, 2, 8, 1, false, 3);
    auto programs = layout.of_ranks();
    Program fewer = layout.of_group[0];
    fewer.erase(fewer.begin() + static_cast<int64_t>(find(fewer, Op::gather)));
    fewer.resize(find(fewer, Op::gather));  // ends before the next one
    programs[0] = &fewer;
    CHECK(replay(programs, 2, kOne).status().message() ==
          "rank 1 waits forever in embed of unit 0 in turn 0");
  }

  TEST_CASE("replay: gathers and reductions run beside the computation, waits show what is late") {
    const Layout layout = layout_of(1, 2, 2, 1, false, 2);
    const Program& program = layout.of_group[0];
    const auto times = [&](double of_gather) {
      return must(replay(layout.of_ranks(), 2,
                         [=](const Task& task) {
                           return task.op == Op::gather           ? of_gather
                                  : task.op <= Op::backward_embed ? 1.0
                                                                  : 0.0;
                         }))
          .take()[0];
    };
    const std::vector<TimedTask> fast = times(0.5), slow = times(2);
    const size_t embed = find(program, Op::embed), last = program.size() - 1;
    CHECK(fast[embed].begin_s == 0.5);
    // embed, two blocks forward, head, two blocks backward, embed; each gather but the first hides.
    CHECK(fast[last].end_s == 0.5 + 7);
    CHECK(slow[last].end_s > 2 * 4 + 2);
    CHECK(fast[find(program, Op::gather, 2)].lane == Lane::gather);
    CHECK(fast[find(program, Op::gather, 2)].begin_s == fast[find(program, Op::forward)].begin_s);
  }

  TEST_CASE("costs: a step's passes take the FLOP of the model, collectives the bytes of units") {
    EngineOptions options;
    options.shape = {.dim = 64,
                     .hidden = 96,
                     .layers = 3,
                     .heads = 4,
                     .kv_heads = 2,
                     .vocab = 256,
                     .block_size = 16};
    options.micro_batch_size = 2;
    options.precision = DType::bf16;
    const std::vector<Unit> units = units_of(options.shape);
    const BufferPlan plan = buffer_plan(options, 2, 4, true, false);
    const Speeds speeds{.flops = 1e6, .memory_bytes = 1e300, .network_bytes = 1e3};
    const Cost cost = task_costs(options, 2, 4, false, speeds);
    double compute = 0, gathered = 0;
    for (const Task& task : step_program({.units = units.size()}, plan)) {
      if (task.op == Op::gather) gathered += cost(task);
      if (task.op == Op::forward || task.op == Op::head || task.op == Op::backward)
        compute += cost(task);
    }
    const ForwardFlops flops = forward_flops(options.shape);
    CHECK(compute == doctest::Approx(3 * (3 * flops.block + flops.head) * 2 * 16 / 1e6));
    CHECK(gathered > 0);
    const Task of_block{.op = Op::gather, .unit = 1};
    const double padded = static_cast<double>(shard_count(units[1].count, 4) * 4);
    CHECK(cost(of_block) == doctest::Approx(padded * 2 * 3 / 4 / 1e3));
    CHECK(cost({.op = Op::reduce, .unit = 1, .sum = 0}) == doctest::Approx(2 * cost(of_block)));
    CHECK(cost({.op = Op::exchange, .unit = 1}) == doctest::Approx(padded / 4 * 4 / 1e3));
  }

  // Of a data center's GPU with its share of the host's memory, and of a workstation's.
  TEST_CASE(
      "costs: with its state in host memory an 8B model's step is at most 1.15 of its products") {
    EngineOptions options;
    options.shape = {.dim = 4096,
                     .hidden = 14336,
                     .layers = 32,
                     .heads = 32,
                     .kv_heads = 8,
                     .vocab = 128256,
                     .block_size = 8192};
    options.precision = DType::bf16;
    options.leaves = options.wave = 8;  // 64k tokens
    options.state_in_host = options.inputs_in_host = true;
    EngineOptions no_copies = options;
    no_copies.inputs_in_host = false;
    const BufferPlan plan = buffer_plan(options, 1, 1, false, false);
    const Program program =
        step_program({.units = 34, .turns = Shares::even(8, 1, 1, 8).turns(0)}, plan);
    for (const auto& [flops, host_bytes] : {std::pair{4e14, 2.2e11}, {1.5e14, 7e10}}) {
      const Speeds speeds{.flops = flops,
                          .memory_bytes = 2e12,
                          .network_bytes = 1e300,
                          .host_bytes = host_bytes,
                          .copy_bytes = 2.5e10};
      const Cost cost = task_costs(options, 1, 1, true, speeds),
                 products = task_costs(no_copies, 1, 1, true, speeds);
      double of_products = 0;
      for (const Task& task : program)
        if (task.op == Op::forward || task.op == Op::head || task.op == Op::backward)
          of_products += products(task);
      const double step = must(replay({&program}, 1, cost)).take()[0].back().end_s,
                   update = cost({.op = Op::update});
      MESSAGE("a step takes ", step / of_products, " of its products' time");
      INFO("a step ", step, " s, its products ", of_products, " s, the update ", update, " s");
      CHECK(step <= 1.15 * of_products);
      CHECK(step >= of_products + update);
    }
  }
}

}  // namespace simplescale
