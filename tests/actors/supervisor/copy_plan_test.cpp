// The peer tier: to which nodes copies go, which older copies stay, and the store that keeps them.
#include "actors/supervisor/copy_plan.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include "actors/peer/peer_store.hpp"
#include "runtime/training/state_hash.hpp"
#include "tests/must.hpp"

using namespace simplescale;
using namespace simplescale::job;

namespace {

/// domains * domain_nodes nodes of one trainer each, all in the layout, and `spares` spares; all are
/// up.
State cluster(int domains, int domain_nodes, int spares, int shards) {
  std::vector<std::string> names;
  for (int node = 0; node < domains * domain_nodes + spares; ++node)
    names.push_back(node_name(node));
  State state = make_state({1, shards, domain_nodes, domains, 1}, names);
  for (const std::string& name : names) state.nodes[name].state = NodeState::up;
  for (int domain = 0; domain < domains; ++domain)
    state.layout.domains.emplace_back(names.begin() + domain * domain_nodes,
                                      names.begin() + (domain + 1) * domain_nodes);
  state.generation = 3;
  return state;
}

std::string text(const std::vector<CopyTask>& tasks) {
  std::string text;
  for (const CopyTask& task : tasks)
    text += std::to_string(task.shard) + ":" + task.source + ">" + task.node + " ";
  return text;
}

CopySent sent(const CopyToPeers& order, uint32_t shard, const std::string& error = "") {
  return {order.generation, order.step, shard, error, 1};
}

}  // namespace

TEST_SUITE("copy plan") {
  TEST_CASE("copy plan: PEER-1, a copy lies in its own domain only if there is no other node") {
    CHECK(text(plan_copies(cluster(1, 2, 1, 2))) == "0:n0.0>n2 1:n1.0>n2 ");
    // Each node of the only domain keeps its own shard and that of another node.
    CHECK(text(plan_copies(cluster(1, 2, 0, 2))) == "0:n0.0>n1 0:n0.0>n0 1:n1.0>n0 1:n1.0>n1 ");
    CHECK(plan_copies(cluster(1, 1, 0, 1)).empty());
    // Groups take turns in sending; each group's peers are in the other group.
    CHECK(text(plan_copies(cluster(2, 2, 0, 2))) == "0:n0.0>n2 1:n3.0>n0 ");
  }

  TEST_CASE("copy plan: copies are spread over nodes that are up, spares first") {
    CHECK(text(plan_copies(cluster(1, 4, 2, 4))) == "0:n0.0>n4 1:n1.0>n5 2:n2.0>n4 3:n3.0>n5 ");
    State state = cluster(2, 1, 1, 1);
    CHECK(text(plan_copies(state)) == "0:n0.0>n2 ");
    state.nodes["n2"].state = NodeState::suspect;
    CHECK(text(plan_copies(state)) == "0:n0.0>n1 ");
    state.nodes["n1"].state = NodeState::lost;
    CHECK(plan_copies(state).empty());
  }

  TEST_CASE("copy rounds: PEER-2 and PEER-3, one round at a time; the newest whole step stays") {
    State state = cluster(1, 2, 1, 2);
    CopyRounds rounds(5);
    for (uint64_t step = 1; step <= 5; ++step) CHECK_FALSE(rounds.committed(0, state, step, 0));
    const auto five = rounds.committed(0, state, 6, 0);  // step 6 was made from step 5
    REQUIRE(five);
    CHECK(five->step == 5);
    CHECK(five->generation == 3);
    CHECK(five->keep == UINT64_MAX);
    rounds.ended(sent(*five, 0));
    state.nodes["n2"].peer = {{0, 5, 3, 2}, {1, 5, 3, 2}};
    CHECK_FALSE(rounds.completed(state));
    CHECK_FALSE(rounds.committed(0, state, 11, 0));  // the last round is not over
    rounds.ended(sent(*five, 1));
    CHECK(rounds.completed(state) == 5);
    CHECK_FALSE(rounds.completed(state));  // told once
    CopyRounds successor(5);
    CHECK_FALSE(successor.committed(0, state, 6, 0));  // the copies are there
    const auto ten = rounds.committed(0, state, 11, 0);
    REQUIRE(ten);
    CHECK(ten->keep == 5);
    rounds.ended(sent(*ten, 0));
    rounds.ended(sent(*ten, 1, "no room"));
    CHECK_FALSE(rounds.completed(state));
    state.nodes["n2"].peer = {{0, 5, 3, 2}, {0, 10, 3, 2}, {1, 5, 3, 2}};
    const auto fifteen = rounds.committed(0, state, 16, 0);
    REQUIRE(fifteen);
    CHECK(fifteen->keep == 5);
    CHECK_FALSE(rounds.committed(119'000, state, 21, 0));
    CHECK(rounds.committed(121'000, state, 26, 0));  // the node that should have answered is lost
    rounds.reset();
    CHECK_FALSE(rounds.committed(0, state, 26, 25));  // step 25 was not made in this generation
    CHECK(rounds.committed(0, state, 31, 25));
  }

  TEST_CASE("copy rounds: none while a shard has no node for its copy, or if switched off") {
    CopyRounds rounds(5);
    CHECK_FALSE(rounds.committed(0, cluster(1, 1, 0, 1), 6, 0));
    CHECK(rounds.lacking());
    CopyRounds never(0);
    CHECK_FALSE(never.committed(0, cluster(1, 2, 1, 2), 6, 0));
    CHECK_FALSE(never.lacking());
  }

  TEST_CASE("copy rounds: PEER-1, without an outer node both copies of a shard are waited for") {
    State state = cluster(1, 2, 0, 2);
    CopyRounds rounds(5);
    const auto five = rounds.committed(0, state, 6, 0);
    REQUIRE(five);
    REQUIRE(five->copies.size() == 4);
    for (const uint32_t shard : {0, 0, 1, 1}) rounds.ended(sent(*five, shard));
    state.nodes["n0"].peer = {{0, 5, 3, 2}};
    state.nodes["n1"].peer = {{1, 5, 3, 2}};
    CHECK_FALSE(newest_kept(state));  // a lost node would take the only copy of its shard along
    state.nodes["n0"].peer.push_back({1, 5, 3, 2});
    CHECK_FALSE(newest_kept(state));
    CHECK_FALSE(rounds.completed(state));
    state.nodes["n1"].peer.push_back({0, 5, 3, 2});
    CHECK(newest_kept(state) == 5);
    CHECK(rounds.completed(state) == 5);
  }

  TEST_CASE("copy rounds: PEER-2, none begins before the keepers have told of the last one") {
    State state = cluster(1, 2, 1, 2);
    CopyRounds rounds(5);
    const auto five = rounds.committed(0, state, 6, 0);
    REQUIRE(five);
    for (const uint32_t shard : {0, 1}) rounds.ended(sent(*five, shard));
    state.nodes["n2"].peer = {{0, 5, 3, 2}, {1, 5, 2, 2}};  // shard 1's is of an older generation
    CHECK_FALSE(rounds.completed(state));
    CHECK_FALSE(rounds.committed(0, state, 11, 0));
    SUBCASE("one could not receive what its sender has sent") {
      rounds.ended(sent(*five, 1, "the copy is damaged"));
    }
    SUBCASE("a keeper is lost") {
      state.nodes["n2"].state = NodeState::lost;
      CHECK_FALSE(rounds.completed(state));
      state.nodes["n2"].state = NodeState::up;
    }
    SUBCASE("they tell") {
      state.nodes["n2"].peer = {{0, 5, 3, 2}, {1, 5, 3, 2}};
      CHECK(rounds.completed(state) == 5);
      const auto ten = rounds.committed(0, state, 11, 0);
      REQUIRE(ten);
      CHECK(ten->keep == 5);
      return;
    }
    CHECK_FALSE(rounds.completed(state));
    CHECK(rounds.committed(0, state, 11, 0));
  }

  TEST_CASE("copy rounds: copies on lost nodes, and of steps that were undone, do not count") {
    State state = cluster(1, 2, 2, 2);
    state.nodes["n2"].peer = {{0, 5, 2, 2}, {0, 10, 3, 2}};
    state.nodes["n3"].peer = {{1, 5, 2, 2}, {1, 10, 2, 2}};
    CHECK(newest_kept(state) == 10);
    state.rollbacks = {{3, 8}};  // step 10 was made again
    CHECK(newest_kept(state) == 5);
    state.nodes["n3"].state = NodeState::lost;
    CHECK_FALSE(newest_kept(state));
  }
}

TEST_SUITE("peer store") {
  TEST_CASE("peer store: PEER-2, the step to keep is not overwritten, though another is newer") {
    ModelShape shape;
    shape.dim = 16, shape.hidden = 16, shape.layers = 1, shape.heads = shape.kv_heads = 1;
    shape.vocab = 32, shape.block_size = 8;
    PeerStore store("ss-test-peers-" + std::to_string(getpid()) + "-", shape, {});
    const auto of = [](uint32_t shard) { return layout_of(2, shard); };
    CHECK(store.held().empty());
    CHECK(store.segment(of(1), 5) == "");
    CHECK(store.prepare(of(2), UINT64_MAX).status().code() == Code::bad_data);
    auto put = [&](uint32_t shard, uint64_t step, uint64_t keep) {
      const Result<TrainState*> state = must(store.prepare(of(shard), keep));
      const Result<TrainState::Side> side = must((*state)->begin_write(0));
      side->params[0] = static_cast<float>(step);
      (*state)->set_generation(3);
      (*state)->commit(step, state_hash(*side));
    };
    put(1, 5, UINT64_MAX);
    put(1, 10, 5);
    CHECK(store.segment(of(1), 5) == store.segment(of(1), 10));
    CHECK(store.segment(of(0), 5) == "");
    put(1, 15, 5);  // not every shard had a copy of step 10
    CHECK(store.segment(of(1), 10) == "");
    CHECK_FALSE(store.segment(of(1), 5).empty());
    put(1, 20, 15);
    CHECK(store.held().size() == 2);
    CHECK(store.segment(of(1), 5) == "");
    put(0, 20, 15);
    CHECK_FALSE(store.drop_unassigned({of(0)}, 15));
    CHECK(store.drop_unassigned({of(0)}, 25));  // shard 1 is kept elsewhere now
    CHECK(store.held() == std::vector<StateCopy>{{0, 20, 3, 2}});
    CHECK_FALSE(store.drop_unassigned({}, 20));
    Result<TrainState*> kept = must(store.prepare(of(0), 20));
    CHECK(verify_or_forget(**kept, {20, 3}));
    CHECK_FALSE(verify_or_forget(**kept, {15, 3}));
    CHECK(store.held().size() == 1);
    REQUIRE(store.flip_bits().ok());
    const Result<TrainState*> state = must(store.prepare(of(0), 20));
    CHECK(check_side(**state, *(*state)->pin(20)).code() == Code::mismatch);
    (*state)->clear_pins();
    CHECK_FALSE(verify_or_forget(**state, {20, 3}));  // damaged: it is forgotten
    CHECK(store.held().empty());
  }

  TEST_CASE("peer store: JOB-3, the copy of a step that was undone is replaced by the new copy") {
    ModelShape shape;
    shape.dim = 16, shape.hidden = 16, shape.layers = 1, shape.heads = shape.kv_heads = 1;
    shape.vocab = 32, shape.block_size = 8;
    PeerStore store("ss-test-again-" + std::to_string(getpid()) + "-", shape, {});
    const Result<TrainState*> begun = must(store.prepare(layout_of(1, 0), UINT64_MAX));
    TrainState& state = **begun;
    auto put = [&state](const StateVersion& copy) {
      const Result<TrainState::Side> side = must(state.begin_write(0));
      side->params[0] = static_cast<float>(copy.generation);
      state.set_generation(copy.generation);
      state.commit(copy.step, state_hash(*side));
    };
    put({5, 1});
    put({10, 1});
    REQUIRE(store.prepare(layout_of(1, 0), 5).ok());
    CHECK_FALSE(verify_or_forget(state, {10, 2}));
    CHECK(store.held() == std::vector<StateCopy>{{0, 5, 1, 1}});
    put({10, 2});  // no pin is left
    CHECK(verify_or_forget(state, {10, 2}));
    CHECK(verify_or_forget(state, {5, 1}));
  }
}
