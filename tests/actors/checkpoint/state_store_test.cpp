// Pins that trainers hand over to the actors that copy their states: each is let go of, once.
#include <doctest/doctest.h>
#include <unistd.h>

#include <caf/all.hpp>

#include "actors/checkpoint/checkpoint.hpp"
#include "runtime/training/state_hash.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"
#include "transport/protocol/messages.hpp"

using namespace simplescale;

namespace {

constexpr int32_t pid = 41;

/// One trainer whose process has committed step 7.
struct Node {
  std::shared_ptr<StateStore> states = std::make_shared<StateStore>();
  std::optional<TrainState> trainer;

  Node() {
    Plan plan;
    plan.shape = test::tiny_shape();
    plan.topology.shards = 1;
    plan.topology.trainers_per_node = 1;
    REQUIRE(states->create("pins-" + std::to_string(getpid()), plan, 0).ok());
    states->trainer_restarted("n0.0", pid);
    trainer = TrainState::open(states->segment("n0.0"), states->total("n0.0")).take();
    trainer->set_generation(1);
    auto side = trainer->begin_write(0);
    REQUIRE(side.ok());
    side->params[0] = 3;
    trainer->commit(7, state_hash(*side));
  }

  /// As a trainer does it for a checkpoint, and the node for its actors.
  std::shared_ptr<PinnedState> hand_over() {
    REQUIRE(trainer->pin(7).ok());
    return std::make_shared<PinnedState>(states, "n0.0", pid, HeldStep{7, 1});
  }
  bool pinned() { return !trainer->wait_unpinned(0).ok(); }
};

}  // namespace

TEST_SUITE("pinned state") {
  TEST_CASE("pinned state: it is let go of once, copied or not") {
    Node node;
    auto to_save = node.hand_over(), to_stage = node.hand_over();
    const auto copy = to_save->copy();
    REQUIRE(copy.ok());
    CHECK(copy->values[0] == 3);
    to_save.reset();
    CHECK(node.pinned());  // the other one's
    to_stage.reset();
    CHECK_FALSE(node.pinned());
    REQUIRE(node.trainer->pin(7).ok());  // a step of that number, made in another generation
    CHECK(PinnedState(node.states, "n0.0", pid, HeldStep{7, 2}).copy().status().code() ==
          Code::not_found);
    CHECK_FALSE(node.pinned());
  }

  TEST_CASE("pinned state: what a process before had pinned is not taken from the next one") {
    Node node;
    auto old = node.hand_over(), copied = node.hand_over();
    node.states->trainer_restarted("n0.0", pid + 1);
    REQUIRE(node.trainer->pin(7).ok());
    old.reset();
    CHECK(copied->copy().ok());
    copied.reset();
    CHECK(node.pinned());
    PinnedState(node.states, "n0.0", pid + 1, HeldStep{7, 1});
    CHECK_FALSE(node.pinned());
  }

  TEST_CASE("pinned state: an actor that dies lets go of all that waits for it, or comes later") {
    Node node;
    caf::actor_system_config config;
    caf::actor_system system{config};
    caf::scoped_actor self{system};
    test::TempFolder folder;
    const caf::actor dead = system.spawn<caf::lazy_init>([](caf::event_based_actor* actor) {
      return caf::behavior{[actor](const local::Tick&) { actor->quit(); },
                           [](const local::SaveShard&) { FAIL("it has died"); }};
    });
    self->send(dead, local::Tick{});
    self->send(dead, local::SaveShard{node.hand_over(), 1, 7, 0});
    self->wait_for(dead);
    CHECK_FALSE(node.pinned());
    self->send(dead, local::SaveShard{node.hand_over(), 1, 7, 0});
    CHECK_FALSE(node.pinned());
    // And one that lives copies and lets go.
    CheckpointOptions options{folder.path(), test::tiny_shape(), 1};
    const caf::actor alive =
        system.spawn<caf::detached>(checkpoint_actor, caf::actor_cast<caf::actor>(self), options);
    self->send(alive, local::SaveShard{node.hand_over(), 1, 7, 0});
    self->receive([](const ShardSaved& saved) { CHECK(saved.error == ""); },
                  caf::after(std::chrono::seconds(60)) >> [] { FAIL("nothing is saved"); });
    CHECK_FALSE(node.pinned());
    self->send_exit(alive, caf::exit_reason::user_shutdown);
  }
}
