// The state of a run on a GPU: the average of the weights and moments in bf16 are updated in device
// memory as on the CPU, with the same bits on every layout, and arrive in host memory.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>

#include "model/cuda/cuda_backend.hpp"
#include "model/engine/engine.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/training/state_transfer.hpp"
#include "tests/gpu/fake_gpu.hpp"
#include "tests/gpu/fake_ranks.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using namespace simplescale::testing;

namespace {

constexpr float kDecay = 0.75f;
constexpr int kLeaves = 4;
constexpr uint64_t kSteps = 3;

EngineOptions options_for(Optimizer optimizer, DType precision = DType::f32) {
  EngineOptions options;
  options.precision = precision;
  options.shape = {.dim = 32,
                   .hidden = 64,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .vocab = 96,
                   .block_size = 8};
  options.leaves = kLeaves;
  options.optimizer = optimizer;
  options.moments = DType::bf16;
  options.ema_decay = kDecay;
  return options;
}

/// What does not change the results.
struct Kept {
  bool state_in_host = false, inputs_in_host = false;
  uint64_t until_step = kSteps;  // then the opposite
  Kept at(uint64_t step) const {
    if (step <= until_step) return *this;
    return {!state_in_host, !inputs_in_host};
  }
};

/// The parts of a whole model, unit by unit and without padding: fp32, moments widened; then loss and
/// norm of the gradient of the step.
using Whole = std::vector<std::vector<float>>;
constexpr size_t kScalars = std::size(kStateKinds);

/// Adds a rank's elements of its shard to `whole`, which has room for all elements.
void add_shard(Whole& whole, const TrainState::Side& side, const ModelShape& shape, size_t shards,
               size_t shard) {
  const std::vector<Unit> units = units_of(shape);
  const ShardLayout layout = shard_layout(units, shards), one = shard_layout(units, 1);
  for (const StateKind kind : state_kinds(side.format().ema)) {
    const std::span<float> part = side.parts()[static_cast<size_t>(kind)];
    std::vector<float>& all = whole[static_cast<size_t>(kind)];
    for (size_t u = 0; u < units.size(); ++u)
      for (size_t i = 0; i < layout.count[u]; ++i) {
        const size_t element = shard * layout.count[u] + i, at = layout.offset[u] + i;
        if (element >= units[u].count) continue;
        all[one.offset[u] + element] = side.format().dtype(kind) == DType::f32
                                           ? part[at]
                                           : bf16_to_f32(bf16_elements(part)[at]);
      }
  }
}

/// The committed states of a generation's ranks, in their order.
using Generation = std::vector<std::unique_ptr<TrainState>>;
/// Gives a rank's new state what it begins with.
using Restore = std::function<void(TrainState& state, int shard)>;

std::vector<Whole> no_states(const EngineOptions& options) {
  const size_t elements = shard_layout(units_of(options.shape), 1).total;
  return std::vector<Whole>(kSteps + 1, Whole(kScalars + 1, std::vector<float>(elements)));
}

/// Runs the steps until `last` on fake GPUs, from initial values or from what `restore` gives, and adds
/// the state after each step, read from the copies in host memory.
Generation train(int groups, int shards, const EngineOptions& options, bool native_sums,
                 const Kept& kept, uint64_t last, std::vector<Whole>& states,
                 const Restore& restore = nullptr) {
  static int generation = 0;
  ++generation;
  Generation left(static_cast<size_t>(groups * shards));
  run_trainers(
      groups, shards,
      [&](int group, int shard, Collective& of_group, Collective& of_shard) {
        EngineOptions o = options;
        const std::string name = "ss-test-gpu-state-" + std::to_string(getpid()) + "-" +
                                 std::to_string(generation) + "-" +
                                 std::to_string(group * shards + shard);
        auto created = must(TrainState::create(
            name, 1, shard_layout(units_of(o.shape), static_cast<size_t>(shards)).total,
            state_format(o)));
        auto& state = left[static_cast<size_t>(group * shards + shard)];
        state = std::make_unique<TrainState>(created.take());
        if (restore) restore(*state, shard);
        const uint64_t first = restore ? state->step() + 1 : 0;
        std::unique_ptr<Backend> backend;
        std::unique_ptr<Engine> engine;
        const auto begin = [&](const Kept& kept) {
          engine.reset();
          o.state_in_host = kept.state_in_host;
          backend = must(cuda::make_backend({.shape = o.shape,
                                             .precision = o.precision,
                                             .recompute = kept.inputs_in_host ? Recompute::block
                                                                              : Recompute::nothing,
                                             .frames = o.wave,
                                             .muon = o.optimizer == Optimizer::muon,
                                             .inputs_in_host = kept.inputs_in_host}))
                        .take();
          engine = must(Engine::create(o, *backend, axes_of(of_group, of_shard), *state)).take();
        };
        begin(kept.at(std::max<uint64_t>(first, 1)));
        REQUIRE((restore ? engine->attach().status() : engine->initialize()).ok());
        std::vector<int32_t> tokens(static_cast<size_t>(o.shape.block_size + 1));
        for (uint64_t step = first; step <= last; ++step) {
          if (step == kept.until_step + 1 && step > first) {
            begin(kept.at(step));
            REQUIRE(engine->attach().ok());
          }
          if (step > 0) {
            const auto result = engine->step(step, 1e-3f, {}, [&](int k) -> Result<const int32_t*> {
              for (size_t i = 0; i < tokens.size(); ++i)
                tokens[i] = static_cast<int32_t>((step + engine->leaf(k) * 7 + i * i) % 96);
              return tokens.data();
            });
            INFO(result.status().message());
            REQUIRE(result.ok());
            REQUIRE(engine->wait_for_commit().ok());
            CHECK(state_hash(state->committed()) == state->committed_hash());
            if (group == 0 && shard == 0)
              states[step][kScalars] = {static_cast<float>(result->loss),
                                        static_cast<float>(result->grad_norm)};
          }
          if (group == 0)  // the shards write different elements
            add_shard(states[step], state->committed(), o.shape, static_cast<size_t>(shards),
                      static_cast<size_t>(shard));
        }
      },
      native_sums);
  return left;
}

std::vector<Whole> states_of(int groups, int shards, const EngineOptions& options,
                             bool native_sums = false, const Kept& kept = {}) {
  std::vector<Whole> states = no_states(options);
  train(groups, shards, options, native_sums, kept, kSteps, states);
  return states;
}

/// Commits what all shards of a group of another size hold, as the nodes that form other groups do.
void reshape(const Generation& from, int from_shards, const ModelShape& shape, TrainState& to,
             int to_shards, int shard) {
  const auto side = must(to.begin_write(0));
  std::vector<Piece> all;
  for (int part = 0; part < from_shards; ++part) {
    TrainState& other = *from[static_cast<size_t>(part)];
    const std::vector<Piece> pieces =
        common_pieces(units_of(shape), static_cast<size_t>(from_shards), static_cast<size_t>(part),
                      static_cast<size_t>(to_shards), static_cast<size_t>(shard));
    if (!pieces.empty()) REQUIRE(take_pieces(other.committed(), *side, pieces).ok());
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  clear_padding(*side, all);
  to.commit(from[0]->step(), state_hash(*side));
}

/// Writes a checkpoint of a group's shards, and opens it.
Checkpoint checkpoint_of(const Generation& group, int shards, const EngineOptions& options,
                         const std::string& folder) {
  const uint64_t step = group[0]->step();
  const std::string tmp = checkpoint_tmp_folder(folder, step, 1);
  std::vector<ShardRecord> records;
  for (int shard = 0; shard < shards; ++shard)
    records.push_back(must(write_shard(tmp, options.shape, static_cast<size_t>(shards),
                                       static_cast<size_t>(shard),
                                       group[static_cast<size_t>(shard)]->committed()))
                          .take());
  const CheckpointInfo info{.step = step,
                            .shape = options.shape,
                            .precision = options.precision == DType::f32 ? "fp32" : "bf16",
                            .shards = static_cast<size_t>(shards),
                            .state = state_format(options)};
  return must(Checkpoint::open(*must(publish_checkpoint(folder, tmp, "1", info, records)))).take();
}

std::vector<Whole> states_of(int groups, int shards, Optimizer optimizer, DType precision,
                             bool native_sums = false, int wave = 1) {
  EngineOptions options = options_for(optimizer, precision);
  options.wave = wave;
  return states_of(groups, shards, options, native_sums);
}

constexpr std::pair<int, int> kLayouts[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}};

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE("gpu: average and moments in bf16 have the same bits on every layout") {
    for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::muon}) {
      const std::vector<Whole> states = states_of(1, 1, optimizer, DType::f32);
      const auto of = [&](uint64_t step, StateKind kind) -> const std::vector<float>& {
        return states[step][static_cast<size_t>(kind)];
      };
      std::vector<float> mean = of(0, StateKind::params);
      CHECK(mean == of(0, StateKind::ema));
      for (uint64_t step = 1; step <= kSteps; ++step) {
        const std::vector<float>& params = of(step, StateKind::params);
        CHECK(params != of(step - 1, StateKind::params));
        for (size_t i = 0; i < mean.size(); ++i) {
          volatile float moved = (params[i] - mean[i]) * (1 - kDecay);
          mean[i] += moved;
        }
        CHECK(mean == of(step, StateKind::ema));
        for (const StateKind kind : {StateKind::exp_avg, StateKind::exp_avg_sq})
          CHECK(std::ranges::count(of(step, kind), 0.0f) <
                static_cast<ptrdiff_t>(mean.size()) * 9 / 10);
      }
      CHECK(states_of(2, 1, optimizer, DType::f32) == states);
      CHECK(states_of(2, 2, optimizer, DType::f32) == states);
    }
  }

  TEST_CASE("gpu: native sums train as sums in tree order, and replicas agree on their bits") {
    // Each vote compares the replicas' states: a difference fails the step after it.
    for (const auto& [optimizer, precision] : {std::pair{Optimizer::adamw, DType::f32},
                                               {Optimizer::muon, DType::f32},
                                               {Optimizer::adamw, DType::bf16},
                                               {Optimizer::muon, DType::bf16}}) {
      CAPTURE(static_cast<int>(optimizer));
      CAPTURE(static_cast<int>(precision));
      const std::vector<Whole> states = states_of(1, 1, optimizer, precision);
      for (const auto& [groups, shards] : {std::pair{4, 1}, {1, 4}, {2, 2}}) {
        CAPTURE(groups);
        const std::vector<Whole> native = states_of(groups, shards, optimizer, precision, true);
        // A sum of two is the same in any order, and so are sums of few numbers in bf16 in fp32.
        if (shards == 4 || (groups == 4 && precision == DType::f32)) CHECK(native != states);
        const auto part = static_cast<size_t>(StateKind::exp_avg);
        double difference = 0, norm = 0;
        for (size_t i = 0; i < native[kSteps][part].size(); ++i) {
          const double ordered{states[kSteps][part][i]};
          difference += std::pow(double{native[kSteps][part][i]} - ordered, 2);
          norm += ordered * ordered;
        }
        // The moments are rounded to bf16; with bf16 so are the sums of gradients.
        CHECK(std::sqrt(difference / norm) < (precision == DType::f32 ? 5e-3 : 2e-2));
      }
    }
  }

  TEST_CASE("gpu: ENGINE-3, micro-batches that pass each unit in waves change no bit") {
    for (const DType precision : {DType::f32, DType::bf16}) {
      const std::vector<Whole> states = states_of(1, 1, Optimizer::adamw, precision);
      for (const int wave : {2, 4})
        for (const auto& [groups, shards] :
             {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 3}, {1, 4}}) {
          INFO("wave = ", wave, ", groups = ", groups, ", shards = ", shards);
          CHECK(states_of(groups, shards, Optimizer::adamw, precision, false, wave) == states);
        }
    }
    // NCCL's own sums of two ranks are the same in any order; waves add their micro-batches first.
    const std::vector<Whole> states = states_of(1, 1, Optimizer::adamw, DType::f32);
    CHECK(states_of(1, 2, Optimizer::adamw, DType::f32, true, 2) == states);
  }

  TEST_CASE(
      "gpu: ENGINE-8, what a GPU keeps in host memory changes no bit, nor does a change of it") {
    for (const DType precision : {DType::f32, DType::bf16})
      for (const bool tied : {false, true}) {
        EngineOptions o = options_for(Optimizer::adamw, precision);
        o.shape.layers = 4;
        o.shape.tie_embeddings = tied;
        o.moments = tied ? DType::bf16 : DType::f32;
        if (tied && precision == DType::bf16) o.shape.norm = NormPlacement::post;
        if (!tied) o.ema_decay = 0;
        const std::vector<Whole> states = states_of(1, 1, o);
        CHECK(states[1] != states[2]);
        for (const auto& [groups, shards] : kLayouts)
          for (const int wave : {1, 2, kLeaves}) {  // kLeaves: all pass a unit together
            INFO("precision ", static_cast<int>(precision), ", tied ", tied, ", groups ", groups,
                 ", shards ", shards, ", wave ", wave);
            o.wave = wave;
            CHECK(states_of(groups, shards, o, false, {.state_in_host = true}) == states);
            CHECK(states_of(groups, shards, o, false, {.inputs_in_host = true}) == states);
            CHECK(states_of(groups, shards, o, false, {true, true, wave == 1 ? 1u : 2u}) == states);
            if (wave == 1) CHECK(states_of(groups, shards, o, false, {false, false, 1}) == states);
          }
      }
  }

  TEST_CASE(
      "gpu: ENGINE-8, gradients are summed by NCCL and parameters sharded with the same bits") {
    EngineOptions o = options_for(Optimizer::adamw, DType::bf16);
    for (const Sharding sharding : {Sharding::full_shard, Sharding::shard_grad_op}) {
      o.sharding = sharding;
      CHECK(states_of(1, 2, o, true, {.state_in_host = true}) == states_of(1, 2, o, true));
    }
  }

  TEST_CASE("gpu: ENGINE-8, a run goes on from a checkpoint on disk with the opposite setting") {
    for (const DType precision : {DType::f32, DType::bf16}) {
      EngineOptions o = options_for(Optimizer::adamw, precision);
      o.wave = kLeaves;  // sums and parameters leave the GPU
      o.shape.tie_embeddings = precision == DType::bf16;
      const std::vector<Whole> expected = states_of(1, 1, o);
      for (const bool first : {false, true})
        for (const int shards : {1, 2}) {
          INFO("precision ", static_cast<int>(precision), ", first in host memory ", first,
               ", shards ", shards);
          std::vector<Whole> states = no_states(o);
          const test::TempFolder folder;
          const Generation left = train(1, shards, o, false, {first, first}, 1, states);
          Checkpoint checkpoint = checkpoint_of(left, shards, o, folder.path);
          CHECK(checkpoint.info().step == 1);
          std::mutex one_at_a_time;  // the file is this process's, not one of each trainer
          train(1, shards, o, false, {!first, !first}, kSteps, states,
                [&](TrainState& state, int shard) {
                  const std::lock_guard lock(one_at_a_time);
                  const auto side = must(state.begin_write(0));
                  must(read_shard(checkpoint, static_cast<size_t>(shards),
                                  static_cast<size_t>(shard), *side));
                  state.commit(1, state_hash(*side));
                });
          CHECK(states == expected);
        }
    }
  }

  TEST_CASE("gpu: ENGINE-8, groups of another size go on with the same bits") {
    EngineOptions o = options_for(Optimizer::adamw, DType::bf16);
    o.shape.layers = 4;
    for (const int wave : {1, kLeaves}) {
      o.wave = wave;
      const std::vector<Whole> expected = states_of(1, 1, o);
      struct Shape {
        int groups, shards;
      };
      for (const auto& [before, after] : {std::pair{Shape{1, 2}, Shape{1, 1}},
                                          {Shape{1, 1}, Shape{1, 2}},
                                          {Shape{2, 2}, Shape{1, 3}},
                                          {Shape{1, 4}, Shape{2, 1}}})
        for (const Kept& kept : {Kept{true, true}, Kept{true, false, 1}, Kept{false, false, 1}}) {
          INFO("wave ", wave, ", ", before.groups, "x", before.shards, " to ", after.groups, "x",
               after.shards, ", state in host memory ", kept.state_in_host, ", until step ",
               kept.until_step);
          std::vector<Whole> states = no_states(o);
          const Generation left = train(before.groups, before.shards, o, false, kept, 1, states);
          train(after.groups, after.shards, o, false, kept, kSteps, states,
                [&, from = before.shards, to = after.shards](TrainState& state, int shard) {
                  reshape(left, from, o.shape, state, to, shard);
                });
          CHECK(states == expected);
        }
    }
  }

  TEST_CASE("gpu: inputs of blocks are in host memory only if the blocks are recomputed") {
    const ModelShape shape = options_for(Optimizer::adamw).shape;
    for (const Recompute recompute : {Recompute::nothing, Recompute::mlp, Recompute::block}) {
      const auto made =
          cuda::make_backend({.shape = shape, .recompute = recompute, .inputs_in_host = true});
      CHECK(made.ok() == (recompute == Recompute::block));
      if (!made.ok()) CHECK(made.status().code() == Code::bad_config);
    }
  }

  TEST_CASE("gpu: ENGINE-5, a state in host memory that changes in a step is found") {
    EngineOptions o = options_for(Optimizer::adamw, DType::bf16);
    o.state_in_host = true;
    ThreadCommunicator alone(1, 60'000);
    const auto shard = communicator("shard", alone.rank(0)),
               replicate = communicator("replicate", alone.rank(0));
    auto state =
        must(TrainState::create("ss-test-changes-" + std::to_string(getpid()), 1,
                                shard_layout(units_of(o.shape), 1).total, state_format(o)));
    auto backend = must(cuda::make_backend({.shape = o.shape, .precision = o.precision}));
    auto engine = must(Engine::create(o, **backend, axes_of(*shard, *replicate), *state));
    REQUIRE((*engine)->initialize().ok());
    const std::vector<int32_t> tokens(static_cast<size_t>(o.shape.block_size + 1), 5);
    const auto step = [&](uint64_t number, bool damage) {
      return (*engine)
          ->step(number, 1e-3f, {},
                 [&](int k) -> Result<const int32_t*> {
                   if (damage && k == 0) state->committed().exp_avg.back() += 1;
                   return tokens.data();
                 })
          .status();
    };
    CHECK(step(1, false).ok());
    CHECK(state->step() == 1);  // at once
    const Hash128 first = state->committed_hash();
    const Status status = step(2, true);
    CHECK(status.code() == Code::mismatch);
    CHECK((*engine)->damaged());
    CHECK(state->step() == 1);
    CHECK(state->committed_hash() == first);
  }

  TEST_CASE("gpu: one GPU in bf16 makes the bits of other layouts") {
    for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::muon}) {
      const std::vector<Whole> states = states_of(1, 1, optimizer, DType::bf16);
      CHECK(states_of(2, 1, optimizer, DType::bf16) == states);
      CHECK(states_of(1, 2, optimizer, DType::bf16) == states);
    }
  }

  TEST_CASE("gpu: a step on one GPU neither copies the total gradient nor casts parameters again") {
    for (const int leaves : {1, 2, 3}) {
      CAPTURE(leaves);
      EngineOptions o = options_for(Optimizer::adamw, DType::bf16);
      o.leaves = leaves;
      ThreadCommunicator alone(1, 60'000);
      const auto shard = communicator("shard", alone.rank(0)),
                 replicate = communicator("replicate", alone.rank(0));
      auto state =
          must(TrainState::create("ss-test-one-gpu-" + std::to_string(getpid()), 1,
                                  shard_layout(units_of(o.shape), 1).total, state_format(o)));
      auto backend = must(cuda::make_backend({.shape = o.shape, .precision = o.precision}));
      auto engine = must(Engine::create(o, **backend, axes_of(*shard, *replicate), *state));
      REQUIRE((*engine)->initialize().ok());
      const std::vector<int32_t> tokens(static_cast<size_t>(o.shape.block_size + 1), 5);
      std::vector<std::string> calls;
      for (uint64_t step : {1, 2}) {
        if (step == 2) fake_gpu::record(&calls);
        CHECK((*engine)
                  ->step(step, 1e-3f, {},
                         [&](int) -> Result<const int32_t*> { return tokens.data(); })
                  .ok());
      }
      fake_gpu::record(nullptr);
      CHECK((*engine)->wait_for_commit().ok());
      CHECK(std::ranges::count(calls, "kernel to_bf16") == 0);
      // Three leaves make two nodes, which are added in place; else the only node is the total.
      const auto units = static_cast<ptrdiff_t>(units_of(o.shape).size());
      const auto sums = std::ranges::count_if(
          calls, [](const std::string& c) { return c.starts_with("kernel run_tree_program"); });
      CHECK(sums == units * (leaves + (leaves == 3 ? 1 : 0)));
    }
  }
}
