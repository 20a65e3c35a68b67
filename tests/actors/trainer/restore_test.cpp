// Restores from a trainer's own memory and from its node's peer store.
#include "actors/trainer/restore.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <numeric>

#include "actors/checkpoint/state_store.hpp"
#include "runtime/training/state_hash.hpp"
#include "tests/model/thread_collective.hpp"

using namespace simplescale;

namespace {

ModelShape shape() {
  return {.dim = 64,
          .hidden = 128,
          .layers = 1,
          .heads = 2,
          .kv_heads = 2,
          .vocab = 2048,
          .block_size = 16};
}

TrainState make_state(const std::string& name) {
  auto state =
      TrainState::create("ss-test-restore-" + std::to_string(getpid()) + "-" + name,
                         layout_hash(shape(), 1, 0), shard_layout(units_of(shape()), 1).total);
  REQUIRE(state.ok());
  return state.take();
}

/// Commits `step` with values that begin at `first`.
void commit(TrainState& state, uint64_t step, float first) {
  const auto side = state.begin_write(0);
  REQUIRE(side.ok());
  for (const std::span<float> part : side->parts()) std::iota(part.begin(), part.end(), first);
  state.commit(step, state_hash(*side));
}

}  // namespace

TEST_SUITE("restore") {
  TEST_CASE("restore: every pass over a whole state goes over the trainer's threads") {
    ThreadCommunicator alone(1, 1'000);
    JoinTrainer order{.trainer = "n0.0", .generation = 3, .source = JoinSource::memory, .step = 7};
    size_t tasks_run = 0;
    const Parallel counting = [&](size_t tasks, const std::function<void(size_t)>& body) {
      for (size_t task = 0; task < tasks; ++task) body(task);
      tasks_run += tasks;
    };
    const auto restore = [&] {
      return Restore(
          order, shape(), 1, 1'000, [] { return false; }, counting);
    };
    auto plane = DataPlane::create({.shm_prefix = "ss-test-restore-" + std::to_string(getpid())});
    REQUIRE(plane.ok());
    TrainState state = make_state("own");
    size_t blocks = 0;
    for (const std::span<float> part : state.side(0).parts())
      blocks += (part.size() + kStateHashBlock - 1) / kStateHashBlock;
    commit(state, 7, 1);
    REQUIRE(restore().commit(state, alone.rank(0), alone.rank(0)).ok());
    CHECK(tasks_run == blocks);

    TrainState peer = make_state("peer");
    commit(peer, 8, 2);
    order.step = 8;
    order.transfers = {{.step = 8, .segment = peer.name(), .members = {{}}}};
    Restore from_peer = restore();
    tasks_run = 0;
    REQUIRE(from_peer.transfer(**plane, state).ok());
    CHECK(tasks_run > blocks);  // copied, and then hashed
    REQUIRE(from_peer.commit(state, alone.rank(0), alone.rank(0)).ok());
    CHECK(state.step() == 8);
    CHECK(std::ranges::equal(state.committed().exp_avg_sq, peer.committed().exp_avg_sq));
  }

  TEST_CASE("restore: a copy whose memory nobody holds any more counts as lost") {
    auto plane = DataPlane::create({.shm_prefix = "ss-test-restore-lost", .network = false});
    REQUIRE(plane.ok());
    TrainState state = make_state("with-lost-peer");
    const JoinTrainer order{.trainer = "n0.0",
                            .generation = 3,
                            .source = JoinSource::memory,
                            .step = 8,
                            .transfers = {{.step = 8, .segment = "ss-none", .members = {{}}}}};
    Restore restore(
        order, shape(), 1, 1'000, [] { return false; }, on_threads(2));
    const Status status = restore.transfer(**plane, state);
    CHECK(status.message().find("no process of this host holds ss-none") != std::string::npos);
    CHECK(restore.fault().fault == Fault::bad_copy);  // so that another copy is taken
    CHECK(restore.fault().suspect == "n0.0");
  }

  TEST_CASE("restore: STATE-2, a damaged copy is forgotten and reported") {
    ThreadCommunicator alone(1, 1'000);
    const JoinTrainer order{
        .trainer = "n0.0", .generation = 3, .source = JoinSource::memory, .step = 7};
    TrainState state = make_state("damaged");
    commit(state, 7, 1);
    state.committed().exp_avg.back() += 1;
    Restore restore(
        order, shape(), 1, 1'000, [] { return false; }, on_threads(2));
    CHECK(restore.commit(state, alone.rank(0), alone.rank(0)).code() == Code::mismatch);
    CHECK(restore.fault().fault == Fault::bad_copy);
    CHECK(restore.fault().suspect == "n0.0");
    CHECK_FALSE(state.holds(7));
  }
}
