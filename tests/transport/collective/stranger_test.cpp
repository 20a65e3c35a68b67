// A rank takes messages only from members of its communicator: from processes with the run's key.
// Addresses of data planes, and which two planes use UCX with each other.
#include <doctest/doctest.h>

#include <set>

#include "collective_ranks.hpp"
#include "tests/must.hpp"
#include "transport/collective/plane_address.hpp"
#include "transport/collective/remote.hpp"

using namespace simplescale::collective;

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
    auto local = must(DataPlane::create(options));
    RankPlanes far("far", {1});
    CHECK(
        says((*local)->join({1, "world", 0, {(*local)->address(), far.addresses[0]}, 500}).status(),
             Code::unavailable, "on another host"));
    CHECK((*local)->join({2, "world", 0, {(*local)->address()}, 500}).ok());
  }
}

}  // namespace simplescale::testing

TEST_SUITE("plane address") {
  TEST_CASE("plane address: bytes and back; nothing from less, more or changed bytes") {
    const PlaneAddress address{"host", "segment", 7, {1, 2}, {3}, {"10.1.0.0/16", "ib0"}};
    const std::vector<uint8_t> bytes = encode_plane(address);
    const auto read = decode_plane(bytes);
    REQUIRE(read);
    CHECK(encode_plane(*read) == bytes);
    CHECK(read->trusted == address.trusted);
    for (size_t i = 0; i < bytes.size(); ++i) CHECK_FALSE(decode_plane({bytes.data(), i}));
    std::vector<uint8_t> more = bytes;
    more.push_back(0);
    CHECK_FALSE(decode_plane(more));
    PlaneAddress outside = address;
    outside.segment = "../segment";
    CHECK_FALSE(decode_plane(encode_plane(outside)));
  }

  TEST_CASE("plane address: UCX only between hosts that lie on the same trusted networks") {
    const auto host = [](std::set<std::string> trusted) {
      PlaneAddress address;
      if (!trusted.empty()) address.ucx = {1};
      address.trusted = std::move(trusted);
      return address;
    };
    CHECK(use_ucx(host({"ib0"}), host({"ib0"})));
    CHECK(use_ucx(host({"ib0", "ib1"}), host({"ib1", "ib0"})));
    CHECK_FALSE(use_ucx(host({"ib0"}), host({"ib1"})));
    CHECK_FALSE(use_ucx(host({}), host({"ib0"})));
    CHECK_FALSE(use_ucx(host({}), host({})));
    // UCX of a host on ib0 alone may choose the other's address on ib1, and go through a gateway.
    CHECK_FALSE(use_ucx(host({"ib0"}), host({"ib0", "ib1"})));
    CHECK_FALSE(use_ucx(host({"ib0", "ib1"}), host({"ib0"})));
  }
}
