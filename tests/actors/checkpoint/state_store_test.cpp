// StatePin: pins that trainers pass on to the actors that copy their states. Each is released once.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <caf/all.hpp>
#include <future>
#include <thread>

#include "actors/checkpoint/checkpoint.hpp"
#include "runtime/training/state_hash.hpp"
#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"
#include "transport/protocol/messages.hpp"

using namespace simplescale;

namespace {

constexpr int32_t pid = 41;

/// One trainer whose process has committed step 7.
struct Node {
  std::shared_ptr<StateStore> states = std::make_shared<StateStore>();
  std::optional<TrainState> trainer;

  explicit Node(const ModelShape& shape = test::tiny_shape(), bool ema = false, int shards = 1) {
    Plan plan;
    plan.shape = shape;
    plan.state.ema = ema;
    plan.topology.shards = shards;
    plan.topology.trainers_per_node = 1;
    REQUIRE(states->create("pins-" + std::to_string(getpid()), plan, 0).ok());
    states->trainer_restarted("n0.0", pid);
    trainer = TrainState::open(states->segment("n0.0")).take();
    trainer->set_generation(1);
    auto side = must(trainer->begin_write(0));
    side->params[0] = 3;
    if (ema) side->ema.back() = 4;
    trainer->commit(7, state_hash(*side));
  }

  /// Pins step 7 as the trainer does for a checkpoint, and wraps the pin as the node does.
  std::shared_ptr<StatePin> pin_step() {
    REQUIRE(trainer->pin(7).ok());
    return std::make_shared<StatePin>(states, "n0.0", pid, StateVersion{7, 1});
  }
  bool pinned() { return !trainer->wait_unpinned(0).ok(); }
  /// True if exactly one reader pins a side.
  bool pinned_once() {
    return trainer->wait_unpinned(0).message().find(": 1 readers") != std::string::npos;
  }
};

}  // namespace

TEST_SUITE("state store") {
  TEST_CASE("state store: STATE-2, no copy is made of a state that has changed since its commit") {
    Node node;
    REQUIRE(node.states->flip_bit("n0.0").ok());
    CHECK(node.pin_step()->copy().status().code() == Code::mismatch);
    CHECK_FALSE(node.pinned());
  }

  TEST_CASE("state store: both sides are told, also if their cuts differ") {
    Node node;
    using Copies = std::vector<StateCopy>;
    CHECK(node.states->held("n0.0") == Copies{{0, 7, 1, 1}});
    const size_t total = node.trainer->side(0).params.size();
    REQUIRE(node.trainer->begin_write(0, layout_of(4, 3), total).ok());
    node.trainer->set_generation(2);
    node.trainer->commit(7);
    const Copies held = node.states->held("n0.0");
    CHECK(held.size() == 2);
    CHECK(std::ranges::count(held, StateCopy{3, 7, 2, 4}) == 1);
    CHECK(node.states->held("n0.0", {7, 1}) == StateCopy{0, 7, 1, 1});
    CHECK_FALSE(node.states->held("n0.0", {7, 3}));
    REQUIRE(node.trainer->rewind(7, layout_of(1, 0)).ok());
    node.trainer->forget(node.trainer->committed_side());
    CHECK(node.states->held("n0.0") == Copies{{3, 7, 2, 4}});
  }

  TEST_CASE("state store: a segment has room for the shard of the smallest group") {
    Plan plan;
    plan.shape = test::tiny_shape();
    plan.shape.vocab = 8192;
    plan.topology.shards = 4;
    plan.topology.group_nodes = 4;
    plan.topology.group_sizes = {2, 4};
    StateStore states;
    REQUIRE(states.create("sizes-" + std::to_string(getpid()), plan, 0).ok());
    TrainState state = must(TrainState::open(states.segment("n0.0"))).take();
    const auto total = [&](size_t shards) {
      return shard_layout(units_of(plan.shape), shards).total;
    };
    CHECK(state.side(0).params.size() == total(4));
    CHECK(state.begin_write(0, layout_of(2, 1), total(2)).ok());
    CHECK(state.begin_write(0, layout_of(1, 0), total(1)).status().code() == Code::io);
  }
}

TEST_SUITE("state pin") {
  TEST_CASE("state pin: is released once, by the copy or by its destruction") {
    Node node;
    auto to_save = node.pin_step(), to_stage = node.pin_step();
    const auto copy = must(to_save->copy());
    CHECK(copy->values[0] == 3);
    to_save.reset();
    CHECK(node.pinned());  // by to_stage
    to_stage.reset();
    CHECK_FALSE(node.pinned());
    REQUIRE(node.trainer->pin(7).ok());  // below: a pin on step 7 of another generation
    CHECK(StatePin(node.states, "n0.0", pid, StateVersion{7, 2}).copy().status().code() ==
          Code::not_found);
    CHECK_FALSE(node.pinned());
  }

  TEST_CASE("state pin: a pin of an earlier process does not release one of the next process") {
    Node node;
    auto old = node.pin_step(), copied = node.pin_step();
    node.states->trainer_restarted("n0.0", pid + 1);
    REQUIRE(node.trainer->pin(7).ok());
    old.reset();
    CHECK(copied->copy().ok());
    copied.reset();
    CHECK(node.pinned());
    StatePin(node.states, "n0.0", pid + 1, StateVersion{7, 1});
    CHECK_FALSE(node.pinned());
  }

  TEST_CASE("state pin: a copy of a trainer that is replaced meanwhile releases no new pin") {
    ModelShape large = test::tiny_shape();
    large.dim = 64, large.vocab = 8192;  // so that copying takes longer than replacing
    Node node(large);
    for (int32_t next = pid; next < pid + 20;) {
      REQUIRE(node.trainer->pin(7).ok());
      std::thread copier([&, next] {
        (void)StatePin(node.states, "n0.0", next, StateVersion{7, 1}).copy();
      });
      while (node.pinned_once()) std::this_thread::yield();  // until the copy has begun
      node.states->trainer_restarted("n0.0", ++next);
      CHECK(node.trainer->pin(7).ok());
      copier.join();
      CHECK(node.pinned());
      node.trainer->clear_pins();
    }
  }

  TEST_CASE("state pin: a copy has the average, if the state has one") {
    for (const bool ema : {false, true}) {
      Node node(test::tiny_shape(), ema);
      auto copy = must(node.pin_step()->copy());
      CHECK(copy->side.values() == (ema ? 4 : 3) * node.trainer->side(0).params.size());
      if (ema) CHECK(copy->side.ema.back() == 4);
    }
  }

  TEST_CASE("state pin: is released if the actor it is sent to dies, or has died") {
    Node node(test::tiny_shape(), true);
    caf::actor_system_config config;
    caf::actor_system system{config};
    caf::scoped_actor self{system};
    test::MemoryFolder folder;
    const caf::actor dead = system.spawn<caf::lazy_init>([](caf::event_based_actor* actor) {
      return caf::behavior{[actor](const local::Tick&) { actor->quit(); },
                           [](const local::SaveShard&) { FAIL("it has died"); }};
    });
    self->send(dead, local::Tick{});
    self->send(dead, local::SaveShard{node.pin_step(), 1, 7, 0});
    self->wait_for(dead);
    CHECK_FALSE(node.pinned());
    self->send(dead, local::SaveShard{node.pin_step(), 1, 7, 0});
    CHECK_FALSE(node.pinned());
    // A living actor copies the state and releases the pin.
    CheckpointOptions options{folder.path, test::tiny_shape()};
    const caf::actor alive =
        system.spawn<caf::detached>(checkpoint_actor, caf::actor_cast<caf::actor>(self), options);
    self->send(alive, local::SaveShard{node.pin_step(), 1, 7, 0});
    self->receive(
        [](const ShardSaved& saved) {
          CHECK(saved.error == "");
          CHECK(saved.record.find("\"ema.embed\"") != std::string::npos);
        },
        caf::after(std::chrono::seconds(60)) >> [] { FAIL("nothing is saved"); });
    CHECK_FALSE(node.pinned());
    self->send_exit(alive, caf::exit_reason::user_shutdown);
  }
}

namespace {

/// The file of shard 0 cannot be created before that of shard 1 is on disk.
class Shard1First : public FileOps {
 public:
  Result<int> create(const std::string& path) override {
    if (path.find("shard-00000") != std::string::npos &&
        written_.wait_for(std::chrono::seconds(60)) != std::future_status::ready)
      return Status(Code::deadline, "shard 1 is not written beside shard 0");
    return FileOps::create(path);
  }
  Status fsync(int fd, const std::string& path) override {
    Status status = FileOps::fsync(fd, path);
    if (path.find("shard-00001") != std::string::npos) is_written_.set_value();
    return status;
  }

 private:
  std::promise<void> is_written_;
  std::shared_future<void> written_ = is_written_.get_future();
};

}  // namespace

TEST_SUITE("checkpoint actor") {
  TEST_CASE("checkpoint actor: shards are written beside each other, each by one writer") {
    Node node(test::tiny_shape(), false, 2);
    caf::actor_system_config config;
    caf::actor_system system{config};
    caf::scoped_actor self{system};
    test::MemoryFolder folder;
    const caf::actor checkpoint = system.spawn<caf::detached>(
        checkpoint_actor, caf::actor_cast<caf::actor>(self),
        CheckpointOptions{folder.path, test::tiny_shape(), std::make_shared<Shard1First>(), 2});
    // The agent holds both shards.
    const std::string segment = node.states->segment("n0.0");
    auto side =
        must(node.trainer->begin_write(0, layout_of(2, 1), node.trainer->side(0).params.size()));
    node.trainer->commit(7, state_hash(*side));
    // The second save of shard 0 waits for the first one, though a writer is free.
    for (const uint64_t shard : {0, 0, 1})
      self->send(checkpoint, local::SaveShard{nullptr, 1, 7, shard, true, segment, 2});
    std::vector<uint64_t> saved;
    for (int i = 0; i < 3; ++i)
      self->receive(
          [&](const ShardSaved& answer) {
            CHECK(answer.error == "");
            saved.push_back(answer.shard);
          },
          caf::after(std::chrono::seconds(120)) >> [] { FAIL("nothing is saved"); });
    CHECK(std::ranges::count(saved, 0) == 2);
    CHECK(list_folder(checkpoint_tmp_folder(folder.path, 7, 1)).size() == 2);
    self->send_exit(checkpoint, caf::exit_reason::user_shutdown);
  }
}
