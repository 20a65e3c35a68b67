// The peer copies actors of two nodes in one process: which states they keep, send and accept.
#include "actors/peer/peer_copies.hpp"
#include "actors/peer/transfer.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "runtime/training/state_hash.hpp"
#include "tests/actors/peer/tiny_shape.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

/// Stands for a node's actor: passes messages on, and tells the test what its peer copies report.
caf::behavior node_actor(caf::event_based_actor* self, const PeerCopiesOptions& options,
                         const caf::actor& test) {
  const caf::actor copies = spawn_peer_copies(self, options);
  self->link_to(copies);
  return {[=](const local::StageCopy& job) { self->send(copies, job); },
          [=](const CopyToPeers& order) {
            options.tier->ordered(order.generation, order.step);
            self->send(copies, order);
          },
          [=](const OfferCopy& offer) { return self->delegate(copies, offer); },
          [=](const CopySent& sent) { self->send(test, sent); },
          [=](const PeerCopies& held) { self->send(test, held); }};
}

struct Cluster {
  caf::actor_system_config config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  std::shared_ptr<StateStore> states = std::make_shared<StateStore>();  // of n0
  std::shared_ptr<PeerTier> tiers[2];
  caf::actor nodes[2];
  std::optional<TrainState> trainer;  // n0.0

  explicit Cluster(int timeout_ms = 60'000) {
    const std::string instance = "test-copies-" + std::to_string(getpid());
    Plan plan;
    plan.shape = tiny_shape();
    plan.topology.shards = plan.topology.trainers_per_node = 1;
    plan.state.ema = true;
    REQUIRE(states->create(instance, plan, 0).ok());
    trainer = TrainState::open(states->segment("n0.0")).take();
    for (const int node : {1, 0}) {
      DataPlaneOptions options;
      options.network = false;
      tiers[node] =
          std::make_shared<PeerTier>(agent_segments(instance, node), plan.shape, plan.state,
                                     make_agent_plane(options, instance, node).take(), timeout_ms);
      const FindNode find = [this](const std::string&) { return Result<caf::actor>(nodes[1]); };
      nodes[node] = system.spawn(
          node_actor, PeerCopiesOptions{"n" + std::to_string(node), tiers[node], states, find},
          caf::actor_cast<caf::actor>(self));
    }
  }
  ~Cluster() {
    for (const int node : {0, 1}) {
      tiers[node]->plane->abort(UINT64_MAX, "the node stops");
      self->send_exit(nodes[node], caf::exit_reason::user_shutdown);
    }
  }
  /// n0.0 commits the step and has it staged.
  void stage(uint64_t step, uint64_t generation = 1) {
    if (!trainer->holds(step)) {
      const auto side = must(trainer->begin_write(60'000));
      side->params[0] = side->ema[0] = static_cast<float>(step);
      trainer->set_generation(generation);
      trainer->commit(step, state_hash(*side));
    }
    REQUIRE(trainer->pin(step).ok());
    auto pin = std::make_shared<StatePin>(states, "n0.0", 0, StateVersion{step, generation});
    self->send(nodes[0], local::StageCopy{"n0.0", std::move(pin), generation, step});
  }
  /// Orders n0 to copy the step to `node`. Returns the error of CopySent. Waits for the report of
  /// that node's store if there is none.
  std::string order(uint64_t step, const std::string& node, uint64_t generation = 1) {
    self->send(nodes[0], CopyToPeers{generation, step, UINT64_MAX, {{0, "n0.0", node, "address"}}});
    std::optional<std::string> error;
    bool reported = false;
    while (!error || (error->empty() && !reported))
      self->receive([&](const CopySent& sent) { error = sent.error; },
                    [&](const PeerCopies& held) { reported = reported || held.node == node; },
                    caf::after(std::chrono::seconds(60)) >> [] { FAIL("there is no report"); });
    return *error;
  }
  /// Generation and step of the next task that is reported as failed.
  std::pair<uint64_t, uint64_t> failure() {
    std::pair<uint64_t, uint64_t> task;
    self->receive(
        [&](const CopySent& sent) {
          CHECK(sent.error != "");
          task = {sent.generation, sent.step};
        },
        caf::after(std::chrono::seconds(60)) >> [] { FAIL("there is no report"); });
    return task;
  }
  /// Offers n1 a copy that no node sends. Returns why n1 refuses it.
  std::string offer(uint64_t generation, uint64_t step) {
    std::string error;
    self->request(nodes[1], std::chrono::seconds(60),
                  OfferCopy{"n0", generation, step, UINT64_MAX, 0, tiers[0]->plane->address()})
        .receive([&](const AcceptCopy& answer) { error = answer.error; },
                 [](const caf::error&) { FAIL("there is no answer"); });
    return error;
  }
};

using Held = std::vector<StateCopy>;

}  // namespace

TEST_SUITE("peer copies") {
  TEST_CASE("peer copies: PEER-1: a staged state reaches the store of the other node, or its own") {
    Cluster cluster;
    cluster.stage(7);
    CHECK(cluster.order(7, "n1") == "");
    CHECK(cluster.tiers[1]->store.held() == Held{{0, 7, 1}});
    CHECK(cluster.tiers[0]->store.held().empty());
    cluster.stage(8);
    CHECK(cluster.order(8, "n0") == "");
    CHECK(cluster.tiers[0]->store.held() == Held{{0, 8, 1}});
    const Result<TrainState*> own = must(cluster.tiers[0]->store.prepare(layout_of(1, 0), 8));
    CHECK(verify_or_forget(**own, {8, 1}));
    CHECK((*own)->committed().ema[0] == 8);
    cluster.stage(8);  // the order is repeated: the store has the copy
    CHECK(cluster.order(8, "n0") == "");
    CHECK(cluster.tiers[0]->store.held() == Held{{0, 8, 1}});
  }

  TEST_CASE("peer copies: only the newest two steps of the ordered generation are staged") {
    Cluster cluster;
    const auto missing = [&](uint64_t step, uint64_t generation) {
      return cluster.order(step, "n1", generation).ends_with(" of n0.0 is not staged");
    };
    cluster.stage(7);
    CHECK(missing(6, 1));
    for (const uint64_t step : {8, 9, 10}) cluster.stage(step);
    CHECK(missing(8, 1));
    CHECK(cluster.order(9, "n1") == "");
    CHECK(cluster.tiers[1]->store.held() == Held{{0, 9, 1}});
    CHECK(missing(10, 2));
  }

  TEST_CASE("peer copies: PEER-2: an order that is older than the newest overwrites no copy") {
    Cluster cluster;
    cluster.stage(7);
    cluster.stage(8);
    CHECK(cluster.order(8, "n0") == "");
    cluster.stage(7);
    CHECK(cluster.order(7, "n0") == "a newer order to copy has come");
    CHECK(cluster.tiers[0]->store.held() == Held{{0, 8, 1}});
  }

  TEST_CASE("peer copies: PEER-2: an order that comes after a newer one's copy drops nothing") {
    Cluster cluster(100);
    cluster.stage(8);
    CHECK(cluster.order(8, "n1") == "");  // n1 gets the copy before the order
    cluster.self->send(cluster.nodes[1], CopyToPeers{1, 7, UINT64_MAX, {}});
    CHECK(cluster.offer(1, 7) != "");  // n1 has handled that order
    CHECK(cluster.tiers[1]->store.held() == Held{{0, 8, 1}});
    cluster.tiers[1]->fence(2);
    cluster.tiers[1]->ordered(1, 9);
    CHECK(cluster.tiers[1]->is_current(2, 3));
  }

  TEST_CASE("peer copies: GEN-1: a node refuses copies older than the newest that it was offered") {
    Cluster cluster(100);
    cluster.tiers[1]->ordered(5, 20);
    CHECK(cluster.offer(4, 20) != "");
    CHECK(cluster.offer(5, 19) != "");
    CHECK(cluster.offer(6, 20) == "");
    CHECK(cluster.offer(5, 20) != "");
    CHECK(cluster.tiers[1]->store.held().empty());
    CHECK(cluster.failure() == std::pair<uint64_t, uint64_t>{6, 20});  // nobody sends it
  }
}
