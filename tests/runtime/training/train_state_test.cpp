#include "runtime/training/train_state.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "runtime/training/state_hash.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

constexpr size_t kTotal = 2048;

std::string segment_name() {
  static int count = 0;
  return "ss-test-state-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

TrainState new_state(const std::string& name = segment_name()) {
  Result<TrainState> state = must(TrainState::create(name, 7, kTotal));
  return state.take();
}

void write(TrainState& state, uint64_t step) {
  Result<TrainState::Side> side = must(state.begin_write(1000));
  for (float& value : side->params) value = static_cast<float>(step);
  for (float& value : side->exp_avg_sq) value = -static_cast<float>(step);
  state.commit(step);
}

}  // namespace

TEST_SUITE("train_state") {
  TEST_CASE("train_state: STATE-1, a writer that dies leaves the committed side whole") {
    const std::string name = segment_name();
    TrainState node = new_state(name);
    CHECK_FALSE(node.has_step());
    {
      Result<TrainState> trainer = must(TrainState::open(name));
      write(*trainer, 0);
      write(*trainer, 1);
      Result<TrainState::Side> half = must(trainer->begin_write(1000));
      half->params[5] = 99;
    }
    CHECK(node.step() == 1);
    CHECK_FALSE(node.holds(0));
    CHECK_FALSE(node.holds(2));
    for (float value : node.committed().params) CHECK(value == 1);
    CHECK(node.committed().exp_avg_sq[kTotal - 1] == -1);
    CHECK(node.committed().exp_avg[0] == 0);
  }

  TEST_CASE("train_state: rewind() goes back to the step before the committed one, once") {
    TrainState state = new_state();
    for (uint64_t step = 0; step <= 3; ++step) write(state, step);
    CHECK(state.holds(2));
    CHECK(state.rewind(3).ok());
    CHECK(state.step() == 3);
    CHECK(state.rewind(1).code() == Code::not_found);
    CHECK(state.rewind(2).ok());
    CHECK(state.step() == 2);
    CHECK(state.committed().params[0] == 2);
    write(state, 3);
    CHECK(state.holds(2));
    CHECK(state.committed().params[0] == 3);
    REQUIRE(state.invalidate_as(0, 7, kTotal).ok());
    CHECK_FALSE(state.has_step());
    CHECK_FALSE(state.holds(3));
    CHECK(state.rewind(3).code() == Code::not_found);
  }

  TEST_CASE(
      "train_state: the writer waits for the pins of the side to be written, until a deadline") {
    TrainState state = new_state();
    write(state, 0);
    write(state, 1);
    CHECK(state.pin(5).status().code() == Code::not_found);
    Result<int> pin = must(state.pin(1));
    CHECK(state.side(*pin).params[0] == 1);
    write(state, 2);  // the other side is free
    CHECK(state.begin_write(0).status().code() == Code::deadline);
    CHECK(state.step() == 2);
    CHECK(state.side(*pin).params[0] == 1);
    Result<int> other = state.pin(1);  // the writer that waits has not forgotten its step yet
    REQUIRE(other.ok());
    state.unpin(*other);
    std::thread reader([&] { state.unpin(*pin); });
    CHECK(state.begin_write(60'000).ok());
    reader.join();
    CHECK(state.pin(1).status().code() == Code::not_found);  // begin_write() has forgotten it
    state.commit(3);
    CHECK(state.step() == 3);
  }

  TEST_CASE("train_state: the pins of a dead reader are cleared") {
    TrainState state = new_state();
    write(state, 0);
    REQUIRE(state.pin(0).ok());
    REQUIRE(state.pin(0).ok());
    write(state, 1);
    CHECK(state.begin_write(0).status().code() == Code::deadline);
    state.clear_pins();
    state.unpin(0);  // no effect
    CHECK(state.begin_write(0).ok());
  }

  TEST_CASE("train_state: a pinned side does not change") {
    TrainState state = new_state();
    write(state, 0);
    std::atomic<bool> done = false;
    uint64_t reads = 0, torn = 0;
    std::thread reader([&] {
      while (!done || reads == 0) {
        const uint64_t step = state.step();
        const Result<int> pin = state.pin(step);
        if (!pin.ok()) continue;
        const TrainState::Side side = state.side(*pin);
        for (size_t i = 0; i < kTotal; ++i) {
          if (side.params[i] != static_cast<float>(step)) ++torn;
          if (side.exp_avg_sq[i] != -static_cast<float>(step)) ++torn;
        }
        ++reads;
        state.unpin(*pin);
      }
    });
    for (uint64_t step = 1; step <= 3000; ++step) {
      Result<TrainState::Side> side = state.begin_write(60'000);
      if (!side.ok()) break;
      for (float& value : side->params) value = static_cast<float>(step);
      for (float& value : side->exp_avg_sq) value = -static_cast<float>(step);
      state.commit(step);
    }
    done = true;
    reader.join();
    CHECK(torn == 0);
    CHECK(state.step() == 3000);
  }

  TEST_CASE("train_state: what is no training state, or is damaged, is refused") {
    const std::string name = segment_name();
    const TrainState state = new_state(name);
    CHECK(TrainState::open(name).ok());
    CHECK_FALSE(TrainState::open(name + "-missing").ok());
    Result<SharedMemory> memory = must(SharedMemory::open(name));
    auto* header = static_cast<StateHeader*>(memory->data());
    for (const size_t side : {0, 1}) {
      header->total[side] = kTotal + 1;
      CHECK(has(TrainState::open(name).status(), "shorter than its header"));
      header->total[side] = kTotal;
    }
    header->capacity = kTotal + 1024;
    CHECK(has(TrainState::open(name).status(), "shorter than its header"));
    header->capacity = kTotal;
    CHECK(TrainState::open(name).ok());
    Result<SharedMemory> small = must(SharedMemory::create(name + "-small", 64));
    CHECK(TrainState::open(name + "-small").status().code() == Code::bad_data);
  }

  TEST_CASE("train_state: a state with an average has a fourth part, which costs nothing without") {
    const std::string name = segment_name();
    Result<TrainState> made = must(TrainState::create(name, 7, kTotal, {.ema = true}));
    Result<TrainState> state = must(TrainState::open(name));
    write(*state, 1);
    const Result<TrainState::Side> side = must(state->begin_write(0));
    std::ranges::fill(side->ema, 5.0f);
    state->commit(2);
    CHECK(state->side(0).ema.data() + kTotal == state->side(1).params.data());
    CHECK(made->committed().ema[kTotal - 1] == 5);
    CHECK(state->side(1).values() == 4 * kTotal);
    TrainState without = new_state();
    CHECK(without.side(1).ema.empty());
    CHECK(without.side(1).values() == 3 * kTotal);
    CHECK(TrainState::bytes_for(kTotal, {.ema = true}) - TrainState::bytes_for(kTotal, {}) ==
          2 * kTotal * sizeof(float));
    Result<SharedMemory> memory = must(SharedMemory::open(name));
    for (const uint64_t parts : {2, 5}) {
      static_cast<StateHeader*>(memory->data())->parts = parts;
      CHECK(TrainState::open(name).status().code() == Code::bad_data);
    }
    const std::string shorter = segment_name();  // than its header says
    const TrainState three = new_state(shorter);
    Result<SharedMemory> short_memory = must(SharedMemory::open(shorter));
    static_cast<StateHeader*>(short_memory->data())->parts = 4;
    CHECK(TrainState::open(shorter).status().code() == Code::bad_data);
  }

  TEST_CASE("train_state: moments in bf16 take half the bytes, and every bit of them is hashed") {
    const std::string name = segment_name();
    const StateFormat format{.ema = true, .moments = DType::bf16};
    Result<TrainState> made = must(TrainState::create(name, 7, kTotal, format));
    Result<TrainState> state = must(TrainState::open(name));
    CHECK(state->format() == format);
    CHECK(state->side(1).format() == format);
    CHECK(state->side(0).ema.data() + kTotal == state->side(1).params.data());
    CHECK(state->side(0).ema.data() == state->side(0).params.data() + 2 * kTotal);
    CHECK(TrainState::bytes_for(kTotal, format) - TrainState::bytes_for(kTotal, {}) == 0);
    CHECK(TrainState::bytes_for(kTotal, {}) -
              TrainState::bytes_for(kTotal, {.moments = DType::bf16}) ==
          2 * kTotal * sizeof(float));
    const TrainState::Side side = state->side(0);
    Hash128 last = state_hash(side);
    for (const std::span<float> moment : {side.exp_avg, side.exp_avg_sq}) {
      const std::span<uint16_t> elements = bf16_elements(moment);
      CHECK(elements.size() == kTotal);
      for (const size_t i : {size_t{0}, size_t{1}, kTotal - 1}) {
        elements[i] ^= 1;
        CHECK(state_hash(side) != last);
        last = state_hash(side);
      }
    }
    Result<SharedMemory> memory = must(SharedMemory::open(name));
    static_cast<StateHeader*>(memory->data())->moment_bytes = 3;
    CHECK(has(TrainState::open(name).status(), "moments of 3 bytes"));
    static_cast<StateHeader*>(memory->data())->moment_bytes = 4;  // then it is too short
    CHECK(has(TrainState::open(name).status(), "shorter than its header"));
  }

  TEST_CASE("train_state: a side has a layout of its own, and both may hold the same step") {
    constexpr size_t kMore = 3 * kTotal;
    const std::string name = segment_name();
    TrainState state = must(TrainState::create(name, layout_of(3, 1), kTotal, {}, kMore)).take();
    write(state, 4);
    write(state, 5);
    Result<TrainState> any = must(TrainState::open(name));
    Result<TrainState::Side> side = must(any->begin_write(0, layout_of(1, 0), kMore));
    CHECK(side->params.size() == kMore);
    for (const std::span<float> part : side->parts())
      CHECK(std::ranges::all_of(part, [](float x) { return x == 0; }));
    CHECK(any->holds(5));
    CHECK_FALSE(any->holds(4));
    std::ranges::fill(side->params, 42.0f);
    any->set_generation(2);
    any->commit(5);
    CHECK(state.committed().params[kMore - 1] == 42);
    CHECK(state.holds(5, layout_of(3, 1)));
    CHECK(state.holds(5, layout_of(1, 0)));
    CHECK_FALSE(state.holds(5, layout_of(1, 1)));
    const Result<int> old = must(state.pin(5, layout_of(3, 1))), now = must(state.pin(5));
    CHECK(*now == state.committed_side());
    CHECK(*old == 1 - *now);
    CHECK(state.side(*old).params[kTotal - 1] == 5);
    CHECK(state.held(*old) == StateCopy{1, 5, 0, 3});
    CHECK(state.held(*now) == StateCopy{0, 5, 2, 1});
    CHECK(state.begin_write(0).status().code() == Code::deadline);
    state.clear_pins();

    REQUIRE(state.rewind(5, layout_of(3, 1)).ok());
    CHECK(state.committed().params.size() == kTotal);
    REQUIRE(state.rewind(5, layout_of(1, 0)).ok());
    write(state, 6);  // with the layout of the committed side
    CHECK(state.committed().params.size() == kMore);
    CHECK_FALSE(state.holds(5, layout_of(3, 1)));
    CHECK(state.begin_write(0, layout_of(1, 0), 2 * kMore).status().code() == Code::io);
    CHECK(state.step() == 6);

    REQUIRE(state.invalidate_as(0, layout_of(2, 1), 2 * kTotal).ok());
    CHECK_FALSE(state.has_step());
    for (const int index : {0, 1}) {
      CHECK(state.layout(index) == layout_of(2, 1));
      CHECK(state.side(index).params.size() == 2 * kTotal);
      CHECK(state.side(index).params[0] == 0);
    }
    write(state, 5);
    CHECK(state.step() == 5);
  }

  TEST_CASE("train_state: STATE-2, a copy is compared with its hash at commit") {
    TrainState state = new_state();
    write(state, 3);  // committed without a hash
    CHECK(state.committed_hash() == Hash128{});
    CHECK(check_side(state, *state.pin(3)).ok());
    state.unpin(0);
    Result<TrainState::Side> side = must(state.begin_write(1000));
    side->params[1] = 4;
    const Hash128 hash = state_hash(*side);
    state.commit(4, hash);
    CHECK(state.committed_hash() == hash);
    const Result<int> four = must(state.pin(4));
    CHECK(state.step_of(*four) == 4);
    CHECK(check_side(state, *four).ok());
    state.committed().exp_avg_sq[kTotal - 1] += 1;
    const Status status = check_side(state, *four);
    CHECK(status.code() == Code::mismatch);
    CHECK(status.message() == "the copy of step 4 has changed in memory since it was committed");
    state.unpin(*four);
    state.commit(5, hash);
    CHECK(state.committed_hash() == hash);
  }

  TEST_CASE("train_state: forget() makes one side unfindable and keeps the other") {
    TrainState state = new_state();
    write(state, 3);
    write(state, 4);
    state.forget(state.committed_side());
    CHECK(state.step() == 3);
    CHECK_FALSE(state.holds(4));
    write(state, 4);
    state.forget(1 - state.committed_side());
    CHECK(state.step() == 4);
    CHECK_FALSE(state.rewind(3).ok());
    state.forget(state.committed_side());
    CHECK_FALSE(state.has_step());
    CHECK_FALSE(state.step_if_any());
  }

  TEST_CASE(
      "train_state: STATE-2 and JOB-3, a side has the generation that computed or began with it") {
    TrainState state = new_state();
    CHECK_FALSE(state.held(0));
    struct Copy {
      uint64_t step, generation;
      bool begun = false;  // the generation began with it
      bool operator==(const Copy&) const = default;
    };
    using Copies = std::vector<Copy>;
    auto both = [&state] {
      Copies sides;
      for (const int side : {0, 1})
        if (const auto copy = state.held(side))
          sides.push_back({copy->step, copy->generation, copy->begun});
      std::ranges::sort(sides, {}, &Copy::step);
      return sides;
    };
    state.set_generation(4);
    write(state, 7);
    write(state, 8);
    CHECK(both() == Copies{{7, 4}, {8, 4}});
    state.set_generation(6);
    CHECK(both() == Copies{{7, 4}, {8, 4}});
    REQUIRE(state.rewind(7).ok());  // so that step 8 is the side that is written next
    CHECK(both() == Copies{{7, 4}, {8, 4}});
    REQUIRE(state.rewind(8).ok());
    REQUIRE(state.begin_generation(8).ok());
    CHECK(both() == Copies{{7, 4}, {8, 6, true}});
    state.set_generation(7);
    REQUIRE(state.begin_generation(7).ok());  // so step 8 is undone
    CHECK(both() == Copies{{7, 7, true}});
    CHECK_FALSE(state.holds(8));
    CHECK(state.begin_generation(8).code() == Code::not_found);
    write(state, 8);
    CHECK(both() == Copies{{7, 7, true}, {8, 7}});
    state.set_generation(9);
    REQUIRE(state.begin_write(0).ok());
    CHECK(both() == Copies{{8, 7}});
    state.commit(9);
    CHECK(both() == Copies{{8, 7}, {9, 9}});
    Result<TrainState> other =
        must(TrainState::open(state.name()));  // with a generation of its own
    write(*other, 10);
    CHECK(both() == Copies{{9, 9}, {10, 0}});
  }

  TEST_CASE("state_hash: depends on every bit and its place, and not on the threads that hash") {
    const size_t total = 2 * kStateHashBlock + 1024;
    std::vector<float> memory(4 * total);
    std::iota(memory.begin(), memory.end(), 1.0f);
    const auto whole = TrainState::Side::over(memory, total),
               side = TrainState::Side::over(std::span(memory).first(3 * total), total);
    const Hash128 hash = state_hash(side), with_average = state_hash(whole);
    CHECK(hash != with_average);
    const Parallel backwards = [](size_t tasks, const std::function<void(size_t)>& body) {
      while (tasks-- > 0) body(tasks);
    };
    CHECK(state_hash(side, backwards) == hash);
    std::vector<Hash128> blocks;
    for (const std::span<float> part : {side.params, side.exp_avg, side.exp_avg_sq})
      hash_blocks(part, blocks);
    CHECK(hash128(blocks.data(), blocks.size() * sizeof(Hash128)) == hash);
    hash_blocks(whole.ema, blocks);
    CHECK(hash128(blocks.data(), blocks.size() * sizeof(Hash128)) == with_average);
    CHECK(state_hash(whole, backwards) == with_average);
    memory.back() += 1;
    CHECK(state_hash(whole) != with_average);
    for (const size_t at : {size_t{0}, kStateHashBlock, total - 1, total, 3 * total - 1}) {
      auto* bits = reinterpret_cast<unsigned char*>(&memory[at]);
      bits[0] ^= 1;
      CHECK(state_hash(side) != hash);
      bits[0] ^= 1;
    }
    std::swap(memory[0], memory[kStateHashBlock]);
    CHECK(state_hash(side) != hash);
    std::vector<float> copy(memory.size());
    TrainState::Side::over(copy, total).copy_from(whole, backwards);
    CHECK(copy == memory);
  }
}
