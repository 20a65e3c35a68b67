// Transfers of a shard's state between trainers.
#include "runtime/training/state_transfer.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "runtime/training/state_hash.hpp"
#include "tests/model/engine_world.hpp"
#include "tests/model/thread_collective.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

constexpr size_t kTotal = (size_t{1} << 20) + 3 * 1024;  // more than one chunk

TrainState new_state(uint32_t layout, size_t total = kTotal, const StateFormat& format = {}) {
  static int count = 0;
  Result<TrainState> state = must(TrainState::create(
      "ss-test-transfer-" + std::to_string(getpid()) + "-" + std::to_string(count++), layout, total,
      format));
  return state.take();
}

/// Commits values that depend on seed, step, part and position.
void write(TrainState& state, uint64_t seed, uint64_t step) {
  Result<TrainState::Side> side = must(state.begin_write(0));
  float value = static_cast<float>(seed * 1000 + step);
  for (const std::span<float> part : side->parts())
    for (float& x : part) x = value += 0.25f;
  state.commit(step, state_hash(*side));
}

/// Flips a bit in the data that the n-th broadcast delivers.
class Damaging : public ForwardingCollective {
 public:
  Damaging(Collective& inner, int damaged) : ForwardingCollective(inner), left_(damaged) {}
  WorkPtr broadcast(void* data, size_t n, DType d, int root) override {
    WorkPtr work = ForwardingCollective::broadcast(data, n, d, root);
    if (left_-- > 0) return work;
    left_ = 1 << 30;
    struct Flip : Work {
      Flip(WorkPtr w, char* b) : work(std::move(w)), byte(b) {}
      Status wait() override {
        Status status = work->wait();
        *byte ^= 4;
        return status;
      }
      WorkPtr work;
      char* byte;
    };
    return std::make_unique<Flip>(std::move(work), static_cast<char*>(data) + n * 2);
  }

 private:
  int left_;
};

/// Counts the floats of all broadcasts, and calls `before` before each.
class Counting : public ForwardingCollective {
 public:
  using ForwardingCollective::ForwardingCollective;
  WorkPtr broadcast(void* data, size_t n, DType d, int root) override {
    if (before) before();
    sent += n;
    return ForwardingCollective::broadcast(data, n, d, root);
  }
  std::function<void()> before;
  size_t sent = 0;
};

/// Rank 0 sends the state of `step`, the other ranks receive it; returns the results in rank order.
/// damaged: index of the broadcast that arrives damaged at the last rank, if any.
std::vector<Status> transfer(std::vector<TrainState>& states, uint64_t step,
                             int damaged = 1 << 30) {
  const int size = static_cast<int>(states.size());
  ThreadCommunicator heal(size, 60'000);
  std::vector<Status> statuses(states.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      const auto i = static_cast<size_t>(rank);
      Damaging bad(heal.rank(rank), rank + 1 == size ? damaged : 1 << 30);
      statuses[i] = rank == 0 ? send_state(bad, states[i], step)
                              : receive_state(bad, states[i], step, "trainer n1.0", 0).status();
    });
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace

TEST_SUITE("state_transfer") {
  TEST_CASE("transfer: receivers get the sender's bits and become its shard") {
    std::vector<TrainState> states;
    states.push_back(new_state(1));
    write(states[0], 1, 6);
    write(states[0], 1, 7);
    states.push_back(new_state(1));  // empty
    states.push_back(new_state(2));  // of another shard, at an older step
    write(states[2], 2, 4);
    write(states[2], 2, 5);
    for (const Status& status : transfer(states, 7)) CHECK(status.ok());
    CHECK_FALSE(states[1].has_step());  // not committed
    CHECK(states[2].step() == 5);
    for (size_t i : {size_t{1}, size_t{2}}) {
      states[i].commit(7);
      CHECK(states[i].step() == 7);
      CHECK(state_hash(states[i].committed()) == state_hash(states[0].committed()));
      CHECK(states[i].holds(5) == (i == 2));
    }
    REQUIRE(states[0].begin_write(0).ok());  // the transfer has unpinned it
    write(states[0], 1, 8);
    REQUIRE(states[0].begin_write(0).ok());
  }

  TEST_CASE(
      "transfer: a receiver keeps its own side of the same step, which other ranks still need") {
    std::vector<TrainState> states;
    for (uint32_t shard : {1, 2}) {  // both hold steps 7 and 8, and go back to 7
      states.push_back(new_state(shard));
      write(states.back(), shard, 7);
      write(states.back(), shard, 8);
    }
    const Hash128 of_two = [&] {
      const Result<int> pin = states[1].pin(7);
      const Hash128 hash = state_hash(states[1].side(*pin));
      states[1].unpin(*pin);
      return hash;
    }();
    for (const Status& status : transfer(states, 7)) CHECK(status.ok());
    REQUIRE(states[1].holds(7));
    const Result<int> pin = states[1].pin(7);
    CHECK(state_hash(states[1].side(*pin)) == of_two);
    states[1].unpin(*pin);
    std::vector<TrainState> back;  // it can still send its own shard
    back.push_back(std::move(states[1]));
    back.push_back(new_state(9));
    for (const Status& status : transfer(back, 7)) CHECK(status.ok());
    back[1].commit(7);
    CHECK(state_hash(back[1].committed()) == of_two);
  }

  TEST_CASE("transfer: damage in any broadcast is detected, and nothing is committed") {
    // Broadcasts: opening, 4 x 2 chunks, hash.
    for (int damaged = 0; damaged < 10; ++damaged) {
      CAPTURE(damaged);
      std::vector<TrainState> states;
      for (int i = 0; i < 3; ++i) states.push_back(new_state(1, kTotal, {.ema = true}));
      write(states[0], 1, 7);
      write(states[2], 3, 6);
      const std::vector<Status> statuses = transfer(states, 7, damaged);
      CHECK(statuses[2].code() == Code::bad_data);
      for (const int rank : {0, 1})  // a damaged opening says nothing about the copy
        CHECK(statuses[rank].code() == (damaged == 0 ? Code::aborted : Code::bad_data));
      CHECK(statuses[0].message() == "state of step 7 was not received completely by rank 2");
      CHECK(statuses[1].message() == statuses[0].message());
      CHECK(statuses[2].message().find("trainer n1.0") != std::string::npos);
      CHECK_FALSE(states[2].holds(7));
      CHECK(states[2].step() == 6);
      CHECK_FALSE(states[1].has_step());
    }
  }

  TEST_CASE("transfer: STATE-2, every rank detects a source that differs from what was committed") {
    for (const bool known : {true, false}) {
      std::vector<TrainState> states;
      for (int i = 0; i < 3; ++i) states.push_back(new_state(1));
      write(states[0], 1, 6);
      const Hash128 hash = state_hash(states[0].committed());
      const Result<TrainState::Side> side = must(states[0].begin_write(0));
      side->copy_from(states[0].committed());
      states[0].commit(7, known ? hash : Hash128{});
      states[0].committed().exp_avg[3] += 1;
      const std::vector<Status> statuses = transfer(states, 7);
      CHECK(statuses[0].code() == (known ? Code::mismatch : Code::ok));
      CHECK(statuses[1].code() == (known ? Code::bad_data : Code::ok));
      CHECK(statuses[2].code() == statuses[1].code());
    }
  }

  TEST_CASE("transfer: a missing step, a wrong size and a pinned side are errors") {
    std::vector<TrainState> states;
    states.push_back(new_state(1));
    write(states[0], 1, 7);
    states.push_back(new_state(1));
    std::vector<Status> statuses = transfer(states, 9);
    CHECK(statuses[0].code() == Code::not_found);
    CHECK(statuses[1].code() == Code::not_found);
    CHECK(statuses[1].message() == "trainer n1.0 does not hold the state of step 9");

    states.pop_back();
    states.push_back(new_state(1, 2048));
    statuses = transfer(states, 7);
    CHECK(statuses[0].code() == Code::aborted);
    CHECK(statuses[1].message().starts_with("trainer n1.0 sends the state of step 7 with "));

    states.pop_back();
    states.push_back(new_state(1));
    ThreadCommunicator heal(2, 60'000);
    std::thread sender([&] { statuses[0] = send_state(heal.rank(0), states[0], 7); });
    statuses[1] = receive_state(heal.rank(1), states[1], 8, "trainer n1.0", 0).status();
    sender.join();
    CHECK(statuses[1].code() == Code::bad_data);
    CHECK(statuses[1].message().starts_with("trainer n1.0 sends the state of step 7 with "));

    write(states[1], 1, 5);
    REQUIRE(states[1].pin(5).ok());
    write(states[1], 1, 6);
    states.push_back(new_state(1));
    statuses = transfer(states, 7);
    CHECK(statuses[0].code() == Code::aborted);  // the copy is good
    CHECK(statuses[1].code() == Code::deadline);
    CHECK(statuses[2].code() == Code::aborted);
    CHECK(states[1].step() == 6);
  }

  TEST_CASE("transfer: rank 0 can send a copy from other memory") {
    TrainState source = new_state(1, kTotal, {.ema = true});
    write(source, 4, 3);
    std::vector<float> memory(4 * kTotal);
    const auto copy = TrainState::Side::over(memory, kTotal);
    const TrainState::Side from = source.committed();
    copy.copy_from(from);
    TrainState target = new_state(1, kTotal, {.ema = true});
    ThreadCommunicator heal(2, 60'000);
    Status sent, received;
    std::thread sender([&] { sent = send_state(heal.rank(0), copy, 3); });
    received = receive_state(heal.rank(1), target, 3, "the peer", 0).status();
    sender.join();
    CHECK(sent.ok());
    REQUIRE(received.ok());
    target.commit(3);
    CHECK(state_hash(target.committed()) == state_hash(from));
    CHECK(std::ranges::equal(target.committed().ema, from.ema));
  }

  TEST_CASE("transfer: moments in bf16 arrive with the sender's bits, in fewer bytes") {
    std::vector<TrainState> states;
    for (int i = 0; i < 2; ++i) states.push_back(new_state(1, kTotal, {.moments = DType::bf16}));
    write(states[0], 1, 7);
    for (const Status& status : transfer(states, 7)) CHECK(status.ok());
    states[1].commit(7);
    CHECK(states[1].committed().values() == 2 * kTotal);
    CHECK(state_hash(states[1].committed()) == state_hash(states[0].committed()));
  }

  TEST_CASE("transfer: receivers of another cut take their elements out of each shard") {
    const std::vector<Unit> units = {
        {"a", {}, 5000}, {"b", {}, (size_t{1} << 21) + 7}, {"c", {}, 1}};
    struct Cuts {
      uint32_t from, to;
    };
    for (const StateFormat& format :
         {StateFormat{}, StateFormat{.ema = true}, StateFormat{.moments = DType::bf16}})
      for (const Cuts cuts : {Cuts{2, 3}, {3, 2}, {2, 1}, {1, 4}}) {
        const uint32_t from = cuts.from, to = cuts.to;
        CAPTURE(from);
        CAPTURE(to);
        const ShardLayout old_layout = shard_layout(units, from), layout = shard_layout(units, to);
        std::vector<TrainState> states;  // the old shards, then the new ones
        for (uint32_t shard = 0; shard < from; ++shard) {
          states.push_back(new_state(layout_of(from, shard), old_layout.total, format));
          Result<TrainState::Side> side = must(states.back().begin_write(0));
          for (size_t part = 0; part < side->parts().size(); ++part)
            for (size_t unit = 0; unit < units.size(); ++unit)
              for (size_t i = 0; i < old_layout.count[unit]; ++i) {
                const size_t element = shard * old_layout.count[unit] + i;
                const std::span<float> values = side->parts()[part];
                if (element >= units[unit].count || values.empty()) continue;
                const auto value = static_cast<float>(element % 251 + 1000 * unit + part);
                if (values.size() == old_layout.total)
                  values[old_layout.offset[unit] + i] = value;
                else
                  bf16_elements(values)[old_layout.offset[unit] + i] = static_cast<uint16_t>(value);
              }
          states.back().commit(7, state_hash(states.back().side(0)));
        }
        for (uint32_t shard = 0; shard < to; ++shard)
          states.push_back(new_state(layout_of(to, shard), layout.total, format));
        for (uint32_t shard = 0; shard < to; ++shard)  // older values
          for (const std::span<float> part : states[from + shard].side(0).parts())
            std::ranges::fill(part, 9.0f);
        for (uint32_t r = 0; r < from; ++r) {
          std::vector<Hash128> blocks;
          for (uint32_t s = 0; s < to; ++s) {
            const auto pieces = common_pieces(units, from, r, to, s);
            if (pieces.empty()) continue;
            ThreadCommunicator heal(2, 60'000);
            Counting counting(heal.rank(0));
            Status sent;
            std::thread sender([&] {
              sent = send_state(counting, states[r], 7, std::nullopt, {pieces, &blocks});
            });
            const TrainState::Side side = states[from + s].side(0);
            const size_t values = floats_of(format, pieces, 0);
            const Receipt receipt{values, [&] { return Result(side); }, pieces};
            const auto hash = receive_state(heal.rank(1), receipt, 7, "n0");
            sender.join();
            CHECK(sent.ok());
            REQUIRE(hash.ok());
            CHECK(counting.sent == values + 2 * 4);  // an opening and a hash
            // The same within a host, and on any threads.
            TrainState alone = new_state(0, layout.total, format);
            CHECK(
                take_pieces(states[r].side(0), alone.side(0), pieces, on_threads(2), blocks).ok());
            for (const Piece& piece : pieces)
              CHECK(std::ranges::equal(alone.side(0).params.subspan(piece.to, piece.count),
                                       side.params.subspan(piece.to, piece.count)));
          }
        }
        for (uint32_t shard = 0; shard < to; ++shard) {
          std::vector<Piece> pieces;
          for (uint32_t r = 0; r < from; ++r)
            for (const Piece& piece : common_pieces(units, from, r, to, shard))
              pieces.insert(pieces.begin(), piece);
          clear_padding(states[from + shard].side(0), pieces);
        }
        for (uint32_t shard = 0; shard < to; ++shard) {
          const TrainState::Side side = states[from + shard].side(0);
          size_t wrong = 0;
          for (size_t part = 0; part < side.parts().size(); ++part)
            for (size_t unit = 0; unit < units.size(); ++unit)
              for (size_t i = 0; i < layout.count[unit]; ++i) {
                const size_t element = shard * layout.count[unit] + i, at = layout.offset[unit] + i;
                const std::span<float> values = side.parts()[part];
                if (values.empty()) continue;
                const float value = element < units[unit].count
                                        ? static_cast<float>(element % 251 + 1000 * unit + part)
                                        : 0;
                wrong += values.size() == layout.total
                             ? values[at] != value
                             : bf16_elements(values)[at] != static_cast<uint16_t>(value);
              }
          CHECK(wrong == 0);
        }
      }
  }

  TEST_CASE("transfer: STATE-2, a block that changes is detected if a piece lies in it") {
    const std::vector<Unit> units = {{"a", {}, 3 * kStateHashBlock}, {"b", {}, kStateHashBlock}};
    const std::vector<Piece> pieces = common_pieces(units, 1, 0, 4, 1);
    REQUIRE(pieces.size() == 2);
    const size_t total = shard_layout(units, 1).total, in_piece = pieces[0].from + 5;
    // Sends twice from the same copy; before broadcast `change_at` of the second time, and at -1 before
    // both, the float changes. Broadcasts: opening, a chunk of each piece and part, hash.
    const auto send = [&](size_t changed, int change_at) {
      TrainState source = new_state(layout_of(1, 0), total);
      write(source, 1, 7);
      TrainState target = new_state(layout_of(4, 1), shard_layout(units, 4).total);
      std::vector<Hash128> blocks;
      std::array<Status, 2> sent, received;
      for (const bool again : {false, true}) {
        ThreadCommunicator heal(2, 60'000);
        Counting counting(heal.rank(0));
        int count = again ? 0 : -1000;
        counting.before = [&] {
          if (count++ == change_at) source.side(0).exp_avg[changed] += 1;
        };
        if (!again && change_at == -1) source.side(0).exp_avg[changed] += 1;
        std::thread sender([&] {
          sent[again] = send_state(counting, source, 7, std::nullopt, {pieces, &blocks});
        });
        const Receipt receipt{floats_of({}, pieces, 0), [&] { return Result(target.side(0)); },
                              pieces};
        received[again] = receive_state(heal.rank(1), receipt, 7, "n0").status();
        sender.join();
        if (!sent[again].ok()) CHECK_FALSE(source.holds(7));
      }
      return std::pair(sent, received);
    };
    const auto [sent, received] = send(in_piece, -1);  // nothing is sent
    CHECK(sent[0].code() == Code::mismatch);
    CHECK(received[0].code() == Code::not_found);
    CHECK(sent[1].code() == Code::not_found);  // it was forgotten
    for (const int change_at : {0, 3}) {       // before, and just as, the part is sent
      const auto [later, at_receiver] = send(in_piece, change_at);
      CHECK(later[0].ok());
      CHECK(at_receiver[0].ok());
      CHECK(later[1].code() == Code::mismatch);
      CHECK(at_receiver[1].code() == Code::bad_data);
    }
    // A block of which nothing is sent: only the next comparison of the whole copy detects it.
    const size_t elsewhere = 2 * kStateHashBlock + 1;
    REQUIRE(pieces[0].from + pieces[0].count <= 2 * kStateHashBlock);
    CHECK(send(elsewhere, -1).first[0].code() == Code::mismatch);
    CHECK(send(elsewhere, 0).first[1].ok());
  }

  TEST_CASE("transfer: RESHAPE-1, pieces are refused where the receiver takes others") {
    const std::vector<Unit> units = {{"a", {}, 6 * kShardAlign}};
    TrainState source = new_state(layout_of(1, 0), shard_layout(units, 1).total);
    write(source, 1, 7);
    const auto sent_as = common_pieces(units, 1, 0, 3, 0), taken = common_pieces(units, 1, 0, 3, 1);
    REQUIRE(sent_as[0].count == taken[0].count);
    TrainState target = new_state(layout_of(3, 1), shard_layout(units, 3).total);
    std::vector<Hash128> blocks;
    ThreadCommunicator heal(2, 60'000);
    Status sent;
    std::thread sender([&] {
      sent = send_state(heal.rank(0), source, 7, std::nullopt, {sent_as, &blocks});
    });
    const Receipt receipt{floats_of({}, taken, 0), [&] { return Result(target.side(0)); }, taken};
    CHECK(receive_state(heal.rank(1), receipt, 7, "n0").status().code() == Code::bad_data);
    sender.join();
    CHECK(sent.code() == Code::bad_data);
    TrainState taker = new_state(layout_of(3, 1), shard_layout(units, 3).total);
    blocks.front().low ^= 1;
    CHECK(take_pieces(source.side(0), taker.side(0), taken, {}, blocks).code() == Code::mismatch);
  }

  TEST_CASE("transfer: a state with an average is refused where there is no room for one") {
    std::vector<TrainState> states;
    for (const bool ema : {true, false, true}) states.push_back(new_state(1, kTotal, {ema}));
    write(states[0], 1, 7);
    const std::vector<Status> statuses = transfer(states, 7);
    CHECK(statuses[1].code() == Code::bad_data);
    CHECK(has(statuses[1], "with " + std::to_string(4 * kTotal) + " values, not the"));
    for (const Status& status : statuses) CHECK_FALSE(status.ok());
  }

  TEST_CASE(
      "transfer: a lost group is restored by transfers alone and continues with the same bits") {
    EngineOptions options;
    options.shape = test_shape();
    options.leaves = 9;
    World undisturbed(options, 3, 2);
    undisturbed.initialize();
    undisturbed.train(1, 6);

    World three(options, 3, 2);
    three.initialize();
    three.train(1, 2);
    std::vector<TrainState> states = std::move(three.states);
    states.resize(2);
    World one(options, 1, 2, fake_backends(), std::move(states));
    one.train(3, 4);

    World again(options, 3, 2);
    std::vector<std::unique_ptr<ThreadCommunicator>> heal;
    for (int shard = 0; shard < 2; ++shard)
      heal.push_back(std::make_unique<ThreadCommunicator>(4, 60'000));
    std::vector<Status> sent(2);
    std::vector<std::thread> sources;
    for (size_t shard = 0; shard < 2; ++shard)
      sources.emplace_back(
          [&, shard] { sent[shard] = send_state(heal[shard]->rank(0), one.states[shard], 4); });
    again.each([&](Seat& seat) {
      const Result<Hash128> hash = must(receive_state(
          heal[static_cast<size_t>(seat.shard)]->rank(seat.group + 1), *seat.state, 4, "n0", 0));
      seat.state->commit(4, *hash);
      CHECK(*seat.engine->attach() == 4);
    });
    for (std::thread& source : sources) source.join();
    for (const Status& status : sent) CHECK(status.ok());
    again.train(5, 6);
    for (int group = 0; group < 3; ++group) CHECK(again.digest(group) == undisturbed.digest());
  }
}
