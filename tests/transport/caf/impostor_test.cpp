// CONNECTION-3 from the caller's side: a process that answers a hello must prove that it has the
// run's key. An impostor has taken over the address of a node, and tries to be taken for that node.
#include <doctest/doctest.h>

#include <future>

#include "tests/must.hpp"
#include "tests/transport/caf/rogue.hpp"

using namespace simplescale;
using remote::Proof;
using remote::Role;
using simplescale::testing::Process;
using simplescale::testing::Rogue;
using simplescale::testing::Wire;

namespace {

const std::string kKey(32, 'k');

/// A process of the run that looks up an actor at the impostor's address.
struct Caller : Process {
  explicit Caller(const std::string& address) : Process(options()) {
    transport->lookup(address, "server", 60'000,
                      [this](Result<caf::actor> found) { ended.set_value(found.status()); });
  }
  static TransportOptions options() {
    TransportOptions options;
    options.key = kKey;
    options.heartbeat_ms = 0;
    return options;
  }
  std::promise<Status> ended;
};

/// How the caller's lookup ends if the impostor answers its hello with this welcome.
Status answered_with(const std::function<remote::Words(Rogue&)>& welcome, uint64_t malformed = 1) {
  Rogue impostor;
  Caller caller(impostor.address());
  REQUIRE(impostor.answer() == "hello");
  impostor.say(welcome(impostor));
  std::future<Status> ended = caller.ended.get_future();
  impostor.progress_until(
      [&] { return ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
  CHECK(caller.transport->counters().malformed == malformed);
  return ended.get();
}

Proof welcome_proof(Rogue& impostor, const std::string& key, Role role = Role::welcome) {
  return remote::prove(key, "test", role, impostor.mine(), impostor.theirs);
}

}  // namespace

TEST_CASE("impostor: CONNECTION-3, a process that answers a hello without the key is no peer") {
  const Wire wire("unix");
  auto refused = [](const std::function<Proof(Rogue&)>& proof) {
    const Status status =
        answered_with([&](Rogue& impostor) { return impostor.welcome(proof(impostor)); });
    CHECK(says(status, Code::unavailable, "does not have this run's key"));
  };
  refused([](Rogue&) { return Proof{}; });
  refused([](Rogue& impostor) { return welcome_proof(impostor, std::string(32, 'x')); });
  refused([](Rogue& impostor) { return welcome_proof(impostor, ""); });
  // Proofs by processes that have the key: of another message, or of an earlier handshake.
  refused([](Rogue& impostor) { return welcome_proof(impostor, kKey, Role::proof); });
  refused([](Rogue& impostor) { return welcome_proof(impostor, kKey, Role::hello); });
  refused([](Rogue& impostor) {
    remote::Side earlier = impostor.theirs;
    earlier.nonce[0] ^= 1;
    return remote::prove(kKey, "test", Role::welcome, impostor.mine(), earlier);
  });
}

TEST_CASE("impostor: the beginning of a proof is no proof") {
  const Proof proof = remote::random_nonce();
  const std::span<const uint8_t> whole(proof);
  CHECK(remote::equal(proof, whole));
  for (const size_t bytes : {size_t{0}, size_t{1}, whole.size() - 1})
    CHECK_FALSE(remote::equal(proof, whole.first(bytes)));
}

TEST_CASE("impostor: a welcome of another node or run is refused, even with the run's key") {
  const Wire wire("unix");
  const std::string reason = "the welcome is of another node or run";
  Status status = answered_with([](Rogue& impostor) {
    impostor.node[8] ^= 1;
    return impostor.welcome(welcome_proof(impostor, kKey));
  });
  CHECK(status.message().find(reason) != std::string::npos);
  status = answered_with([](Rogue& impostor) {
    return impostor.welcome(welcome_proof(impostor, kKey), "another run");
  });
  CHECK(status.message().find(reason) != std::string::npos);
}

TEST_CASE("impostor: a process with the key gets the caller's proof and its lookup") {
  const Wire wire("unix");
  Rogue node;
  Caller caller(node.address());
  REQUIRE(node.answer() == "hello");
  node.say(node.welcome(welcome_proof(node, kKey)));
  REQUIRE(node.answer() == "proof");
  CHECK(remote::equal(remote::prove(kKey, "test", Role::proof, node.theirs, node.mine()),
                      node.received_proof));
  CHECK(node.answer() == "lookup");
  CHECK(caller.transport->counters().malformed == 0);
}
