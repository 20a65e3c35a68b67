// State transfers over the real data plane: in shared memory and between simulated hosts, from
// memory outside the arena, which the plane has to stage.
#include <doctest/doctest.h>
#include <unistd.h>

#include <latch>

#include "runtime/training/state_hash.hpp"
#include "runtime/training/state_transfer.hpp"
#include "tests/must.hpp"
#include "tests/transport/collective/collective_ranks.hpp"

using namespace simplescale;

namespace {

constexpr size_t kTotal = (size_t{5} << 18) + 1024;  // elements: 5 MiB per part of the state

std::string text_of(const Status& status) {
  return status.ok() ? "" : std::string(to_string(status.code())) + " " + status.message();
}

}  // namespace

TEST_SUITE("state_transfer") {
  TEST_CASE("transfer: a rank sends its state to a rank on its host and to one on another") {
    testing::RankPlanes planes("transfer", {0, 0, 1});
    std::vector<TrainState> states;
    for (int i = 0; i < 3; ++i) {
      Result<TrainState> state = must(TrainState::create(
          "ss-test-planes-" + std::to_string(getpid()) + "-" + std::to_string(i), 1, kTotal));
      states.push_back(state.take());
    }
    const Result<TrainState::Side> side = must(states[0].begin_write(0));
    for (size_t i = 0; i < kTotal; ++i) {
      side->params[i] = testing::value_of(1, i);
      side->exp_avg[i] = testing::value_of(2, i);
      side->exp_avg_sq[i] = testing::value_of(3, i);
    }
    states[0].commit(11);
    CHECK(testing::on_ranks(3, [&](int rank) -> std::string {
            auto joined = planes.join(rank, 3, 1, "heal-0");
            if (!joined.ok()) return text_of(joined.status());
            TrainState& mine = states[static_cast<size_t>(rank)];
            if (rank == 0) return text_of(send_state(**joined, mine, 11));
            const Result<Hash128> hash = receive_state(**joined, mine, 11, "n0.0", 0);
            if (hash.ok()) mine.commit(11, *hash);
            return text_of(hash.status());
          }) == "");
    for (TrainState& state : states) {
      REQUIRE(state.has_step());
      CHECK(state_hash(state.committed()) == state_hash(states[0].committed()));
    }
  }

  TEST_CASE("transfer: if a receiver leaves, the sender fails and unpins its state") {
    testing::RankPlanes planes("leave", {0, 0});
    std::vector<TrainState> states;
    for (int i = 0; i < 2; ++i) {
      Result<TrainState> state = must(TrainState::create(
          "ss-test-leave-" + std::to_string(getpid()) + "-" + std::to_string(i), 1, kTotal));
      states.push_back(state.take());
    }
    REQUIRE(states[0].begin_write(0).ok());
    states[0].commit(3);
    std::latch both_joined(2);  // leaving earlier would end the other rank's join
    CHECK(testing::on_ranks(2, [&](int rank) -> std::string {
            auto joined = planes.join(rank, 2, 1, "heal-0");
            both_joined.arrive_and_wait();
            if (!joined.ok()) return text_of(joined.status());
            if (rank == 1) {
              (*joined)->abort("generation 2");
              return "";
            }
            return send_state(**joined, states[0], 3).ok() ? "sent to nobody" : "";
          }) == "");
    REQUIRE(states[0].begin_write(0).ok());
    states[0].commit(4);
    CHECK(states[0].begin_write(0).ok());
  }
}
