// The end of an engine, and ranks that should never have begun a step together.
#include <functional>

#include "runtime/training/state_hash.hpp"
#include "tests/model/engine_world.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

EngineOptions four_leaves() {
  EngineOptions options;
  options.shape = test_shape();
  options.leaves = 4;
  return options;
}

/// Keeps the reasons of all abort() calls.
class Recording : public ForwardingCollective {
 public:
  using ForwardingCollective::ForwardingCollective;
  void abort(const std::string& reason) override {
    reasons.push_back(reason);
    ForwardingCollective::abort(reason);
  }
  std::vector<std::string> reasons;
};

/// Its rank learns in the vote across groups that another rank has ended the generation.
class AbortsVote : public ForwardingCollective {
 public:
  using ForwardingCollective::ForwardingCollective;
  WorkPtr all_gather_bytes(const void* mine, void* all, size_t bytes) override {
    if (bytes > sizeof(Hash128))  // not the comparison of layouts before the first step
      abort("the ranks of another shard have found that replicas differ");
    return ForwardingCollective::all_gather_bytes(mine, all, bytes);
  }
};

/// Rank 0 of 2 x 2, with an engine over recording communicators.
struct RecordedRank {
  RecordedRank()
      : world(four_leaves(), 2, 2),
        shard(world.shard_communicator(world.seats[0])),
        replicate(world.replicate_communicator(world.seats[0])) {
    world.initialize();
    Result<std::unique_ptr<Engine>> made = must(Engine::create(
        world.options, *world.seats[0].backend, axes_of(shard, replicate), world.states[0]));
    world.seats[0].engine = made.take();
    REQUIRE(world.seats[0].engine->attach().ok());
    world.train(1, 1);
    engine = std::move(world.seats[0].engine);
  }
  Status step(const Engine::Batch& batch) { return engine->step(2, 0.1f, {}, batch).status(); }

  World world;
  Recording shard, replicate;
  std::unique_ptr<Engine> engine;
};

}  // namespace

TEST_SUITE("engine_end") {
  TEST_CASE(
      "engine: an error that finishes an engine aborts both communicators, so no peer waits for "
      "this rank") {
    RecordedRank rank;
    const Status status = rank.step(
        [](int) -> Result<const int32_t*> { return Status(Code::aborted, "shutting down"); });
    CHECK(status.code() == Code::aborted);
    const std::vector<std::string> once{"step 2: shutting down"};
    CHECK(rank.shard.reasons == once);
    CHECK(rank.replicate.reasons == once);
    // A step of a finished engine returns the same error and does nothing.
    CHECK(rank.step({}).message() == status.message());
    CHECK(rank.shard.reasons == once);
  }

  TEST_CASE("engine: loss() of parameters that cannot be gathered is an error") {
    RecordedRank rank;
    rank.world.shard_communicator(rank.world.seats[0]).abort("generation 3 is over");
    const std::vector<int32_t> tokens = test_tokens(rank.world.options, 1, 0);
    CHECK(rank.engine->loss(tokens.data()).status().code() == Code::aborted);
    CHECK(rank.replicate.reasons == std::vector<std::string>{"generation 3 is over"});
  }

  TEST_CASE("engine: ENGINE-4, a rank whose vote is aborted tells the hash that it voted with") {
    World world(four_leaves(), 2, 1);
    world.initialize();
    world.train(1, 2);
    std::vector<AbortsVote> replicate;
    for (Seat& seat : world.seats) replicate.emplace_back(world.replicate_communicator(seat));
    for (size_t rank = 0; rank < 2; ++rank) {
      Seat& seat = world.seats[rank];
      Result<std::unique_ptr<Engine>> made = must(
          Engine::create(world.options, *seat.backend,
                         axes_of(world.shard_communicator(seat), replicate[rank]), *seat.state));
      seat.engine = made.take();
      REQUIRE(seat.engine->attach().ok());
    }
    world.each([&](Seat& seat) {
      CHECK_FALSE(seat.engine->hashed());
      CHECK(world.step(seat, 3).status().code() == Code::aborted);
    });
    for (const Seat& seat : world.seats) {
      CHECK_FALSE(seat.engine->mismatch());
      REQUIRE(seat.engine->hashed());
      CHECK(seat.engine->hashed()->step == 2);
      CHECK(seat.engine->hashed()->hash == state_hash(seat.state->committed()));
    }
  }

  TEST_CASE("engine: abort() aborts both communicators, so that every wait of the rank ends") {
    RecordedRank rank;
    rank.engine->abort("generation 3 is over");
    rank.engine->abort("a later reason");
    const std::vector<std::string> reasons{"generation 3 is over", "a later reason"};
    CHECK(rank.shard.reasons == reasons);
    CHECK(rank.replicate.reasons == reasons);
  }

  TEST_CASE("engine: ranks that run different options make no step") {
    // SIGNATURE-1: the vote tells which of the two differs.
    const std::vector<std::pair<std::string, std::function<void(EngineOptions&)>>> changes{
        {"numerics signature ", [](EngineOptions& o) { ++o.signature.low; }},
        {"numerics signature ", [](EngineOptions& o) { ++o.signature.high; }},
        {"layout hash ",
         [](EngineOptions& o) {
           o.warmup = {{0, 2}};
         }},
        {"layout hash ",
         [](EngineOptions& o) {
           o.weights = {1000, 300};
         }},
        {"layout hash ",
         [](EngineOptions& o) {
           o.weights = {1, 1};
         }},
    };
    for (size_t change = 0; change < changes.size(); ++change) {
      for (const size_t odd : {size_t{1}, size_t{2}}) {  // in the same group, in another group
        INFO("change = ", change, ", odd = ", odd);
        EngineOptions all = four_leaves();
        all.ema_decay = 0.9;
        World world(all, 2, 2);
        world.initialize();
        const std::string before = world.digest();
        Seat& seat = world.seats[odd];
        EngineOptions options = world.options;
        changes[change].second(options);
        Result<std::unique_ptr<Engine>> made =
            must(Engine::create(options, *seat.backend, world.axes(seat), *seat.state));
        seat.engine = made.take();
        REQUIRE(seat.engine->attach().ok());
        std::vector<Status> statuses(4);
        world.each([&](Seat& each) {
          statuses[static_cast<size_t>(&each - world.seats.data())] = world.step(each, 1).status();
        });
        for (const Status& status : statuses) {
          CHECK(says(status, Code::internal, changes[change].first));
        }
        CHECK(world.digest() == before);
        for (const TrainState& state : world.states) CHECK(state.step() == 0);
      }
    }
  }
}
