// A rank takes messages only from members of its communicator: from processes with the run's key.
#include <doctest/doctest.h>

#include <set>

#include "collective_ranks.hpp"
#include "transport/collective/remote.hpp"

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

  TEST_CASE("collective: each communicator of each run has a secret of its own") {
    using collective::make_secret;
    const std::string key(32, 'k'), other(32, 'x');
    const std::vector<uint64_t> members{1, 2}, changed{1, 3};
    const std::set<collective::Secret> secrets{
        make_secret(key, 7, 5, members), make_secret(other, 7, 5, members),
        make_secret("", 7, 5, members),  make_secret(key, 8, 5, members),
        make_secret(key, 7, 6, members), make_secret(key, 7, 5, changed)};
    CHECK(secrets.size() == 6);
    CHECK(secrets.contains(make_secret(key, 7, 5, members)));
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
