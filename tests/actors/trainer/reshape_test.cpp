// A state that moves to another cut, with all orders of it: the supervisor's transfers, the nodes'
// orders, and the trainers that carry them out over real data planes.
#include <doctest/doctest.h>
#include <unistd.h>

#include <thread>

#include "actors/node/join.hpp"
#include "actors/supervisor/transfers.hpp"
#include "actors/trainer/restore.hpp"
#include "runtime/training/state_hash.hpp"
#include "tests/model/thread_collective.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

constexpr uint64_t step = 7;

ModelShape shape() {
  return {.dim = 64,
          .hidden = 128,
          .layers = 2,
          .heads = 2,
          .kv_heads = 2,
          .vocab = 2048,
          .block_size = 16};
}

struct Cut {
  uint32_t groups, shards;
  uint32_t trainers() const { return groups * shards; }
};

/// The elements of a shard of a state whose values differ everywhere, without padding.
void fill(const TrainState::Side& side, uint32_t shards, uint32_t shard) {
  const std::vector<Unit> units = units_of(shape());
  const ShardLayout layout = shard_layout(units, shards);
  for (size_t part = 0; part < side.parts().size(); ++part)
    for (size_t unit = 0; unit < units.size() && !side.parts()[part].empty(); ++unit)
      for (size_t i = 0; i < layout.count[unit]; ++i) {
        const size_t element = shard * layout.count[unit] + i;
        side.parts()[part][layout.offset[unit] + i] =
            element < units[unit].count
                ? static_cast<float>(element + 1'000'000 * (3 * unit + part))
                : 0.0f;
      }
}

std::string name_of(uint32_t trainer) {
  return "n" + std::to_string(trainer) + ".0";
}

/// The trainers of two cuts. They hold the old one; from shards - 1 on they may hold a spare copy.
struct World {
  Cut from, to;
  size_t capacity = 0;
  std::vector<TrainState> states;
  std::vector<std::unique_ptr<DataPlane>> planes;
  JoinGeneration job;
  std::vector<Status> statuses;
  std::vector<RestoreFault> faults;
  uint64_t bytes = 0;  // sent and received

  World(Cut from_, Cut to_) : from(from_), to(to_) {
    static int worlds = 0;
    const std::vector<Unit> units = units_of(shape());
    for (const Cut& cut : {from, to})
      capacity = std::max(capacity, shard_layout(units, cut.shards).total);
    std::vector<job::AvailableCopy> copies;
    std::vector<job::Place> places;
    for (uint32_t trainer = 0; trainer < std::max(from.trainers(), to.trainers()); ++trainer) {
      const std::string segment =
          "ss-test-reshape-" + std::to_string(getpid()) + "-" + std::to_string(worlds++);
      const uint32_t shard = trainer % from.shards;
      states.push_back(
          must(TrainState::create(segment, layout_of(from.shards, shard),
                                  shard_layout(units, from.shards).total, {}, capacity))
              .take());
      planes.push_back(
          must(DataPlane::create({.shm_prefix = segment + "-plane", .network = false})).take());
      if (trainer < from.trainers()) {
        const auto side = must(states.back().begin_write(0));
        fill(*side, from.shards, shard);
        states.back().commit(step, state_hash(*side));
        copies.push_back({name_of(trainer), shard, step, false, from.shards});
      }
      const bool trains = trainer < to.trainers();
      if (trains) places.push_back({name_of(trainer), trainer / to.shards, trainer % to.shards});
      job.members.push_back({name_of(trainer), trains ? trainer / to.shards : no_group,
                             trainer % to.shards, planes.back()->address()});
    }
    job.generation = 3;
    job.source = JoinSource::memory;
    job.step = step;
    job.groups = to.groups;
    job.shards = to.shards;
    job.transfers = supervisor::transfers_of(
        units, job::moves_for(places, to.shards, copies, {step, from.shards}), places, to.shards);
  }

  /// All trainers carry out the orders.
  void run() {
    Plan plan;
    plan.topology.shards = plan.topology.group_nodes = static_cast<int>(to.shards);
    plan.topology.group_sizes = {static_cast<int>(to.shards)};
    ThreadCommunicator all(static_cast<int>(to.trainers()), 60'000);
    const size_t trainers = states.size();
    statuses.resize(trainers), faults.resize(trainers);
    std::vector<uint64_t> moved(trainers);
    std::vector<std::thread> threads;
    for (uint32_t trainer = 0; trainer < trainers; ++trainer)
      threads.emplace_back([&, trainer] {
        const auto orders =
            orders_of(job, plan, {{name_of(trainer), "", planes[trainer]->address()}},
                      [](const Transfer&) { return std::string(); });
        statuses[trainer] = orders.status();
        if (!orders.ok()) return;
        const JoinTrainer& order = orders->trainers.front();
        Restore restore(
            order, shape(), 60'000, [] { return false; }, on_threads(1));
        states[trainer].set_generation(job.generation);
        statuses[trainer] = restore.transfer(*planes[trainer], states[trainer]);
        faults[trainer] = restore.fault();
        moved[trainer] = restore.bytes();
        if (!statuses[trainer].ok()) {
          // As a fence, so that no other trainer waits.
          for (const auto& plane : planes) plane->abort(job.generation, "a trainer failed");
          for (uint32_t rank = 0; rank < to.trainers(); ++rank)
            all.rank(static_cast<int>(rank)).abort("a trainer failed");
        } else if (order.group != no_group) {
          ThreadCommunicator alone(1, 60'000);
          statuses[trainer] = restore.commit(
              states[trainer], axes_of(all.rank(static_cast<int>(trainer)), alone.rank(0)));
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const uint64_t each : moved) bytes += each;
  }

  /// Bytes of the real elements, padded to kShardAlign, that new shards have and their trainers lack.
  uint64_t missing_bytes() const {
    const std::vector<Unit> units = units_of(shape());
    uint64_t elements = 0;
    for (uint32_t trainer = 0; trainer < to.trainers(); ++trainer)
      for (uint32_t shard = 0; shard < from.shards; ++shard)
        if (trainer >= from.trainers() || trainer % from.shards != shard)
          for (const Piece& piece :
               common_pieces(units, from.shards, shard, to.shards, trainer % to.shards))
            elements += piece.count;
    return elements * StateFormat{}.bytes();
  }
  bool has_new_cut(uint32_t trainer) {
    const uint32_t shard = trainer % to.shards;
    const Result<int> side = states[trainer].pin(step, layout_of(to.shards, shard));
    if (!side.ok()) return false;
    std::vector<float> values(3 * shard_layout(units_of(shape()), to.shards).total);
    const auto right = TrainState::Side::over(values, values.size() / 3);
    fill(right, to.shards, shard);
    const TrainState::Side got = states[trainer].side(*side);
    states[trainer].unpin(*side);
    return std::ranges::equal(got.params, right.params) &&
           std::ranges::equal(got.exp_avg, right.exp_avg) &&
           std::ranges::equal(got.exp_avg_sq, right.exp_avg_sq) &&
           states[trainer].hash(*side) == state_hash(got);
  }
};

}  // namespace

TEST_SUITE("reshape") {
  TEST_CASE("reshape: RESHAPE-1, trainers send and receive what is missing, and no byte more") {
    for (const auto& [from, to] : {std::pair{Cut{1, 2}, Cut{1, 3}},
                                   {{1, 3}, {1, 2}},
                                   {{1, 4}, {1, 3}},
                                   {{2, 2}, {3, 1}},
                                   {{3, 1}, {2, 2}}}) {
      CAPTURE(from.shards);
      CAPTURE(to.shards);
      World world(from, to);
      world.run();
      for (const Status& status : world.statuses) CHECK_MESSAGE(status.ok(), status.message());
      for (uint32_t trainer = 0; trainer < to.trainers(); ++trainer)
        CHECK(world.has_new_cut(trainer));
      // A transfer to several receivers is sent once.
      uint64_t sent = 0;
      const std::vector<Unit> units = units_of(shape());
      for (const Transfer& transfer : world.job.transfers)
        if (transfer.targets != std::vector<std::string>{transfer.source}) {
          const auto shard =
              std::ranges::find(world.job.members, transfer.targets.front(), &Member::trainer)
                  ->shard;
          for (const Piece& piece :
               common_pieces(units, from.shards, transfer.shard, to.shards, shard))
            sent += piece.count * StateFormat{}.bytes();
        }
      CHECK(world.bytes == sent + world.missing_bytes());
    }
  }

  TEST_CASE("reshape: RESHAPE-1, a range that nobody sends, or that moves twice, ends the move") {
    for (const bool twice : {true, false}) {
      World world({1, 2}, {1, 3});
      std::vector<Transfer>& transfers = world.job.transfers;
      const auto lacks = std::ranges::find_if(
          transfers, [](const Transfer& t) { return t.targets.front() == "n2.0"; });
      REQUIRE(lacks != transfers.end());
      if (twice)
        transfers.push_back({static_cast<uint32_t>(transfers.size()), lacks->shard, step,
                             lacks->source, false, lacks->targets, 2});
      else
        transfers.erase(lacks);
      world.run();
      CHECK(world.statuses[2].code() == Code::bad_data);
      CHECK(has(world.statuses[2], twice ? "was received before" : "nobody has sent shard 1 of 2"));
      CHECK(world.faults[2].fault == Fault::bad_order);
      for (uint32_t trainer = 0; trainer < 3; ++trainer) CHECK_FALSE(world.has_new_cut(trainer));
      CHECK(world.states[0].holds(step, layout_of(2, 0)));
      CHECK(world.states[1].holds(step, layout_of(2, 1)));
    }
  }

  TEST_CASE("reshape: STATE-2, a holder of a damaged shard sends no piece of it") {
    World world({1, 2}, {1, 3});
    world.states[1].committed().exp_avg.back() += 1;
    world.run();
    CHECK(world.statuses[1].code() == Code::mismatch);
    CHECK(world.faults[1].fault == Fault::bad_copy);
    CHECK(world.faults[1].suspect == "n1.0");
    CHECK_FALSE(world.states[1].holds(step));
    for (uint32_t trainer = 0; trainer < 3; ++trainer) CHECK_FALSE(world.has_new_cut(trainer));
  }

  TEST_CASE("reshape: a transfer of pieces to trainers of two shards is a wrong order") {
    World world({1, 2}, {1, 3});
    for (Transfer& transfer : world.job.transfers) transfer.targets = {"n1.0", "n2.0"};
    world.run();
    CHECK(world.statuses[2].code() == Code::bad_data);
    CHECK(has(world.statuses[2], "n2.0 has another shard than n1.0"));
  }
}
