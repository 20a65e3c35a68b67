// Transfers that an agent sends from a segment of its node, over the planes of two agents.
#include "actors/peer/transfer.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <thread>

#include "actors/checkpoint/state_store.hpp"
#include "runtime/training/state_hash.hpp"
#include "runtime/training/state_transfer.hpp"
#include "tests/actors/peer/tiny_shape.hpp"
#include "tests/must.hpp"
#include "transport/nccl/device_plane.hpp"

using namespace simplescale;

namespace {

constexpr int timeout_ms = 60'000;

/// Node 0 holds step 7 of n0.0, whose agent sends it to n1.0.
struct Pair {
  const std::string instance = "test-transfer-" + std::to_string(getpid());
  const std::vector<Unit> units = units_of(tiny_shape());
  StateStore stores[2];
  std::optional<TrainState> states[2];
  std::shared_ptr<DataPlane> planes[2];
  TransferPart parts[2];

  Pair() {
    Plan plan;
    plan.shape = tiny_shape();
    plan.topology.shards = plan.topology.trainers_per_node = 1;
    for (const int node : {0, 1}) {
      const std::string trainer = "n" + std::to_string(node) + ".0";
      REQUIRE(stores[node].create(instance, plan, node).ok());
      states[node] = TrainState::open(stores[node].segment(trainer)).take();
      DataPlaneOptions options;
      options.network = false;
      planes[node] = make_agent_plane(options, instance, node).take();
      parts[node] = {.id = 3, .shard = 0, .step = 7, .rank = static_cast<uint32_t>(node)};
      parts[node].source = "n0";
    }
    for (TransferPart& part :
         parts)  // the address of a trainer with a GPU names its transport, too
      part.members = {
          {planes[0]->address()},
          {device_plane_address(planes[1]->address(), {.transport = DeviceTransport::nccl})}};
    parts[0].segment = stores[0].segment("n0.0");
    const auto side = must(states[0]->begin_write(0));
    side->params[0] = 5;
    states[0]->set_generation(1);
    states[0]->commit(7, state_hash(*side));
  }
  /// The status of the agent, and what n1.0 receives.
  std::pair<Status, Result<Hash128>> transfer(uint64_t generation) {
    Result<Hash128> received = Status(Code::internal, "not received");
    std::thread receiver([&] {
      auto from = join_transfer(*planes[1], generation, parts[1], timeout_ms);
      received = from.ok() ? receive_state(**from, *states[1], 7, "n0", timeout_ms)
                           : Result<Hash128>(from.status());
    });
    std::vector<Hash128> blocks;
    const Status sent = send_segment(*planes[0], generation, parts[0], units, blocks, timeout_ms);
    receiver.join();
    return {sent, received};
  }
};

}  // namespace

TEST_SUITE("peer copies") {
  TEST_CASE("transfer: JOB-1: an agent sends a copy that a segment of its node holds") {
    Pair pair;
    const auto [sent, received] = pair.transfer(2);
    CHECK(sent.ok());
    REQUIRE(received.ok());
    CHECK(*received == pair.states[0]->hash(*pair.states[0]->pin(7)));
    pair.states[1]->commit(7, *received);
    CHECK(pair.states[1]->committed().params[0] == 5);
  }

  TEST_CASE("transfer: a damaged copy reaches nobody, and is forgotten") {
    Pair pair;
    REQUIRE(pair.stores[0].flip_bit("n0.0").ok());
    const auto [sent, received] = pair.transfer(2);
    CHECK(sent.code() == Code::mismatch);
    CHECK(!received.ok());
    CHECK(!pair.states[0]->holds(7));
    const auto [again, nothing] = pair.transfer(3);
    CHECK(again.code() == Code::not_found);
    CHECK(nothing.status().code() == Code::not_found);
  }

  TEST_CASE("transfer: GEN-1: a fence ends the wait for a receiver that does not come") {
    Pair pair;
    pair.planes[0]->abort(2, "a new generation begins");
    std::vector<Hash128> blocks;
    CHECK(send_segment(*pair.planes[0], 2, pair.parts[0], pair.units, blocks, timeout_ms).code() ==
          Code::aborted);
  }
}
