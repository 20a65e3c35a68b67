// Layouts: the same bits for all of them, changes between steps, buffers and gathers.
#include <cmath>

#include "runtime/config/topology.hpp"
#include "runtime/program/buffer_plan.hpp"
#include "tests/model/engine_world.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

struct Layout {
  int groups, shards;
};

EngineOptions options_for(int leaves, Sharding sharding, DType precision, bool tied) {
  EngineOptions options;
  options.shape = test_shape(tied);
  options.precision = precision;
  options.sharding = sharding;
  options.leaves = leaves;
  options.micro_batch_size = 2;
  options.seed = 5;
  return options;
}

struct Outcome {
  std::string digest;
  std::vector<StepResult> steps;
};

Outcome outcome(const EngineOptions& options, Layout layout, uint64_t steps,
                const MakeBackend& make, bool documents = false) {
  World world(options, layout.groups, layout.shards, make);
  world.documents = documents;
  world.initialize();
  Outcome result;
  result.steps = world.train(1, steps);
  result.digest = world.digest();
  for (int group = 1; group < layout.groups; ++group) CHECK(world.digest(group) == result.digest);
  for (Seat& seat : world.seats)
    if (auto* fake = dynamic_cast<FakeBackend*>(seat.backend.get())) CHECK(fake->mistakes == 0);
  return result;
}

/// Counts the leaves that its rank gives, and the gradients that are not zero although it has none.
class CountsLeaves : public ForwardingCollective {
 public:
  using ForwardingCollective::ForwardingCollective;
  WorkPtr reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                std::span<const TreeNode> leaves, PartialSum& slice) override {
    const std::span values(static_cast<const char*>(full),
                           count * static_cast<size_t>(size()) * bytes_of(dtype));
    if (static_cast<size_t>(rank()) < leaves.size())
      ++given;
    else
      mistakes += std::ranges::any_of(values, [](char c) { return c != 0; });
    return ForwardingCollective::reduce_scatter_leaves(full, count, dtype, leaves, slice);
  }
  int given = 0, mistakes = 0;
};

/// Counts the bytes that its rank sends to the others.
class CountsBytes : public ForwardingCollective {
 public:
  using ForwardingCollective::ForwardingCollective;
  WorkPtr all_gather(const void* shard, void* full, size_t count, DType dtype) override {
    bytes += (static_cast<size_t>(size()) - 1) * count * bytes_of(dtype);
    return ForwardingCollective::all_gather(shard, full, count, dtype);
  }
  WorkPtr reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                std::span<const TreeNode> leaves, PartialSum& slice) override {
    bytes += (static_cast<size_t>(size()) - 1) * count * bytes_of(dtype);
    return ForwardingCollective::reduce_scatter_leaves(full, count, dtype, leaves, slice);
  }
  uint64_t bytes = 0;
};

void check_same(const Outcome& a, const Outcome& b) {
  CHECK(a.digest == b.digest);
  REQUIRE(a.steps.size() == b.steps.size());
  for (size_t i = 0; i < a.steps.size(); ++i) {
    CHECK(a.steps[i].loss == b.steps[i].loss);
    CHECK(a.steps[i].grad_norm == b.steps[i].grad_norm);
  }
}

}  // namespace

TEST_SUITE("engine_layout") {
  TEST_CASE("engine: ENGINE-3, every layout of the same leaves has the same bits") {
    const int leaves = 144;
    const Outcome expected = outcome(options_for(leaves, Sharding::no_shard, DType::f32, false),
                                     {1, 1}, 3, fake_backends());
    CHECK(std::isfinite(expected.steps[2].loss));
    CHECK(expected.steps[2].loss != expected.steps[0].loss);
    CHECK(expected.steps[0].grad_norm > 0);
    for (int groups = 1; groups <= 4; ++groups) {
      for (int shards = 1; shards <= 4; ++shards) {
        INFO("groups = ", groups, ", shards = ", shards);
        const Layout layout{groups, shards};
        check_same(expected, outcome(options_for(leaves, Sharding::full_shard, DType::f32, false),
                                     layout, 3, fake_backends()));
      }
    }
  }

  TEST_CASE("engine: ENGINE-3, micro-batches that pass each unit in waves change no bit") {
    for (const DType precision : {DType::f32, DType::bf16})
      for (const bool tied : {false, true})
        for (const int leaves : {16, 13, 3}) {
          const Outcome expected = outcome(options_for(leaves, Sharding::no_shard, precision, tied),
                                           {1, 1}, 2, fake_backends());
          for (const int wave : {2, 4, 16})
            for (const Layout layout :
                 {Layout{1, 1}, {2, 1}, {1, 2}, {1, 3}, {2, 2}, {3, 2}, {2, 4}})
              for (const Sharding sharding : {Sharding::full_shard, Sharding::shard_grad_op}) {
                INFO("wave = ", wave, ", leaves = ", leaves, ", groups = ", layout.groups,
                     ", shards = ", layout.shards, ", tied = ", tied);
                EngineOptions options = options_for(leaves, sharding, precision, tied);
                options.wave = wave;
                check_same(expected, outcome(options, layout, 2, fake_backends()));
              }
        }
  }

  TEST_CASE("engine: ENGINE-3, waves over the CPU backend, which packs weights once a wave") {
    for (const Recompute recompute : {Recompute::nothing, Recompute::mlp, Recompute::block})
      for (const bool tied : {false, true}) {
        const MakeBackend cpu = [&](BackendOptions o) {
          o.recompute = recompute;
          return make_cpu_backend(o).take();
        };
        const int leaves = 11;
        const Outcome expected = outcome(options_for(leaves, Sharding::no_shard, DType::f32, tied),
                                         {1, 1}, 3, cpu, true);
        for (const int wave : {2, 4, 8})
          for (const Layout layout : {Layout{1, 1}, {1, 2}, {2, 1}}) {
            INFO("recompute = ", static_cast<int>(recompute), ", tied = ", tied, ", wave = ", wave,
                 ", groups = ", layout.groups, ", shards = ", layout.shards);
            EngineOptions options = options_for(leaves, Sharding::full_shard, DType::f32, tied);
            options.wave = wave;
            check_same(expected, outcome(options, layout, 3, cpu, true));
          }
      }
  }

  TEST_CASE("engine: a trainer sends to its group what config show tells, for any wave") {
    for (const Sharding sharding : {Sharding::full_shard, Sharding::shard_grad_op})
      for (const DType precision : {DType::f32, DType::bf16})
        for (const int layers : {1, 2, 5})
          for (const bool tied : {false, true})
            for (const int wave : {1, 2, 4, 8}) {
              INFO("sharding = ", static_cast<int>(sharding), ", layers = ", layers,
                   ", tied = ", tied, ", wave = ", wave);
              EngineOptions options = options_for(2 * 3 * 13, sharding, precision, tied);
              options.shape.layers = layers;
              options.wave = wave;
              World world(options, 2, 3);
              world.initialize();
              std::vector<std::unique_ptr<CountsBytes>> shard;
              for (Seat& seat : world.seats) {
                shard.push_back(std::make_unique<CountsBytes>(world.shard_communicator(seat)));
                auto made = must(Engine::create(
                    options, *seat.backend,
                    axes_of(*shard.back(), world.replicate_communicator(seat)), *seat.state));
                seat.engine = made.take();
                REQUIRE(seat.engine->attach().ok());
              }
              world.train(1, 1);
              Config config;
              config.train.precision = precision;
              Plan plan;
              plan.shape = options.shape;
              plan.topology.sharding = sharding;
              plan.topology.groups = 2;
              plan.topology.shards = 3;
              plan.leaves = options.leaves;
              for (const auto& each : shard)
                CHECK(each->bytes == bytes_in_group(config, plan, wave));
            }
  }

  TEST_CASE("engine: ENGINE-3, shares by weight change no bit") {
    for (const int leaves : {32, 13})
      for (const bool tied : {false, true}) {
        const Outcome expected = outcome(options_for(leaves, Sharding::no_shard, DType::bf16, tied),
                                         {1, 1}, 2, fake_backends());
        for (const std::vector<uint32_t>& weights :
             std::vector<std::vector<uint32_t>>{{1000, 600}, {10, 1000}, {1000, 300, 700}})
          for (const int shards : {1, 2, 3})
            for (const int wave : {1, 4}) {
              INFO("leaves = ", leaves, ", groups = ", weights.size(), ", shards = ", shards,
                   ", wave = ", wave, ", tied = ", tied);
              EngineOptions options = options_for(leaves, Sharding::full_shard, DType::bf16, tied);
              options.weights = weights;
              options.wave = wave;
              options.warmup = {{1, leaves}};
              const Layout layout{static_cast<int>(weights.size()), shards};
              check_same(expected, outcome(options, layout, 2, fake_backends()));
            }
      }
    EngineOptions options = options_for(32, Sharding::full_shard, DType::f32, false);
    for (const std::vector<uint32_t>& wrong : std::vector<std::vector<uint32_t>>{{1}, {1, 0}}) {
      options.weights = wrong;
      CHECK(check(options, 1, 2).code() == Code::bad_config);
    }
  }

  TEST_CASE("engine: ENGINE-7, every target counts the same, on every layout with the same bits") {
    const MakeBackend cpu = [](const BackendOptions& o) { return make_cpu_backend(o).take(); };
    const int leaves = 12;
    bool tied = false;
    SUBCASE("tied embeddings") {
      tied = true;
    }
    SUBCASE("two matrices") {
      tied = false;
    }
    const EngineOptions one = options_for(leaves, Sharding::no_shard, DType::f32, tied);
    const Outcome expected = outcome(one, {1, 1}, 3, cpu, true);
    for (const Layout layout : {Layout{1, 2}, {1, 3}, {2, 2}, {4, 1}, {3, 4}, {5, 1}, {12, 1}})
      check_same(expected, outcome(options_for(leaves, Sharding::full_shard, DType::f32, tied),
                                   layout, 3, cpu, true));
    // The first step again, leaf by leaf: sums over all trained targets, divided by their number.
    World world(one, 1, 1, cpu);
    world.initialize();
    const std::unique_ptr<Backend> backend = cpu({.shape = one.shape, .micro_batch_size = 2});
    const std::vector<Unit> units = units_of(one.shape);
    const ShardLayout layout = shard_layout(units, 1);
    const float* params = world.states[0].committed().params.data();
    std::vector<float> grad(layout.total), tied_grad(units[0].count);
    std::vector<double> total(layout.total);
    double loss = 0;
    uint64_t trained = 0;
    const auto targets = static_cast<double>(2 * one.shape.block_size);
    for (int leaf = 0; leaf < leaves; ++leaf) {
      const auto tokens = test_tokens(one, 1, static_cast<uint64_t>(leaf), true);
      trained += trained_targets(tokens.data(), 2, one.shape.block_size);
      backend->embed(0, params, tokens.data());
      const auto of = [&](auto* all, size_t unit) { return all + layout.offset[unit]; };
      for (int i = 0; i < one.shape.layers; ++i)
        backend->forward_block(0, i, of(params, static_cast<size_t>(i) + 1));
      backend->head(0, of(params, units.size() - 1), tied ? params : nullptr, 1,
                    of(grad.data(), units.size() - 1), tied ? tied_grad.data() : nullptr);
      loss += targets * backend->loss(0);
      for (int i = static_cast<int>(one.shape.layers); i-- > 0;)
        backend->backward_block(0, i, of(params, static_cast<size_t>(i) + 1),
                                of(grad.data(), static_cast<size_t>(i) + 1));
      backend->backward_embed(0, grad.data());
      for (size_t i = 0; tied && i < tied_grad.size(); ++i)
        total[i] += targets * static_cast<double>(tied_grad[i]);
      for (size_t i = 0; i < grad.size(); ++i) total[i] += targets * static_cast<double>(grad[i]);
    }
    double square = 0;
    for (const double g : total) square += g * g;
    const auto count = static_cast<double>(trained);
    CHECK(trained < static_cast<uint64_t>(leaves * 2 * one.shape.block_size) / 2);
    CHECK(expected.steps[0].loss == doctest::Approx(loss / count).epsilon(1e-6));
    const double norm = std::sqrt(square) / count;
    CHECK(expected.steps[0].grad_norm == doctest::Approx(norm).epsilon(1e-5));
    // The optimizer gets the same gradient, clipped.
    world.documents = true;
    world.train(1, 1);
    const double scale = (1 - one.beta1) * std::min(1.0, one.grad_clip / norm) / count;
    const std::span<const float> avg = world.states[0].committed().exp_avg;
    double difference = 0;
    for (size_t i = 0; i < total.size(); ++i)
      difference += std::pow(static_cast<double>(avg[i]) - scale * total[i], 2);
    CHECK(std::sqrt(difference) < 1e-5 * scale * std::sqrt(square));
  }

  TEST_CASE(
      "engine: a batch warm-up gives the bits of a run with small steps that goes on with large "
      "ones, on every layout") {
    const auto options_of = [](int leaves) {
      return options_for(leaves, Sharding::full_shard, DType::f32, false);
    };
    World small(options_of(12), 1, 1, fake_backends());
    small.initialize();
    small.train(1, 2);
    World large(options_of(40), 1, 1, fake_backends(), std::move(small.states));
    large.train(3, 4);
    const std::string expected = large.digest();
    for (const Layout layout : {Layout{1, 1}, {2, 2}, {3, 1}, {1, 4}, {3, 4}, {12, 1}})
      for (const bool host : {true, false}) {
        INFO("layout.groups = ", layout.groups, ", layout.shards = ", layout.shards);
        EngineOptions options = options_of(40);
        options.warmup = {{2, 12}};
        CHECK(outcome(options, layout, 4, fake_backends(host)).digest == expected);
      }
    EngineOptions options = options_of(40);
    options.warmup = {{2, 41}};
    World world(options_of(40), 1, 1, fake_backends());
    const auto refused = [&] {
      return Engine::create(options, *world.seats[0].backend, world.axes(world.seats[0]),
                            *world.seats[0].state)
          .status()
          .code();
    };
    CHECK(refused() == Code::bad_config);
    options.warmup = {{2, 0}};
    CHECK(refused() == Code::bad_config);
  }

  TEST_CASE(
      "engine: ENGINE-3 holds for every strategy, both precisions, tied embeddings, host and "
      "device "
      "memory") {
    const int leaves = 12;
    for (DType precision : {DType::f32, DType::bf16}) {
      for (bool tied : {false, true}) {
        const Outcome expected = outcome(options_for(leaves, Sharding::no_shard, precision, tied),
                                         {1, 1}, 3, fake_backends());
        for (Layout layout : {Layout{1, 1},
                              {1, 2},
                              {1, 3},
                              {1, 4},
                              {2, 1},
                              {2, 2},
                              {2, 3},
                              {3, 1},
                              {3, 4},
                              {4, 3},
                              {12, 1}}) {
          for (Sharding sharding :
               {Sharding::full_shard, Sharding::shard_grad_op, Sharding::no_shard}) {
            if (sharding == Sharding::no_shard && layout.shards > 1) continue;
            for (bool host : {true, false}) {
              INFO("layout.groups = ", layout.groups, ", layout.shards = ", layout.shards,
                   ", tied = ", tied, ", host = ", host,
                   ", precision = ", static_cast<int>(precision),
                   ", sharding = ", static_cast<int>(sharding));
              check_same(expected, outcome(options_for(leaves, sharding, precision, tied), layout,
                                           3, fake_backends(host)));
            }
          }
        }
      }
    }
  }

  TEST_CASE("engine: ENGINE-3 holds when the leaves of a step do not divide among the trainers") {
    for (const DType precision : {DType::f32, DType::bf16})
      for (const int leaves : {1, 2, 3, 4, 7, 13, 19, 26}) {  // also fewer leaves than trainers
        const auto with = [&](Sharding sharding) {
          return options_for(leaves, sharding, precision, leaves == 7);
        };
        const Outcome expected =
            outcome(with(Sharding::no_shard), {1, 1}, 2, fake_backends(), true);
        for (const Layout layout : {Layout{1, 2}, {2, 1}, {3, 1}, {1, 3}, {2, 3}, {3, 2}, {2, 4}})
          for (const Sharding sharding : {Sharding::full_shard, Sharding::shard_grad_op})
            for (const bool host : {true, false}) {
              INFO("leaves = ", leaves, ", groups = ", layout.groups, ", shards = ", layout.shards,
                   ", host = ", host);
              check_same(expected, outcome(with(sharding), layout, 2, fake_backends(host), true));
            }
      }
  }

  TEST_CASE("engine: a trainer without a leaf computes nothing and reduces zeros") {
    World world(options_for(7, Sharding::full_shard, DType::f32, false), 1, 3);
    world.initialize();
    std::vector<std::unique_ptr<CountsLeaves>> shard;
    for (Seat& seat : world.seats) {
      shard.push_back(std::make_unique<CountsLeaves>(world.shard_communicator(seat)));
      auto made = must(Engine::create(world.options, *seat.backend,
                                      axes_of(*shard.back(), world.replicate_communicator(seat)),
                                      *seat.state));
      seat.engine = made.take();
      REQUIRE(seat.engine->attach().ok());
    }
    world.train(1, 2);
    const int units = static_cast<int>(units_of(world.options.shape).size());
    for (size_t rank = 0; rank < 3; ++rank) {
      CHECK(shard[rank]->given == 2 * units * (rank == 0 ? 3 : 2));
      CHECK(shard[rank]->mistakes == 0);
    }
  }

  TEST_CASE("engine: groups may leave and join between steps, for any number of leaves") {
    for (const int leaves : {6, 8, 13, 14}) {
      CAPTURE(leaves);
      const EngineOptions options = options_for(leaves, Sharding::full_shard, DType::f32, false);
      World undisturbed(options, 3, 2);
      undisturbed.initialize();
      const std::vector<StepResult> expected = undisturbed.train(1, 8);

      World three(options, 3, 2);
      three.initialize();
      three.train(1, 2);
      std::vector<TrainState> states = std::move(three.states);
      for (const int groups : {2, 1}) {  // the last group is lost
        states.resize(static_cast<size_t>(groups) * 2);
        World fewer(options, groups, 2, fake_backends(), std::move(states));
        const uint64_t step = *fewer.seats[0].engine->attach();
        const std::vector<StepResult> steps = fewer.train(step + 1, step + 2);
        for (size_t i = 0; i < 2; ++i) {
          CHECK(steps[i].loss == expected[step + i].loss);
          CHECK(steps[i].grad_norm == expected[step + i].grad_norm);
        }
        states = std::move(fewer.states);
      }
      World again(options, 3, 2);  // two groups rejoin, with the survivor's state
      for (size_t i = 0; i < 6; ++i) {
        const TrainState::Side from = states[i % 2].committed();
        Result<TrainState::Side> to = must(again.states[i].begin_write(0));
        std::copy(from.params.begin(), from.params.end(), to->params.begin());
        std::copy(from.exp_avg.begin(), from.exp_avg.end(), to->exp_avg.begin());
        std::copy(from.exp_avg_sq.begin(), from.exp_avg_sq.end(), to->exp_avg_sq.begin());
        again.states[i].commit(6);
        REQUIRE(again.seats[i].engine->attach().ok());
      }
      again.train(7, 8);
      CHECK(again.digest() == undisturbed.digest());
      CHECK(again.digest(2) == undisturbed.digest());
    }
  }

  TEST_CASE("engine: a layout may change between steps") {
    const Layout two{2, 2}, three{1, 3};
    const EngineOptions before = options_for(12, Sharding::full_shard, DType::f32, false);
    const EngineOptions after = options_for(12, Sharding::shard_grad_op, DType::f32, false);
    World first(before, two.groups, two.shards);
    first.initialize();
    first.train(1, 2);
    World second(after, three.groups, three.shards);
    const std::vector<Unit> units = units_of(before.shape);
    const ShardLayout from = shard_layout(units, 2), to = shard_layout(units, 3);
    for (size_t shard = 0; shard < 3; ++shard) {
      Result<TrainState::Side> side = must(second.states[shard].begin_write(0));
      for (size_t unit = 0; unit < units.size(); ++unit) {
        for (size_t i = 0; i < to.count[unit]; ++i) {
          const size_t element = shard * to.count[unit] + i;
          if (element >= units[unit].count) break;
          const TrainState::Side source = first.states[element / from.count[unit]].committed();
          const size_t at = from.offset[unit] + element % from.count[unit];
          side->params[to.offset[unit] + i] = source.params[at];
          side->exp_avg[to.offset[unit] + i] = source.exp_avg[at];
          side->exp_avg_sq[to.offset[unit] + i] = source.exp_avg_sq[at];
        }
      }
      second.states[shard].commit(2);
      const Result<uint64_t> step = must(second.seats[shard].engine->attach());
      CHECK(*step == 2);
    }
    first.train(3, 4);
    second.train(3, 4);
    CHECK(first.digest() == second.digest());
  }

  TEST_CASE("engine: buffers stay within the documented bound and are all that is allocated") {
    for (Layout layout : {Layout{1, 1}, {1, 4}, {2, 3}}) {
      for (Sharding sharding : {Sharding::full_shard, Sharding::shard_grad_op}) {
        for (bool host : {true, false}) {
          EngineOptions options = options_for(24, sharding, DType::bf16, false);
          const bool muon = layout.groups == 2;
          if (muon) options.optimizer = Optimizer::muon;
          World world(options, layout.groups, layout.shards, fake_backends(host));
          const size_t shards = static_cast<size_t>(layout.shards);
          const std::vector<Unit> units = units_of(options.shape);
          const size_t P = shard_layout(units, shards).total;
          const size_t U = shard_count(units[1].count, shards) * shards;
          const size_t E =
              shard_count(units.back().count, shards) * shards;  // the head also has the norm
          const size_t gather =
              shards > 1 && sharding == Sharding::full_shard ? 2 * U + E : shards * P;
          const size_t digits = 5;  // the most for 24 leaves
          const size_t owned =
              muon ? most_owned(muon_matrices(units), shards * static_cast<size_t>(layout.groups))
                   : 0;
          const size_t bound = (gather + 2 * U + E) * 2 + (digits + 1 + (host ? 0 : 3)) * P * 4 +
                               (muon ? (U + U / shards + owned) * 2 : 0);
          for (Seat& seat : world.seats) {
            const size_t taken =
                world.shard_wise[static_cast<size_t>(seat.group)]->allocated(seat.shard) +
                world.replicate_wise[static_cast<size_t>(seat.shard)]->allocated(seat.group);
            CHECK(taken == seat.engine->buffer_bytes());
            CHECK(taken <= bound);
          }
        }
      }
    }
  }

  TEST_CASE("engine: fp32 on one trainer allocates one gradient and nothing else") {
    const EngineOptions options = options_for(1, Sharding::no_shard, DType::f32, false);
    World world(options, 1, 1);
    CHECK(world.seats[0].engine->buffer_bytes() ==
          shard_layout(units_of(options.shape), 1).total * 4);
  }

  TEST_CASE(
      "engine: full_shard gathers a block twice per micro-batch, shard_grad_op once per step") {
    for (Sharding sharding : {Sharding::full_shard, Sharding::shard_grad_op}) {
      const EngineOptions options = options_for(6, sharding, DType::f32, false);
      World world(options, 1, 2);
      world.initialize();
      world.train(1, 2);
      // 3 blocks in 2 buffers: after the head, and after the embeddings of the next micro-batch,
      // two blocks are still in their buffers.
      const size_t full = 2 * (1 + 3 + 1 + 1) + 2 * 2 * (1 + 1 + 1 + 1), once = 2 * 5;
      CHECK(world.shard_wise[0]->started(0, "all_gather") ==
            (sharding == Sharding::full_shard ? full : once));
    }
  }

  TEST_CASE("engine: loss() is the mean loss of the committed parameters and changes nothing") {
    const EngineOptions options = options_for(4, Sharding::full_shard, DType::f32, false);
    World world(options, 2, 2), reference(options, 2, 2);
    for (World* w : {&world, &reference}) w->initialize();
    const double expected = reference.train(1, 1)[0].loss;
    std::vector<double> losses(4);
    world.each([&](Seat& seat) {
      const std::vector<int32_t> tokens = test_tokens(options, 1, seat.engine->leaf(0));
      for (int i = 0; i < 2; ++i) {
        const Result<double> loss = seat.engine->loss(tokens.data());
        losses[static_cast<size_t>(&seat - world.seats.data())] = loss.ok() ? *loss : NAN;
      }
    });
    CHECK(((losses[0] + losses[1]) + (losses[2] + losses[3])) / 4 == expected);
    world.train(1, 1);
    CHECK(world.digest() == reference.digest());
  }

  TEST_CASE("engine: loss() is right on ranks that have no leaf in the steps of a batch warm-up") {
    EngineOptions options = options_for(4, Sharding::full_shard, DType::f32, false);
    options.warmup = {{2, 1}};
    World alone(options, 1, 1), world(options, 2, 2);
    for (World* w : {&alone, &world}) {
      w->initialize();
      w->train(1, 1);
    }
    const std::vector<int32_t> tokens = test_tokens(options, 1, 3);
    const double expected = *must(alone.seats[0].engine->loss(tokens.data()));
    std::vector<double> losses(4);
    world.each([&](Seat& seat) {
      const Result<double> loss = seat.engine->loss(tokens.data());
      losses[static_cast<size_t>(&seat - world.seats.data())] = loss.ok() ? *loss : NAN;
    });
    CHECK(losses == std::vector<double>(4, expected));
  }
}
