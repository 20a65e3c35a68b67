// Failures of a step: batches, damage, disagreement, aborts, deadlines, and rollback a step.
#include <cmath>
#include <future>
#include <limits>
#include <mutex>
#include <optional>

#include "runtime/training/state_hash.hpp"
#include "tests/model/engine_steps.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

/// Stores the hash of the current values, as if the optimizer had made them.
void commit_as_it_is(TrainState& state) {
  const Result<SharedMemory> memory = must(SharedMemory::open(state.name()));
  auto* header = static_cast<StateHeader*>(memory->data());
  header->hash[header->committed - 1] = state_hash(state.committed());
}

}  // namespace

TEST_SUITE("engine_failure") {
  TEST_CASE(
      "engine: ENGINE-1, every rank names the rank whose batch failed, nothing is applied, the "
      "retry succeeds") {
    const EngineOptions options = options_for(12);
    World world(options, 2, 2);
    world.initialize();
    world.train(1, 1);
    const std::string before = world.digest();
    const std::vector<Status> statuses =
        step_with(world, 2, 3, [](int k, Seat&) -> Result<const int32_t*> {
          if (k == 1) return Status(Code::io, "disk full");
          return kUsual;
        });
    for (const Status& status : statuses) {
      CHECK(status.code() == Code::io);
      CHECK(status.message() == "step 2: group 1: trainer 1: disk full");
    }
    for (const Seat& seat : world.seats) CHECK(seat.engine->suspect() == 3);
    CHECK(world.digest() == before);
    world.train(2, 3);
    CHECK(world.digest() == undisturbed(options, 2, 2, 3));
  }

  TEST_CASE("engine: ranks that disagree on the step all return an error") {
    World world(options_for(4), 2, 2);
    world.initialize();
    world.train(1, 2);
    REQUIRE(world.states[2].rewind(1).ok());
    REQUIRE(world.seats[2].engine->attach().ok());
    const std::string before = world.digest();
    std::vector<Status> statuses(4);
    world.each([&](Seat& seat) {
      const size_t rank = static_cast<size_t>(&seat - world.seats.data());
      statuses[rank] = world.step(seat, rank == 2 ? 2 : 3).status();
    });
    for (const Status& status : statuses) CHECK(status.code() == Code::internal);
    CHECK(statuses[0].message() == "step 3: group 1: step 2 on trainer 0, 3 on trainer 1");
    CHECK(world.digest() == before);
    const Result<StepResult> twice =
        [&] {  // all ranks agree on a step that does not follow the committed one
          std::vector<Result<StepResult>> results(4, Status(Code::internal, ""));
          world.each([&](Seat& seat) {
            results[static_cast<size_t>(&seat - world.seats.data())] = world.step(seat, 5);
          });
          return results[0];
        }();
    CHECK(twice.status().message() ==
          "step 5: group 0: trainer 0: holds step 2, cannot make step 5");
  }

  TEST_CASE("engine: ranks that disagree on the learning rate make no step") {
    for (const size_t odd : {size_t{1}, size_t{2}}) {
      CAPTURE(odd);
      World world(options_for(4), 2, 2);
      world.initialize();
      world.each([&](Seat& seat) {
        const bool differs = &seat == &world.seats[odd];
        const std::vector<int32_t> tokens = test_tokens(world.options, 1, seat.engine->leaf(0));
        const Status status =
            seat.engine
                ->step(1, differs ? 0.125f : 0.25f, {},
                       [&](int) -> Result<const int32_t*> { return tokens.data(); })
                .status();
        CHECK(says(status, Code::internal, "learning rate "));
        CHECK(status.message().find("0.125 on ") != std::string::npos);
        CHECK(seat.state->step() == 0);
      });
    }
  }

  TEST_CASE("engine: ENGINE-4, the next vote detects a bit that differs between replicas") {
    for (const int groups : {2, 3}) {
      for (const StateKind damaged : kStateKinds) {
        EngineOptions options = options_for(6);
        options.ema_decay = damaged == StateKind::ema ? 0.9 : 0;
        World world(options, groups, 2);
        world.initialize();
        world.train(1, 2);
        TrainState::Side side = world.states[3].committed();  // group 1, shard 1
        const std::span<float> values = side.parts()[static_cast<size_t>(damaged)];
        reinterpret_cast<unsigned char*>(values.data())[values.size() * 2] ^= 1;
        const std::string wrong = state_hash(side).hex();
        commit_as_it_is(world.states[3]);
        for (const Status& status : step_with(world, 3, 99, [](int, Seat&) { return kUsual; })) {
          CHECK(status.code() == Code::mismatch);
          CHECK(status.message() ==
                "step 3: the replicas of shard 1 differ after step 2" +
                    std::string(groups == 3 ? ": most agree, and not with that of group 1"
                                            : "; no majority shows which one is wrong, "
                                              "so the step is made again"));
        }
        for (size_t rank = 0; rank < world.seats.size(); ++rank) {
          REQUIRE(world.seats[rank].engine->mismatch());
          CHECK(world.seats[rank].engine->mismatch()->of_group[1].hex() == wrong);
          // Every rank undoes the step and makes it again.
          REQUIRE(world.states[rank].step() == 2);
          REQUIRE(world.states[rank].rewind(1).ok());
          REQUIRE(*world.seats[rank].engine->attach() == 1);
        }
        world.train(2, 4);
        CHECK_FALSE(world.seats[0].engine->mismatch());
        CHECK(world.digest(1) == undisturbed(options, groups, 2, 4));
      }
    }
  }

  TEST_CASE("engine: ENGINE-5, a rank detects a changed bit in its memory, also without replicas") {
    for (const int groups : {1, 2}) {
      EngineOptions options = options_for(4);
      options.ema_decay = groups == 1 ? 0.9 : 0;
      World world(options, groups, 2);
      world.initialize();
      world.train(1, 2);
      const size_t hit = world.seats.size() - 1;
      const TrainState::Side side = world.states[hit].committed();
      const std::span<float> part = groups == 1 ? side.ema : side.exp_avg;
      reinterpret_cast<unsigned char*>(part.data())[part.size()] ^= 8;
      for (const Status& status : step_with(world, 3, 99, [](int, Seat&) { return kUsual; })) {
        CHECK(status.code() == Code::mismatch);
        CHECK(status.message() == "step 3: group " + std::to_string(groups - 1) +
                                      ": trainer 1: the state of step 2 has changed in memory");
      }
      for (size_t rank = 0; rank < world.seats.size(); ++rank) {
        CHECK(world.seats[rank].engine->damaged() == (rank == hit));
        CHECK_FALSE(world.seats[rank].engine->mismatch());
        if (rank == hit) world.states[rank].forget(world.states[rank].committed_side());
        REQUIRE(world.states[rank].rewind(1).ok());
        REQUIRE(*world.seats[rank].engine->attach() == 1);
      }
      world.train(2, 4);
      CHECK(world.digest() == undisturbed(options, groups, 2, 4));
      // After the last step, which no vote follows.
      world.states[hit].committed().params[5] += 1;
      std::vector<Status> statuses(world.seats.size());
      world.each([&](Seat& seat) {
        statuses[static_cast<size_t>(&seat - world.seats.data())] = seat.engine->compare_states();
      });
      CHECK(statuses[hit].code() == Code::mismatch);
      CHECK(world.seats[hit].engine->damaged());
      CHECK(statuses[0].ok() == (groups == 1));
    }
  }

  TEST_CASE(
      "engine: ENGINE-4, a bit flipped in one reduced gradient after the vote, also in the last "
      "step") {
    for (const bool host : {true, false}) {
      World world(options_for(8), 2, 2, fake_backends(host));
      world.initialize();
      world.seats[2].engine->inject(EngineFault::bitflip_gradient, 3);  // group 1, shard 0
      world.train(1, 3);
      const Hash128 wrong = state_hash(world.states[2].committed()),
                    right = state_hash(world.states[0].committed());
      CHECK(wrong != right);
      std::vector<Status> statuses(4);
      auto compare = [&] {
        world.each([&](Seat& seat) {
          statuses[static_cast<size_t>(&seat - world.seats.data())] = seat.engine->compare_states();
        });
      };
      compare();
      for (const Status& status : statuses) {
        CHECK(status.code() == Code::mismatch);
        CHECK(status.message().starts_with("the replicas of shard 0 differ after step 3"));
      }
      for (const Seat& seat : world.seats) {
        REQUIRE(seat.engine->mismatch());
        CHECK(seat.engine->mismatch()->of_group == std::vector{right, wrong});
      }
      statuses = step_with(world, 4, 99, [](int, Seat&) { return kUsual; });
      for (const Status& status : statuses) CHECK(status.code() == Code::mismatch);
      for (size_t rank = 0; rank < 4; ++rank) {
        REQUIRE(world.states[rank].rewind(2).ok());
        REQUIRE(world.seats[rank].engine->attach().ok());
      }
      world.train(3, 3);  // the fault is injected once
      compare();
      for (const Status& status : statuses) CHECK(status.ok());
      std::vector<Hash128> before(4);  // hash of step 3, made again
      world.each([&](Seat& seat) {
        const Result<StepResult> result = world.step(seat, 4);
        if (result.ok() && seat.engine->wait_for_commit().ok())
          before[static_cast<size_t>(&seat - world.seats.data())] = result->state_hash;
      });
      CHECK(before[0] == right);
      CHECK(before[2] == right);
      CHECK(world.digest() == undisturbed(options_for(8), 2, 2, 4));
    }
  }

  TEST_CASE(
      "engine: ENGINE-5, a bit that changes after the vote is in no state that is committed") {
    for (const int groups : {1, 2}) {
      CAPTURE(groups);
      World world(options_for(4), groups, 2);
      world.initialize();
      world.train(1, 2);
      const size_t hit = world.seats.size() - 1;
      TrainState& state = world.states[hit];
      const Result<int> side = state.pin(1);  // the optimizer waits for this reader, after the vote
      REQUIRE(side.ok());
      auto statuses = std::async(std::launch::async, [&] {
        return step_with(world, 3, 99, [](int, Seat&) { return kUsual; });
      });
      const Engine& engine = *world.seats[hit].engine;
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (engine.activity().phase != StepPhase::copy &&
             std::chrono::steady_clock::now() < deadline)
        std::this_thread::yield();
      state.committed().exp_avg[5] += 1;
      state.unpin(*side);
      const std::vector<Status> ended = statuses.get();
      CHECK(ended[hit].code() == Code::mismatch);
      CHECK(engine.damaged());
      CHECK(state.step() == 2);
      for (size_t rank = 0; rank < hit; ++rank) {
        CHECK(ended[rank].ok());
        CHECK(world.states[rank].step() == 3);
      }
    }
  }

  TEST_CASE(
      "engine: ENGINE-5, a rank detects a copy that was damaged before it reached the device") {
    for (const bool new_engine : {false, true}) {
      CAPTURE(new_engine);
      World before(options_for(4), 1, 2, fake_backends(false));
      before.initialize();
      before.train(1, 2);
      before.states[1].committed().exp_avg_sq[3] += 1;
      std::optional<World> after;
      if (new_engine)
        after.emplace(before.options, 1, 2, fake_backends(false), std::move(before.states));
      World& world = new_engine ? *after : before;
      REQUIRE(world.seats[1].engine->attach().ok());
      for (const Status& status : step_with(world, 3, 99, [](int, Seat&) { return kUsual; })) {
        CHECK(status.code() == Code::mismatch);
        CHECK(status.message() ==
              "step 3: group 0: trainer 1: the state of step 2 has changed in memory");
      }
      CHECK(world.seats[1].engine->damaged());
    }
  }

  TEST_CASE("engine: compare_states() detects ranks that hold different steps") {
    World world(options_for(4), 2, 2);
    world.initialize();
    world.train(1, 2);
    REQUIRE(world.states[3].rewind(1).ok());
    REQUIRE(world.seats[3].engine->attach().ok());
    std::vector<Status> statuses(4);
    world.each([&](Seat& seat) {
      statuses[static_cast<size_t>(&seat - world.seats.data())] = seat.engine->compare_states();
    });
    for (const Status& status : statuses) {
      CHECK(status.code() == Code::internal);
      CHECK(status.message() == "rank 0 holds step 2, rank 3 step 1");
    }
  }

  TEST_CASE("engine: an injected NaN loss fails one step") {
    World world(options_for(8), 2, 2);
    world.initialize();
    world.seats[3].engine->inject(EngineFault::nan_loss, 2);
    world.train(1, 1);
    for (const Status& status : step_with(world, 2, 99, [](int, Seat&) { return kUsual; }))
      CHECK(status.code() == Code::bad_data);
    for (const Seat& seat : world.seats) CHECK(seat.engine->suspect() == 3);
    world.train(2, 3);
    for (const Seat& seat : world.seats) CHECK_FALSE(seat.engine->suspect());
    CHECK(world.digest() == undisturbed(options_for(8), 2, 2, 3));
  }

  TEST_CASE("engine: an injected hang stops progress and ignores abort()") {
    auto* world = new World(options_for(1), 1, 1);  // never ends
    world->initialize();
    world->train(1, 1);
    Engine& engine = *world->seats[0].engine;
    engine.inject(EngineFault::hang, 2);
    const uint64_t before = engine.progress();
    auto* ended = new std::promise<void>;
    std::promise<void> begun;
    std::thread([world, ended, &begun] {
      (void)world->seats[0].engine->step(2, 0.1f, {}, [&](int) -> Result<const int32_t*> {
        begun.set_value();
        static const std::vector<int32_t> tokens = test_tokens(world->options, 2, 0);
        return tokens.data();
      });
      ended->set_value();
    }).detach();
    begun.get_future().get();
    engine.abort("stop it");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (engine.activity().block != 0 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    CHECK(engine.activity().phase == StepPhase::forward);
    CHECK(engine.activity().block == 0);
    CHECK(ended->get_future().wait_for(std::chrono::milliseconds(50)) ==
          std::future_status::timeout);
    CHECK(engine.progress() == before);
    CHECK_FALSE(engine.waiting());
  }

  TEST_CASE("engine: waiting() distinguishes a rank that waits from the rank that is late") {
    World world(options_for(2), 2, 1);
    world.initialize();
    world.train(1, 1);  // before its first step, a rank waits for the others' layouts
    std::promise<void> come;
    std::shared_future<void> go = come.get_future().share();
    std::thread watcher([&] {
      while (!world.seats[0].engine->waiting()) std::this_thread::yield();
      CHECK_FALSE(world.seats[1].engine->waiting());
      come.set_value();
    });
    for (const Status& status : step_with(world, 2, 1, [&](int, Seat&) -> Result<const int32_t*> {
           go.get();
           return kUsual;
         }))
      CHECK(status.ok());
    watcher.join();
    CHECK_FALSE(world.seats[0].engine->waiting());
  }

  TEST_CASE("engine: a loss that is not finite fails the step on every rank; nothing is applied") {
    World world(options_for(8), 2, 2);
    world.initialize();
    const std::string before = world.digest();
    // ENGINE-1: without a vote of every rank nothing of the step is written.
    world.seats[1].fake().poison = std::numeric_limits<float>::quiet_NaN();
    for (const Status& status : step_with(world, 1, 99, [](int, Seat&) { return kUsual; })) {
      CHECK(status.code() == Code::bad_data);
      CHECK(status.message().starts_with("step 1: loss "));
    }
    // Every rank names the one whose gradient was not finite before the reductions.
    for (const Seat& seat : world.seats) CHECK(seat.engine->suspect() == 1);
    CHECK(world.digest() == before);
    world.seats[1].fake().poison = 0;
    world.train(1, 1);
  }

  TEST_CASE(
      "engine: abort() ends a step at once on its rank and by deadline on other ranks; the state "
      "stays as it was") {
    const EngineOptions options = options_for(16);
    World world(options, 2, 2, fake_backends(), {}, 200);
    world.initialize();
    world.train(1, 2);
    const std::string before = world.digest();
    const std::vector<Status> statuses = step_with(world, 3, 0, [](int k, Seat& seat) {
      if (k == 2) std::thread([&] { seat.engine->abort("generation 7 is over"); }).join();
      return kUsual;
    });
    CHECK(statuses[0].code() == Code::aborted);
    CHECK(statuses[0].message() == "step 3: generation 7 is over");
    for (size_t rank = 1; rank < 4; ++rank) {
      const bool expected =
          statuses[rank].code() == Code::deadline || statuses[rank].code() == Code::unavailable;
      CHECK(expected);
    }
    CHECK(world.digest() == before);
    for (Seat& seat : world.seats) CHECK_FALSE(world.step(seat, 3).ok());  // the engine is finished
    World next(options, 2, 2, fake_backends(), std::move(world.states));
    next.train(3, 4);
    CHECK(next.digest() == undisturbed(options, 2, 2, 4));
  }

  TEST_CASE(
      "engine: abort() also ends a step of a single trainer, after the unit that it computes") {
    World world(options_for(2), 1, 1);
    world.initialize();
    uint64_t units = 0;
    const std::vector<Status> statuses = step_with(world, 1, 0, [&](int k, Seat& seat) {
      if (k == 1) seat.engine->abort("enough"), units = seat.engine->progress();
      return kUsual;
    });
    CHECK(statuses[0].code() == Code::aborted);
    CHECK(world.seats[0].engine->progress() == units + 1);
    CHECK(world.states[0].step() == 0);
  }

  TEST_CASE("engine: a batch() that returns aborted ends the step without a vote") {
    World world(options_for(1), 1, 1);
    world.initialize();
    const std::vector<Status> statuses =
        step_with(world, 1, 0, [](int, Seat&) -> Result<const int32_t*> {
          return Status(Code::aborted, "shutting down");
        });
    CHECK(statuses[0].code() == Code::aborted);
    CHECK_FALSE(world.step(world.seats[0], 1).ok());
  }

  TEST_CASE(
      "engine: ENGINE-2, a step that only some ranks committed can be undone and made again with "
      "the "
      "same bits") {
    const EngineOptions options = options_for(12);
    World world(options, 2, 2);
    world.initialize();
    world.train(1, 3);
    for (size_t rank : {size_t{0}, size_t{3}})
      REQUIRE(world.states[rank].rewind(2).ok());  // did not commit step 3
    for (TrainState& state : world.states) {
      REQUIRE(state.holds(2));
      REQUIRE(state.rewind(2).ok());
    }
    World next(options, 2, 2, fake_backends(), std::move(world.states));
    for (Seat& seat : next.seats) CHECK(*seat.engine->attach() == 2);
    next.train(3, 5);
    CHECK(next.digest() == undisturbed(options, 2, 2, 5));
  }

  TEST_CASE("engine: grad_clip shrinks a larger gradient, and leaves a smaller one as it is") {
    EngineOptions options = options_for(4);
    auto clipped_at = [&](float limit) {
      options.grad_clip = limit;
      return undisturbed(options, 1, 2, 2);
    };
    const std::string as_it_is = clipped_at(0);  // 0: no limit
    CHECK(clipped_at(1e6f) == as_it_is);
    CHECK(clipped_at(1e-3f) != as_it_is);
  }

  TEST_CASE("engine: continuing from a state gives the same bits as never stopping") {
    const EngineOptions options = options_for(6);
    for (bool host : {true, false}) {
      World first(options, 1, 3, fake_backends(host));
      CHECK(first.seats[0].engine->attach().status().code() == Code::not_found);
      CHECK(first.step(first.seats[0], 1).status().code() == Code::not_found);
      first.initialize();
      first.train(1, 2);
      World second(options, 1, 3, fake_backends(host), std::move(first.states));
      Seat& seat = second.seats[0];
      const auto made =
          must(Engine::create(options, *seat.backend, second.axes(seat), *seat.state));
      CHECK((*made)->compare_states().code() == Code::not_found);  // attach() loads, once
      second.train(3, 4);
      CHECK(second.digest() == undisturbed(options, 1, 3, 4));
    }
  }

  TEST_CASE("engine: a reader that pins the other side causes a deadline and no damage") {
    EngineOptions options = options_for(1);
    options.state_timeout_ms = 0;
    World world(options, 1, 1);
    world.initialize();
    REQUIRE(world.states[0].pin(0).ok());
    world.train(1, 1);
    const Status status = world.step(world.seats[0], 2).status();
    CHECK(status.code() == Code::deadline);
    CHECK(world.states[0].step() == 1);
  }

  TEST_CASE("engine: every rank gets the requests of any rank") {
    World world(options_for(4), 2, 2);
    world.initialize();
    std::vector<StepControl> agreed(4);
    world.each([&](Seat& seat) {
      const size_t rank = static_cast<size_t>(&seat - world.seats.data());
      const Result<StepResult> result =
          world.step(seat, 1, {.stop = rank == 1, .save = rank == 2, .pause = rank == 3});
      if (result.ok()) agreed[rank] = result->agreed;
    });
    for (const StepControl& control : agreed)
      CHECK(control == StepControl{.stop = true, .save = true, .pause = true});
  }

  TEST_CASE("engine: options that do not fit are refused") {
    World world(options_for(2), 1, 2);
    Seat& seat = world.seats[0];
    auto refused = [&](const std::function<void(EngineOptions&)>& change) {
      EngineOptions options = options_for(2);
      change(options);
      return Engine::create(options, *seat.backend, world.axes(seat), *seat.state).status().code();
    };
    CHECK(refused([](EngineOptions& o) { o.sharding = Sharding::no_shard; }) == Code::bad_config);
    CHECK(refused([](EngineOptions& o) { o.leaves = 0; }) == Code::bad_config);
    CHECK(refused([](EngineOptions& o) { o.micro_batch_size = 0; }) == Code::bad_config);
    CHECK(refused([](EngineOptions& o) { o.shape.heads = 3; }) == Code::bad_config);
    CHECK(refused([](EngineOptions& o) { o.shape.hidden *= 2; }) == Code::bad_config);
  }
}
