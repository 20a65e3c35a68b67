// Restores from a trainer's own memory and from its node's peer store.
// The data plane of a trainer, and what preflight counts for it.
#include <doctest/doctest.h>
#include <unistd.h>

#include <numeric>
#include <string>
#include <thread>

#include "actors/checkpoint/state_store.hpp"
#include "actors/trainer/batch_reader.hpp"
#include "actors/trainer/engine_setup.hpp"
#include "actors/trainer/restore.hpp"
#include "runtime/base/shared_memory.hpp"
#include "runtime/config/preflight.hpp"
#include "runtime/training/state_hash.hpp"
#include "tests/model/thread_collective.hpp"
#include "tests/must.hpp"

using namespace simplescale;
using std::chrono::milliseconds;

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

std::string unique(const std::string& name) {
  static int count = 0;
  return "ss-test-restore-" + std::to_string(getpid()) + "-" + name + std::to_string(count++);
}

TrainState make_state(const std::string& name) {
  return must(TrainState::create("ss-test-restore-" + std::to_string(getpid()) + "-" + name,
                                 layout_of(1, 0), shard_layout(units_of(shape()), 1).total))
      .take();
}

/// Commits `step` with values that begin at `first`.
void commit(TrainState& state, uint64_t step, float first) {
  const auto side = must(state.begin_write(0));
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
          order, shape(), 1'000, [] { return false; }, counting);
    };
    auto plane =
        must(DataPlane::create({.shm_prefix = "ss-test-restore-" + std::to_string(getpid())}));
    TrainState state = make_state("own");
    size_t blocks = 0;
    for (const std::span<float> part : state.side(0).parts())
      blocks += (part.size() + kStateHashBlock - 1) / kStateHashBlock;
    commit(state, 7, 1);
    REQUIRE(restore().commit(state, axes_of(alone.rank(0), alone.rank(0))).ok());
    CHECK(tasks_run == blocks);

    TrainState peer = make_state("peer");
    commit(peer, 8, 2);
    order.step = 8;
    order.transfers = {{.step = 8, .segment = peer.name(), .members = {{}}, .takes = true}};
    Restore from_peer = restore();
    tasks_run = 0;
    REQUIRE(from_peer.transfer(**plane, state).ok());
    CHECK(tasks_run > blocks);  // copied, and then hashed
    REQUIRE(from_peer.commit(state, axes_of(alone.rank(0), alone.rank(0))).ok());
    CHECK(state.step() == 8);
    CHECK(std::ranges::equal(state.committed().exp_avg_sq, peer.committed().exp_avg_sq));
  }

  TEST_CASE("restore: a copy whose memory nobody holds any more counts as lost") {
    auto plane = must(DataPlane::create({.shm_prefix = "ss-test-restore-lost", .network = false}));
    TrainState state = make_state("with-lost-peer");
    const JoinTrainer order{.trainer = "n0.0",
                            .generation = 3,
                            .source = JoinSource::memory,
                            .step = 8,
                            .transfers = {{.step = 8, .segment = "ss-none", .members = {{}}}}};
    Restore restore(
        order, shape(), 1'000, [] { return false; }, on_threads(2));
    const Status status = restore.transfer(**plane, state);
    CHECK(status.message().find("no process of this host holds ss-none") != std::string::npos);
    CHECK(restore.fault().fault == Fault::bad_copy);  // so that another copy is taken
    CHECK(restore.fault().suspect == "n0.0");
  }

  TEST_CASE("restore: RESHAPE-1, a trainer takes both old shards of its node, each element once") {
    auto plane = must(DataPlane::create(
        {.shm_prefix = "ss-test-restore-cut-" + std::to_string(getpid()), .network = false}));
    const std::vector<Unit> units = units_of(shape());
    const size_t half = shard_layout(units, 2).total, whole = shard_layout(units, 1).total;
    const auto of_two = [&](const std::string& name, uint32_t shard) {
      TrainState state =
          must(TrainState::create(unique(name), layout_of(2, shard), half, {}, whole)).take();
      commit(state, 7, static_cast<float>(shard));
      return state;
    };
    ThreadCommunicator alone(1, 1'000);
    for (const auto& [others, cut] : std::vector<std::pair<std::vector<uint32_t>, uint32_t>>{
             {{1}, 2}, {{}, 2}, {{1, 1}, 2}, {{0, 1}, 2}, {{1}, 3}}) {
      TrainState state = of_two("first", 0);
      TrainState peers[] = {of_two("peer-0", 0), of_two("peer-1", 1)};
      JoinTrainer order{
          .trainer = "n0.0", .generation = 3, .source = JoinSource::memory, .step = 7};
      order.from_shards = cut;
      order.transfers = {{.step = 7, .members = {{}}, .shards = 2, .takes = true}};
      for (const uint32_t shard : others)
        order.transfers.push_back({.id = static_cast<uint32_t>(order.transfers.size()),
                                   .shard = shard,
                                   .step = 7,
                                   .segment = peers[shard].name(),
                                   .members = {{}},
                                   .shards = 2,
                                   .takes = true});
      Restore restore(
          order, shape(), 1'000, [] { return false; }, on_threads(2));
      state.set_generation(3);
      const Status moved = restore.transfer(**plane, state);
      CHECK(state.holds(7, layout_of(2, 0)));
      // A shard is missing, comes twice, or is one of another cut.
      if (others != std::vector<uint32_t>{1} || cut != 2) {
        CHECK(moved.code() == Code::bad_data);
        CHECK(restore.fault().fault == Fault::bad_order);
        CAPTURE(moved.message());
        const bool other_cut = moved.message().find("of another cut") != std::string::npos;
        CHECK(other_cut == (cut != 2));
        CHECK_FALSE(state.holds(7, layout_of(1, 0)));
        continue;
      }
      REQUIRE(moved.ok());
      REQUIRE(restore.commit(state, axes_of(alone.rank(0), alone.rank(0))).ok());
      CHECK(state.held(state.committed_side()) == StateCopy{0, 7, 3, 1, true});
      CHECK(check_side(state, state.committed_side()).ok());
      CHECK(state.committed_hash() != Hash128{});
      CHECK_FALSE(state.holds(7, layout_of(2, 0)));  // all ranks have the new cut
      for (const int side : {0, 1}) CHECK(state.side(side).params.size() == whole);
      for (const uint32_t shard : {0, 1})
        for (const Piece& piece : common_pieces(units, 2, shard, 1, 0))
          CHECK(std::ranges::equal(
              state.committed().exp_avg.subspan(piece.to, piece.count),
              peers[shard].committed().exp_avg.subspan(piece.from, piece.count)));
    }
  }

  TEST_CASE(
      "restore: RESTORE-1, a trainer that has to send both of its copies overwrites neither") {
    auto plane = must(DataPlane::create(
        {.shm_prefix = "ss-test-restore-both-" + std::to_string(getpid()), .network = false}));
    const size_t third = shard_layout(units_of(shape()), 3).total;
    TrainState state = must(TrainState::create(unique("both"), layout_of(3, 0), third)).take();
    commit(state, 7, 1);
    const auto second = must(state.begin_write(0, layout_of(3, 1), third));
    state.commit(7, state_hash(*second));
    TrainState peer = must(TrainState::create(unique("third"), layout_of(3, 2), third)).take();
    commit(peer, 7, 1);
    JoinTrainer order{
        .trainer = "n0.0", .generation = 3, .shard = 2, .source = JoinSource::memory, .step = 7};
    order.shards = 3;
    order.transfers = {{.shard = 2,
                        .step = 7,
                        .segment = peer.name(),
                        .members = {{}},
                        .shards = 3,
                        .takes = true},
                       {.id = 1, .shard = 0, .step = 7, .members = {{}}, .shards = 3},
                       {.id = 2, .shard = 1, .step = 7, .members = {{}}, .shards = 3}};
    Restore restore(
        order, shape(), 1'000, [] { return false; }, on_threads(2));
    CHECK(restore.transfer(**plane, state).code() == Code::internal);
    CHECK(restore.fault().fault == Fault::none);
    CHECK(state.holds(7, layout_of(3, 0)));
    CHECK(state.holds(7, layout_of(3, 1)));
  }

  TEST_CASE("restore: RESHAPE-1, older values leave nothing in the padding of another shard") {
    // A node that came back had shard 0, got shard 1 of the same size, and differed from its replica.
    auto plane = must(DataPlane::create(
        {.shm_prefix = "ss-test-restore-pad-" + std::to_string(getpid()), .network = false}));
    const std::vector<Unit> units = units_of(shape());
    const ShardLayout half = shard_layout(units, 2);
    const size_t whole = shard_layout(units, 1).total;
    ThreadCommunicator alone(1, 1'000);
    TrainState state =
        must(TrainState::create(unique("older"), layout_of(2, 0), half.total)).take();
    commit(state, 4, 1);
    commit(state, 5, 2);
    TrainState peer = must(TrainState::create(unique("whole"), layout_of(1, 0), whole)).take();
    commit(peer, 7, 3);
    JoinTrainer order{
        .trainer = "n0.0", .generation = 3, .shard = 1, .source = JoinSource::memory, .step = 7};
    order.shards = 2;
    order.from_shards = 1;
    order.transfers = {{.step = 7, .segment = peer.name(), .members = {{}}, .takes = true}};
    Restore restore(
        order, shape(), 1'000, [] { return false; }, on_threads(2));
    REQUIRE(restore.transfer(**plane, state).ok());
    REQUIRE(restore.commit(state, axes_of(alone.rank(0), alone.rank(0))).ok());
    std::vector<bool> is_real(half.total);
    for (const Piece& piece : common_pieces(units, 1, 0, 2, 1))
      std::fill_n(is_real.begin() + static_cast<std::ptrdiff_t>(piece.to), piece.count, true);
    CHECK(std::ranges::count(is_real, false) > 0);
    for (const std::span<float> part : state.committed().parts())
      for (size_t i = 0; i < part.size(); ++i)
        if ((part[i] != 0) != is_real[i]) FAIL("element " << i << " is " << part[i]);
  }

  TEST_CASE("restore: RESHAPE-1, a shard that is all padding is made although nobody sends it") {
    auto plane = must(DataPlane::create(
        {.shm_prefix = "ss-test-restore-all-pad-" + std::to_string(getpid()), .network = false}));
    const std::vector<Unit> units = units_of(shape());
    constexpr uint32_t shards = 20, last = shards - 1;
    REQUIRE(common_pieces(units, 1, 0, shards, last).empty());
    TrainState whole =
        must(TrainState::create(unique("whole"), layout_of(1, 0), shard_layout(units, 1).total))
            .take();
    commit(whole, 7, 3);
    const size_t total = shard_layout(units, shards).total;
    ThreadCommunicator both(2, 1'000);
    // The trainer of shard 0 gets elements. Both meet the same number of times.
    const auto restore_shard = [&](int rank, uint32_t shard) {
      ThreadCommunicator alone(1, 1'000);
      TrainState state = must(TrainState::create(unique("old"), layout_of(2, 0), total)).take();
      commit(state, 5, 1);
      commit(state, 6, 2);
      JoinTrainer order{
          .trainer = "n0.0", .generation = 3, .source = JoinSource::memory, .step = 7};
      order.shard = shard;
      order.shards = shards;
      order.from_shards = 1;
      if (shard == 0)
        order.transfers = {{.step = 7, .segment = whole.name(), .members = {{}}, .takes = true}};
      Restore restore(
          order, shape(), 1'000, [] { return false; }, on_threads(2));
      const Status moved = restore.transfer(**plane, state);
      CHECK_MESSAGE(moved.ok(), moved.message());
      const Status done = restore.commit(state, axes_of(both.rank(rank), alone.rank(0)));
      CHECK_MESSAGE(done.ok(), done.message());
      CHECK(state.holds(7, layout_of(shards, shard)));
      return state;
    };
    std::thread first([&] { restore_shard(0, 0); });
    TrainState padding = restore_shard(1, last);
    first.join();
    CHECK(check_side(padding, padding.committed_side()).ok());
    for (const std::span<float> part : padding.committed().parts())
      CHECK(std::ranges::count(part, 0.0f) == std::ssize(part));
  }

  TEST_CASE("restore: STATE-2, a damaged copy is forgotten and reported") {
    ThreadCommunicator alone(1, 1'000);
    const JoinTrainer order{
        .trainer = "n0.0", .generation = 3, .source = JoinSource::memory, .step = 7};
    TrainState state = make_state("damaged");
    commit(state, 7, 1);
    state.committed().exp_avg.back() += 1;
    Restore restore(
        order, shape(), 1'000, [] { return false; }, on_threads(2));
    CHECK(restore.commit(state, axes_of(alone.rank(0), alone.rank(0))).code() == Code::mismatch);
    CHECK(restore.fault().fault == Fault::bad_copy);
    CHECK(restore.fault().suspect == "n0.0");
    CHECK_FALSE(state.holds(7));
  }
}

namespace {

/// The shared memory of a data plane with these options.
uint64_t segment_bytes(DataPlaneOptions options) {
  options.network = false;
  options.shm_prefix = "ss-test-setup-" + std::to_string(getpid());
  const auto plane = must(DataPlane::create(options));
  const auto segment = must(SharedMemory::open(options.shm_prefix));
  return segment->bytes();
}

}  // namespace

TEST_SUITE("engine setup") {
  TEST_CASE("engine setup: preflight counts the data planes of all processes, staged ones too") {
    Config config;
    config.model.preset = "micro";
    config.train.max_steps = 10;
    config.metrics.trace_events = 0;
    config.supervision.warm_processes = 3;
    config.parallel.strategy = Strategy::no_shard;
    for (const auto& [kind, device, staged, nodes] :
         {std::tuple{DeviceKind::cpu, std::optional<DeviceTransport>(), false, 1},
          std::tuple{DeviceKind::cpu, std::optional<DeviceTransport>(), false, 1023},
          std::tuple{DeviceKind::cuda, std::optional(DeviceTransport::nccl), false, 1023},
          std::tuple{DeviceKind::cuda, std::optional(DeviceTransport::staged), true, 1}}) {
      config.cluster.device = kind;
      config.cluster.nodes = nodes;
      const auto plan = must(make_plan(config));
      const uint64_t plane = segment_bytes(plane_options(config, *plan, device));
      // A trainer and three warm processes; the rest are the state, the ring and the agent's plane.
      const uint64_t counted = host_needs(config, *plan, 1, staged).shared;
      config.supervision.warm_processes = 0;
      const uint64_t without = host_needs(config, *plan, 1, staged).shared;
      config.supervision.warm_processes = 3;
      CHECK(counted - without >= 3 * plane);
      CHECK(counted - without < 3 * (plane + (uint64_t{20} << 20)));
    }
    DataPlaneOptions agent;  // as make_agent_plane()
    agent.arena_bytes = size_t{1} << 20;
    CHECK(segment_bytes(agent) <= uint64_t{28} << 20);
  }
}

namespace {

constexpr uint64_t generation = 4;

/// The ring of one trainer, with room for two micro-batches, and the trainer's reader.
struct Trainer {
  TokenRings rings;
  bool fenced = false;
  Result<BatchReader> reader;

  explicit Trainer(milliseconds timeout = milliseconds(60'000))
      : rings(
            TokenRings::create("ss-test-reader-" + std::to_string(getpid()), {1, 2, 1, 3}).take()),
        reader((rings.reset(0, generation), BatchReader::open(rings.name(), 0, generation, timeout,
                                                              [this] { return fenced; }))) {
    REQUIRE(reader.ok());
  }
  void fill(uint64_t step, uint64_t accumulation, int32_t token) {
    int32_t* tokens = rings.begin_fill(0);
    REQUIRE(tokens);
    tokens[0] = token;
    rings.commit_fill(0, step, accumulation, 0);
  }
};

}  // namespace

TEST_SUITE("batch reader") {
  TEST_CASE("batch reader: micro-batches come in order, and each read gives the last slot back") {
    Trainer trainer;
    trainer.fill(6, 0, 60);  // rings count steps from 0
    trainer.fill(6, 1, 61);
    CHECK((*trainer.reader->read(7, 0))[0] == 60);
    CHECK((*trainer.reader->read(7, 1))[0] == 61);
    CHECK(trainer.rings.filled(0) == 1);
    CHECK(trainer.reader->release().ok());
    CHECK(trainer.rings.filled(0) == 0);
    CHECK(trainer.reader->release().ok());  // there is none
  }

  TEST_CASE("batch reader: a fence ends a read that waits") {
    Trainer trainer(milliseconds(1'000));
    trainer.fenced = true;
    CHECK(trainer.reader->read(1, 0).status().code() == Code::aborted);
    trainer.fenced = false;
    CHECK(trainer.reader->read(1, 0).status().code() == Code::deadline);
  }

  TEST_CASE("batch reader: a bad token is told from a loss that is not finite") {
    Trainer trainer;
    CHECK_FALSE(trainer.reader->bad_tokens());
    trainer.rings.close(0, Status(Code::bad_data, "a.bin: byte 44"));
    const Status status = trainer.reader->read(1, 0).status();
    CHECK(status.code() == Code::io);
    CHECK(status.message() == "a.bin: byte 44");
    CHECK(trainer.reader->bad_tokens());
  }
}
