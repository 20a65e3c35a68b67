// The harness of the engine's tests: groups x shards engines on threads, over ThreadCommunicators,
// with a backend each.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "model/engine/engine.hpp"
#include "tests/model/fake_backend.hpp"
#include "tests/model/thread_collective.hpp"
#include "tests/must.hpp"

namespace simplescale {

inline ModelShape test_shape(bool tied = false) {
  ModelShape shape{.dim = 16,
                   .hidden = 48,
                   .layers = 3,
                   .heads = 2,
                   .kv_heads = 1,
                   .vocab = 300,
                   .block_size = 8};
  shape.tie_embeddings = tied;
  return shape;
}

/// The tokens of leaf `leaf` of `step`: (B, T + 1). documents: with documents and targets that are
/// not trained, in some leaves nearly all of them.
inline std::vector<int32_t> test_tokens(const EngineOptions& options, uint64_t step, uint64_t leaf,
                                        bool documents = false) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < options.micro_batch_size * (options.shape.block_size + 1); ++i) {
    const uint64_t text = step * 1009 + leaf * 31 + static_cast<uint64_t>(i * i);
    tokens.push_back(
        static_cast<int32_t>(hash128(&text, 8).low % static_cast<uint64_t>(options.shape.vocab)));
    const uint64_t draw = hash128(&text, 8).high;
    if (documents && draw % 4 == 0) tokens.back() |= kBeginsDocument;
    if (documents && draw / 4 % (leaf % 3 == 0 ? 8 : 3) != 1) tokens.back() |= kNotTrained;
  }
  return tokens;
}

using MakeBackend = std::function<std::unique_ptr<Backend>(const BackendOptions&)>;
inline MakeBackend fake_backends(bool host = true) {
  return [host](const BackendOptions& options) {
    return std::make_unique<FakeBackend>(options, host);
  };
}

/// The values of a part, in fp32.
inline std::vector<float> values_of(const TrainState::Side& side, StateKind kind) {
  const std::span<float> part = side.parts()[static_cast<size_t>(kind)];
  std::vector<float> values(part.begin(), part.end());
  if (side.format().dtype(kind) == DType::f32) return values;
  values.resize(2 * part.size());
  std::ranges::transform(bf16_elements(part), values.begin(), bf16_to_f32);
  return values;
}

/// One rank.
struct Seat {
  int group = 0, shard = 0;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Engine> engine;
  TrainState* state = nullptr;
  FakeBackend& fake() { return static_cast<FakeBackend&>(*backend); }
};

class World {
 public:
  /// states: those of an earlier world with the same layout, to continue from; empty: new ones.
  World(const EngineOptions& options, int groups, int shards, MakeBackend make = fake_backends(),
        std::vector<TrainState> states = {}, int timeout_ms = 60'000)
      : options(options), groups(groups), shards(shards), states(std::move(states)) {
    const ShardLayout layout = shard_layout(units_of(options.shape), static_cast<size_t>(shards));
    for (int group = 0; group < groups; ++group)
      shard_wise.push_back(std::make_unique<ThreadCommunicator>(shards, timeout_ms));
    for (int shard = 0; shard < shards; ++shard)
      replicate_wise.push_back(std::make_unique<ThreadCommunicator>(groups, timeout_ms));
    for (int rank = 0; this->states.size() < static_cast<size_t>(groups * shards); ++rank) {
      static std::atomic<int> count = 0;
      const std::string name =
          "ss-test-engine-" + std::to_string(getpid()) + "-" + std::to_string(count++);
      Result<TrainState> state =
          must(TrainState::create(name, 1, layout.total, state_format(options)));
      this->states.push_back(state.take());
    }
    for (int group = 0; group < groups; ++group) {
      for (int shard = 0; shard < shards; ++shard) {
        Seat seat{.group = group, .shard = shard};
        BackendOptions backend;
        backend.shape = options.shape;
        backend.precision = options.precision;
        backend.micro_batch_size = options.micro_batch_size;
        backend.frames = options.wave;
        if (has_resident_experts(options, static_cast<size_t>(shards)))
          backend.expert_shards = shards;
        backend.z_loss = options.z_loss;
        backend.fp8 = options.fp8;
        backend.muon = options.optimizer == Optimizer::muon;
        seat.backend = make(backend);
        seat.state = &this->states[static_cast<size_t>(group * shards + shard)];
        Result<std::unique_ptr<Engine>> engine =
            must(Engine::create(options, *seat.backend, axes(seat), *seat.state));
        seat.engine = engine.take();
        if (seat.state->has_step()) REQUIRE(seat.engine->attach().ok());
        seats.push_back(std::move(seat));
      }
    }
  }

  Collective& shard_communicator(const Seat& seat) {
    return shard_wise[static_cast<size_t>(seat.group)]->rank(seat.shard);
  }
  Collective& replicate_communicator(const Seat& seat) {
    return replicate_wise[static_cast<size_t>(seat.shard)]->rank(seat.group);
  }
  Axes axes(const Seat& seat) {
    return axes_of(shard_communicator(seat), replicate_communicator(seat));
  }

  /// Runs work(seat) for every rank on a thread of its own.
  void each(const std::function<void(Seat&)>& work) {
    std::vector<std::thread> threads;
    for (Seat& seat : seats) threads.emplace_back([&] { work(seat); });
    for (std::thread& thread : threads) thread.join();
  }

  void initialize() {
    for (Seat& seat : seats) REQUIRE(seat.engine->initialize().ok());
  }

  /// Runs one step with test_tokens() on this rank.
  Result<StepResult> step(Seat& seat, uint64_t step, const StepControl& control = {}) {
    std::vector<int32_t> tokens;
    return seat.engine->step(step, 1e-2f / static_cast<float>(step), control,
                             [&](int k) -> Result<const int32_t*> {
                               tokens = test_tokens(options, step, seat.engine->leaf(k), documents);
                               return static_cast<const int32_t*>(tokens.data());
                             });
  }

  /// Runs steps first ... last on all ranks; returns their results, which must be equal on all
  /// ranks.
  std::vector<StepResult> train(uint64_t first, uint64_t last) {
    std::vector<std::vector<StepResult>> results(seats.size());
    std::vector<Status> errors(seats.size());
    each([&](Seat& seat) {
      const size_t rank = static_cast<size_t>(&seat - seats.data());
      for (uint64_t s = first; s <= last && errors[rank].ok(); ++s) {
        Result<StepResult> result = step(seat, s);
        if (result.ok())
          results[rank].push_back(*result);
        else
          errors[rank] = result.status();
      }
      if (errors[rank].ok()) errors[rank] = seat.engine->wait_for_commit();
    });
    for (size_t rank = 0; rank < seats.size(); ++rank) {
      INFO(errors[rank].message());
      REQUIRE(errors[rank].ok());
      for (size_t i = 0; i < results[rank].size(); ++i) {
        CHECK(results[rank][i].loss == results[0][i].loss);
        CHECK(results[rank][i].grad_norm == results[0][i].grad_norm);
      }
    }
    return results[0];
  }

  /// A unit of a part of a group's state, with padding.
  std::vector<float> whole_unit(StateKind kind, size_t unit, int group = 0) {
    const ShardLayout layout = shard_layout(units_of(options.shape), static_cast<size_t>(shards));
    std::vector<float> whole;
    for (int shard = 0; shard < shards; ++shard) {
      const TrainState::Side side = states[static_cast<size_t>(group * shards + shard)].committed();
      const std::vector<float> part = values_of(side, kind);
      const auto first = part.begin() + static_cast<ptrdiff_t>(layout.offset[unit]);
      whole.insert(whole.end(), first, first + static_cast<ptrdiff_t>(layout.count[unit]));
    }
    return whole;
  }

  /// Hash of all parts of a group's state, without padding, and of its step.
  std::string digest(int group = 0) {
    const std::vector<Unit> units = units_of(options.shape);
    Hasher hasher;
    for (const StateKind kind : state_kinds(options.ema_decay > 0)) {
      for (size_t unit = 0; unit < units.size(); ++unit) {
        const std::vector<float> whole = whole_unit(kind, unit, group);
        size_t dirty = 0;
        for (size_t i = units[unit].count; i < whole.size(); ++i) dirty += whole[i] != 0;
        CHECK(dirty == 0);  // padding is zero
        hasher.update(whole.data(), units[unit].count * sizeof(float));
      }
    }
    const uint64_t step = states[static_cast<size_t>(group * shards)].step();
    hasher.update(&step, sizeof(step));
    return hasher.digest().hex();
  }

  EngineOptions options;
  bool documents = false;  // as of test_tokens()
  int groups, shards;
  std::vector<std::unique_ptr<ThreadCommunicator>> shard_wise, replicate_wise;
  std::vector<TrainState> states;
  std::vector<Seat> seats;  // (groups, shards)
};

}  // namespace simplescale
