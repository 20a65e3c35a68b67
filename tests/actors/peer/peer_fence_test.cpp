// A fence and the copies of other nodes' shards that arrive at the same time.
#include <doctest/doctest.h>
#include <unistd.h>

#include <string>

#include "actors/peer/peer_copies.hpp"
#include "actors/peer/transfer.hpp"
#include "runtime/training/state_hash.hpp"
#include "tests/actors/peer/tiny_shape.hpp"
#include "tests/must.hpp"

using namespace simplescale;

TEST_SUITE("peer copies") {
  TEST_CASE("peer copies: JOB-1, GEN-1: a copy that was received is not taken after its fence") {
    auto plane = must(make_agent_plane({}, "test-fence-" + std::to_string(getpid()), 0));
    PeerTier tier("ss-test-fence-" + std::to_string(getpid()) + "-n0-", tiny_shape(), {}, *plane,
                  1000);
    // Receives all bytes of a copy that generation 3 made.
    const auto receive = [&] {
      const Result<TrainState*> state = must(tier.store.prepare(layout_of(1, 0), UINT64_MAX));
      const Result<TrainState::Side> side = must((*state)->begin_write(0));
      side->params[0] = 1;
      return std::pair(*state, state_hash(*side));
    };
    tier.fence(3);
    auto [first, first_hash] = receive();
    REQUIRE(tier.commit(*first, 3, 5, first_hash).ok());
    auto [second, second_hash] = receive();
    tier.fence(4);  // the agent says now what the store holds
    CHECK(tier.commit(*second, 3, 10, second_hash).code() == Code::aborted);
    CHECK(tier.store.held() == std::vector<StateCopy>{{0, 5, 3}});
    CHECK(tier.commit(*second, 4, 11, second_hash).ok());
  }
}
