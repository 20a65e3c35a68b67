// A rank takes messages only from members of its communicator: from processes with the run's key.
#include <doctest/doctest.h>

#include "collective_ranks.hpp"

namespace simplescale::testing {

TEST_SUITE("collective") {
  TEST_CASE("collective: a process of another host without the run's key is no member") {
    const std::string key(32, 'k'), other(32, 'x');
    RankPlanes run("key", {0, 1}, 1 << 20, {key, key});
    CHECK(on_ranks(2, [&](int rank) { return run.join(rank, 2, 1).status().message(); }) == "");
    RankPlanes mixed("keys", {0, 1}, 1 << 20, {key, other});
    on_ranks(2, [&](int rank) {
      const auto joined = mixed.join(rank, 2, 1, "world", 500);
      CHECK(joined.status().code() == Code::deadline);
      return std::string();
    });
  }

  TEST_CASE("collective: a plane without network opens no socket, and refuses other hosts") {
    DataPlaneOptions options;
    options.arena_bytes = 1 << 20;
    options.network = false;
    options.shm_prefix = "ss-test-" + std::to_string(getpid()) + "-local";
    auto local = DataPlane::create(options);
    REQUIRE(local.ok());
    RankPlanes far("far", {1});
    const auto joined =
        (*local)->join({1, "world", 0, {(*local)->address(), far.addresses[0]}, 500});
    CHECK(joined.status().code() == Code::unavailable);
    CHECK(joined.status().message().find("on another host") != std::string::npos);
    CHECK((*local)->join({2, "world", 0, {(*local)->address()}, 500}).ok());
  }
}

}  // namespace simplescale::testing
