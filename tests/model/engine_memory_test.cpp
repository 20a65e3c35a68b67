// States in device memory: which steps are copied to host memory, when, and what a rank leaves.
#include <cstring>

#include "runtime/training/state_hash.hpp"
#include "tests/model/engine_steps.hpp"
#include "tests/must.hpp"

using namespace simplescale;

TEST_SUITE("engine memory") {
  TEST_CASE("engine: ENGINE-6, with device memory the vote for the next step waits for the copy") {
    for (const int groups : {1, 2}) {
      World world(options_for(4), groups, 2, fake_backends(false));
      world.initialize();
      world.train(1, 1);
      world.each([&](Seat& seat) {
        REQUIRE(world.step(seat, 2).ok());
        CHECK(seat.state->step() == 1);  // the copy is in progress
        CHECK_FALSE(seat.state->holds(2));
        CHECK_FALSE(seat.state->holds(0));
      });
      // A vote that fails also waits for the copy.
      for (const Status& status :
           step_with(world, 3, 1, [](int, Seat&) { return Status(Code::io, "disk full"); }))
        CHECK(status.code() == Code::io);
      world.each([&](Seat& seat) {
        CHECK(seat.state->step() == 2);
        CHECK(seat.state->holds(1));
        CHECK(seat.state->committed_hash() == state_hash(seat.state->committed()));
        REQUIRE(world.step(seat, 3).ok());
        CHECK_FALSE(seat.state->holds(1));
        REQUIRE(seat.engine->wait_for_commit().ok());
        CHECK(seat.state->step() == 3);
        CHECK(seat.state->holds(2));
        CHECK(seat.state->committed_hash() == state_hash(seat.state->committed()));
        CHECK(seat.fake().mistakes == 0);
      });
      CHECK(world.digest() == undisturbed(options_for(4), groups, 2, 3));
    }
  }

  TEST_CASE("engine: ENGINE-6, memory_every_steps says which steps are copied to host memory") {
    EngineOptions options = options_for(4);
    options.memory_every_steps = 3;
    World world(options, 2, 2, fake_backends(false));
    world.initialize();
    world.each([&](Seat& seat) {
      for (uint64_t step = 1; step <= 5; ++step) {
        REQUIRE(world.step(seat, step).ok());
        CHECK(seat.state->step() == (step < 4 ? 0 : 3));  // a copy is complete before the next vote
        const TrainState::Side side = seat.state->side(0);
        CHECK(seat.fake().pinned_bytes == 2 * side.values() * sizeof(float));
      }
      CHECK(seat.state->holds(0));
      REQUIRE(seat.engine->wait_for_commit().ok());  // as for a checkpoint
      CHECK(seat.state->step() == 5);
      CHECK(seat.state->holds(3));
      CHECK(seat.state->committed_hash() == state_hash(seat.state->committed()));
      REQUIRE(seat.engine->wait_for_commit().ok());
      CHECK(seat.state->holds(3));  // once is enough
      CHECK(seat.fake().mistakes == 0);
    });
    CHECK(world.digest() == undisturbed(options_for(4), 2, 2, 5));
  }

  TEST_CASE("engine: ENGINE-6, without copies an engine that ends leaves its newest step") {
    for (const bool finite : {true, false}) {
      CAPTURE(finite);
      EngineOptions options = options_for(4);
      options.memory_every_steps = 0;
      std::vector<TrainState> left;
      {
        World world(options, 1, 2, fake_backends(false));
        world.initialize();
        world.each([&](Seat& seat) {
          for (uint64_t step = 1; step <= 3; ++step) REQUIRE(world.step(seat, step).ok());
          CHECK(seat.state->step() == 0);
        });
        if (!finite) world.seats[1].engine->inject(EngineFault::nan_loss, 4);
        const std::vector<Status> ended =
            step_with(world, 4, finite ? 1 : 99, [&](int, Seat& seat) -> Result<const int32_t*> {
              seat.engine->abort("a peer is lost");
              return kUsual;
            });
        for (const Status& status : ended)
          CHECK(finite ? !status.ok() : status.code() == Code::bad_data);
        for (Seat& seat : world.seats) seat.engine.reset();
        for (Seat& seat : world.seats) CHECK(seat.fake().pinned_bytes == 0);
        left = std::move(world.states);
      }
      for (TrainState& state : left) {
        CHECK(state.step() == 3);
        CHECK(state.committed_hash() == state_hash(state.committed()));
      }
      World next(options, 1, 2, fake_backends(false), std::move(left));
      next.train(4, 6);
      CHECK(next.digest() == undisturbed(options_for(4), 1, 2, 6));
    }
  }

  TEST_CASE("engine: ENGINE-6, an engine that ends stores no state that differs or is damaged") {
    EngineOptions options = options_for(2);
    options.memory_every_steps = 0;
    for (const bool pinned : {false, true}) {
      CAPTURE(pinned);
      World world(options, 2, 1, fake_backends(false));
      world.initialize();
      world.seats[1].engine->inject(EngineFault::bitflip_gradient, 2);
      world.each([&](Seat& seat) {
        for (uint64_t step = 1; step <= 2; ++step) REQUIRE(world.step(seat, step).ok());
      });
      if (!pinned)  // this vote shows that replicas differ
        for (const Status& status : step_with(world, 3, 99, [](int, Seat&) { return kUsual; }))
          CHECK(status.code() == Code::mismatch);
      // A reader of the initial values, which are the committed side, disturbs nothing.
      if (pinned) REQUIRE(world.states[0].pin(0).ok());
      for (Seat& seat : world.seats) seat.engine.reset();
      for (TrainState& state : world.states) {
        CHECK(state.step() == (pinned ? 2 : 0));
        CHECK(state.holds(0));
      }
    }
  }

  TEST_CASE("engine: ENGINE-6, a rank that dies during the copy leaves the step before complete") {
    const EngineOptions options = options_for(4);
    World world(options, 1, 2, fake_backends(false));
    world.initialize();
    world.train(1, 2);
    world.each([&](Seat& seat) { REQUIRE(world.step(seat, 3).ok()); });
    // What dead ranks leave: header and both sides as they are, with the target side half written.
    std::vector<TrainState> left;
    for (TrainState& state : world.states) {
      const Result<SharedMemory> memory = must(SharedMemory::open(state.name()));
      Result<TrainState> copy =
          must(TrainState::create(state.name() + "-left", 1, state.side(0).params.size()));
      const Result<SharedMemory> to = must(SharedMemory::open(copy->name()));
      std::memcpy(to->data(), memory->data(), to->bytes());
      const int other = copy->step_of(0) == 2 ? 1 : 0;
      CHECK(copy->step_of(other) == UINT64_MAX);
      std::ranges::fill(copy->side(other).exp_avg, 7.0f);
      left.push_back(copy.take());
    }
    World next(options, 1, 2, fake_backends(false), std::move(left));
    next.each([&](Seat& seat) { CHECK(*seat.engine->attach() == 2); });
    next.train(3, 4);
    CHECK(next.digest() == undisturbed(options, 1, 2, 4));
  }

  TEST_CASE("engine: a slow copy of the state is a wait that other ranks cannot end") {
    World world(options_for(2), 1, 1, fake_backends(false));
    world.initialize();
    Seat& seat = world.seats[0];
    int copies = 0;
    seat.fake().during_copies = [&, &engine = *seat.engine] {
      ++copies;
      CHECK(engine.waiting());
      CHECK(engine.activity().phase == StepPhase::copy);
    };
    REQUIRE(world.step(seat, 1).ok());
    REQUIRE(world.step(seat, 2).ok());  // its vote
    CHECK(copies == 1);
    REQUIRE(seat.engine->wait_for_commit().ok());
    CHECK(copies == 2);
    CHECK_FALSE(seat.engine->waiting());
    CHECK(seat.engine->activity().phase == StepPhase::none);
    REQUIRE(world.step(seat, 3).ok());
    seat.engine.reset();
    CHECK(copies == 3);
  }

  TEST_CASE("engine: ENGINE-8, a device's state in host memory has the same bits, at once") {
    struct Layout {
      int groups, shards, wave;
    };
    for (const DType precision : {DType::f32, DType::bf16})
      for (const auto& [groups, shards, wave] : {Layout{1, 1, 1},
                                                 {2, 1, 1},
                                                 {1, 2, 1},
                                                 {2, 2, 1},
                                                 {1, 1, 4},  // sums and parameters leave the device
                                                 {2, 1, 4},
                                                 {1, 2, 4}}) {
        INFO("precision = ", static_cast<int>(precision), ", groups = ", groups,
             ", shards = ", shards, ", wave = ", wave);
        EngineOptions options = options_for(4);
        options.precision = precision;
        options.wave = wave;
        if (wave > 1) options.shape.layers = 5;  // more than have windows
        options.shape.tie_embeddings = groups == 2;
        if (precision == DType::bf16) options.moments = DType::bf16, options.ema_decay = 0.5;
        const std::string expected = undisturbed(options, groups, shards, 3);
        options.state_in_host = true;
        World world(options, groups, shards, fake_backends(false));
        world.initialize();
        world.each([&](Seat& seat) {
          for (uint64_t step = 1; step <= 2; ++step) {
            REQUIRE(world.step(seat, step).ok());
            CHECK(seat.state->step() == step);
            CHECK(seat.state->holds(step - 1));
            CHECK(seat.state->committed_hash() == state_hash(seat.state->committed()));
          }
          CHECK(seat.fake().pinned_bytes == 0);
        });
        // A step that fails leaves the state, and what is downloaded of it does no harm.
        for (const Status& status :
             step_with(world, 3, 0, [](int, Seat&) { return Status(Code::io, "disk full"); }))
          CHECK(status.code() == Code::io);
        world.each([&](Seat& seat) {
          CHECK(seat.state->step() == 2);
          REQUIRE(world.step(seat, 3).ok());
          CHECK(seat.fake().mistakes == 0);
        });
        CHECK(world.digest() == expected);
      }
  }

  TEST_CASE("engine: ENGINE-8, a bit of the gradient in host memory that flips is found") {
    EngineOptions options = options_for(4);
    options.state_in_host = true;
    World world(options, 2, 1, fake_backends(false));
    world.initialize();
    world.seats[1].engine->inject(EngineFault::bitflip_gradient, 2);
    world.train(1, 2);
    for (const Status& status : step_with(world, 3, 99, [](int, Seat&) { return kUsual; }))
      CHECK(status.code() == Code::mismatch);
    CHECK(world.digest(0) == undisturbed(options_for(4), 2, 1, 2));
    CHECK(world.digest(1) != world.digest(0));
  }

  TEST_CASE("engine: compare_states() with device memory checks the complete copy in host memory") {
    World world(options_for(2), 2, 1, fake_backends(false));
    world.initialize();
    world.train(1, 1);
    world.states[1].committed().params[77] += 1;
    world.each([&](Seat& seat) {
      const Status status = seat.engine->compare_states();
      CHECK(status.code() == Code::mismatch);
    });
  }
}
