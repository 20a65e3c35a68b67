// Programs of models with experts: a unit of its own for each block's experts.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "runtime/program/program.hpp"

using namespace simplescale;

namespace {

ModelShape shape_with_experts() {
  ModelShape shape{.dim = 64,
                   .hidden = 128,
                   .layers = 3,
                   .heads = 2,
                   .kv_heads = 2,
                   .vocab = 256,
                   .block_size = 16};
  shape.experts = {.count = 4, .per_token = 2, .hidden = 128, .dense_layers = 1};
  return shape;
}

BufferPlan plan_of(const ModelShape& shape, int shards, int wave, bool resident = false,
                   Optimizer optimizer = Optimizer::adamw) {
  EngineOptions options;
  options.resident_experts = resident;
  options.optimizer = optimizer;
  options.shape = shape;
  options.sharding = Sharding::full_shard;
  options.leaves = 4;
  options.wave = wave;
  return buffer_plan(options, 1, static_cast<size_t>(shards), true, false);
}

}  // namespace

TEST_SUITE("program") {
  TEST_CASE("program: experts are a unit that follows its block, and have buffers of their own") {
    const ModelShape shape = shape_with_experts();
    const std::vector<Unit> units = units_of(shape);
    REQUIRE(units.size() == 7);
    CHECK(units[3].name == "layers.1.experts");
    CHECK(unit_of_block(shape, 2) == 4);
    CHECK(unit_of_block(shape, 3) == 6);
    const ProgramOptions options = program_options(units, false);
    CHECK(options.of_experts == std::vector<size_t>{3, 5});
    const BufferPlan plan = plan_of(shape, 2, 1);
    CHECK(plan.pool_of_unit_gather == std::vector<size_t>{0, 1, 1, 2, 1, 2, 0});
    CHECK(plan.gather[2].elements == shard_count(units[3].count, 2) * 2);
    CHECK(plan.gather[1].elements ==
          std::max(shard_count(units[1].count, 2), shard_count(units[2].count, 2)) * 2);
    const BufferPlan of_muon = plan_of(shape, 2, 1, false, Optimizer::muon);
    CHECK(of_muon.muon_unit == plan.gather[2].elements);
    CHECK(of_muon.muon_part == plan.gather[2].elements / 2);
  }

  TEST_CASE(
      "program: each pass has gathered what it reads, and the experts' backward pass both units") {
    for (const int wave : {1, 2, 4}) {
      CAPTURE(wave);
      const ModelShape shape = shape_with_experts();
      const std::vector<Unit> units = units_of(shape);
      const BufferPlan plan = plan_of(shape, 2, wave);
      ProgramOptions options = program_options(units, false);
      options.turns.assign(static_cast<size_t>(4 / wave), wave);
      std::vector<size_t> held(8, units.size());  // by buffer
      std::vector<int> passes(units.size()), gradients(units.size());
      const auto holds = [&](size_t unit) { return std::ranges::find(held, unit) != held.end(); };
      for (const Task& task : step_program(options, plan)) {
        if (task.op == Op::gather) held[task.slot] = task.unit;
        const bool backward = task.op == Op::backward;
        if (task.op != Op::forward && !backward) continue;
        CAPTURE(units[task.unit].name);
        CHECK(holds(task.unit));
        const bool of_experts = units[task.unit].kind == Unit::Kind::experts;
        CHECK(second_unit(task, options).has_value() == (backward && of_experts));
        if (backward && of_experts) CHECK(holds(task.unit - 1));
        ++(backward ? gradients : passes)[task.unit];
      }
      for (size_t unit = 1; unit + 1 < units.size(); ++unit) {
        CHECK(passes[unit] == 4);
        CHECK(gradients[unit] == 4);
      }
    }
  }

  TEST_CASE("program: resident experts are not gathered; tokens go to them and come back") {
    const ModelShape shape = shape_with_experts();
    const std::vector<Unit> units = units_of(shape);
    for (const int wave : {1, 4}) {
      CAPTURE(wave);
      const BufferPlan plan = plan_of(shape, 2, wave, true);
      CHECK(plan.resident_units == std::vector<size_t>{3, 5});
      CHECK(plan.gather[2].elements == shard_count(units[3].count, 2));
      CHECK(plan.gradient[2].elements == shard_count(units[3].count, 2) * 2);
      CHECK(plan.rows_sent == 16 * 2);
      CHECK(plan.rows_received == 16 * 2);
      EngineOptions layout{.shape = shape};
      const Hash128 gathered = layout_hash(layout, 2, 1), alone = layout_hash(layout, 1, 1);
      layout.resident_experts = true;
      CHECK(layout_hash(layout, 2, 1) != gathered);
      CHECK(layout_hash(layout, 1, 1) == alone);
      ProgramOptions options = program_options(units, false, true);
      options.turns.assign(static_cast<size_t>(4 / wave), wave);
      std::vector<size_t> held(8, units.size());  // by buffer
      const auto holds = [&](size_t unit) { return std::ranges::find(held, unit) != held.end(); };
      // Of each frame and unit, in order: sent and passed, forward and backward.
      std::map<std::pair<int, size_t>, std::string> seen;
      for (const Task& task : step_program(options, plan)) {
        if (task.op == Op::gather) held[task.slot] = task.unit;
        const bool resident = options.is_resident(task.unit);
        CHECK(resident == (task.unit == 3 || task.unit == 5));
        std::string& order = seen[{task.micro_batch, task.unit}];
        switch (task.op) {
          case Op::route:
            order += 'r';
            CHECK(seen[{task.micro_batch, task.unit - 1}].ends_with('f'));
            break;
          case Op::forward:
            order += 'f';
            if (resident) CHECK(holds(task.unit));
            break;
          case Op::combine:
            order += 'c';
            break;
          case Op::route_backward:
            order += 'R';
            CHECK(holds(task.unit - 1));
            CHECK(second_unit(task, options) == task.unit - 1);
            break;
          case Op::backward:
            order += 'b';
            if (!resident) break;
            CHECK(holds(task.unit));
            CHECK(!second_unit(task, options));
            break;
          case Op::combine_backward:
            order += 'C';
            break;
          default:
            break;
        }
      }
      for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
        CHECK(seen[{micro_batch, 3}] == "rfcRbC");
        CHECK(seen[{micro_batch, 5}] == "rfcRbC");
        CHECK(seen[{micro_batch, 4}] == "fb");
      }
    }
  }
}
