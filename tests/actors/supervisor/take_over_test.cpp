// What a supervisor that takes over finds on the disk.
#include <doctest/doctest.h>

#include <filesystem>
#include <future>

#include "actors/supervisor/take_over.hpp"
#include "runtime/run/run_state.hpp"
#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"

using namespace simplescale;
using supervisor::find_left_checkpoints;

namespace {

void save_step(const std::string& folder, uint64_t step, uint64_t generation) {
  const ModelShape shape = test::tiny_shape();
  CheckpointInfo info = test::info_of(shape, step);
  set_generation(info, generation);
  REQUIRE(test::save(folder, test::random_state(shape, 1), info, 1).ok());
}

/// The state of a supervisor that knows of the checkpoint of step 10.
job::State known() {
  job::State state = job::make_state({1, 1, 1, 1, 1}, {"n0"});
  state.had_checkpoint = state.has_checkpoint = true;
  state.checkpoint_step = 10;
  state.generation = 3;
  state.rollbacks = {{1, 0}, {3, 16}};  // generation 3 began with step 15
  return state;
}

struct TakenOver {
  std::optional<RunEnd> end;  // in control/end.json
  job::State job;
};
/// A supervisor takes over from `left` and finds these checkpoints. Its decisions wait: the term
/// files are not there.
TakenOver take_over_from(const SupervisorState& left,
                         const supervisor::LeftCheckpoints& found = {10, {4}}) {
  caf::actor_system_config config;
  caf::actor_system system{config};
  test::MemoryFolder folder;
  std::filesystem::create_directories(folder / "control");
  JobOptions options;
  options.run = {folder.path};
  options.node = "n0";
  options.journal = std::make_shared<Journal>(folder.path);
  options.checkpoint_step = found.newest;
  options.older_checkpoints = found.older;
  options.had_checkpoint = found.had;
  options.instructions = InstructionSet::avx512;
  options.leadership.watch =
      std::make_shared<TermWatch>(TermFiles({folder / "unmounted"}, "a"), nullptr);
  std::promise<job::State> taken;
  system.spawn([&](supervisor::Self* self) {
    self->state.options = options;
    supervisor::take_over(self, left);
    taken.set_value(self->state.job);
  });
  job::State job = taken.get_future().get();
  REQUIRE(options.journal->flush());
  return {end_of(options.run), std::move(job)};
}

}  // namespace

TEST_SUITE("take over") {
  TEST_CASE("take over: a checkpoint that was published but not recorded is found") {
    test::MemoryFolder folder;
    save_step(folder.path, 10, 1);
    save_step(folder.path, 15, 2);
    const auto left = must(find_left_checkpoints(folder.path, known(), system_files()));
    CHECK(left->newest == 15);
    CHECK(left->older == std::vector<uint64_t>{10});
  }

  TEST_CASE("take over: JOB-3, a checkpoint of a step that was undone is set aside") {
    test::MemoryFolder folder;
    save_step(folder.path, 10, 1);
    save_step(folder.path, 20, 2);
    const auto left = must(find_left_checkpoints(folder.path, known(), system_files()));
    CHECK(left->newest == 10);
    CHECK(list_folder(folder.path) ==
          std::vector<std::string>{"latest", "step-00000010", "step-00000020.undone"});
    save_step(folder.path, 20, 3);
    CHECK(find_left_checkpoints(folder.path, known(), system_files())->newest == 20);
  }

  TEST_CASE("take over: the event names the steps that were undone before") {
    using supervisor::taken_over;
    CHECK(taken_over({}, 0, "term 2") == "it leads (term 2)");
    CHECK(taken_over(7, 7, "term 2") == "it leads after step 7 (term 2)");
    CHECK(taken_over(9, 7, "term 2") == "it leads after step 9 (term 2)");
    CHECK(taken_over(5, 7, "term 2") ==
          "it leads after step 5 (term 2); the steps after 5 up to 7 in the records do not count");
    CHECK(taken_over({}, 1, "term 2") ==
          "it leads (term 2); the steps up to 1 in the records do not count");
  }

  TEST_CASE("take over: BACKEND-3, the predecessor's instructions count, else the recorded ones") {
    SupervisorState left;
    left.job = known();
    CHECK(take_over_from(left).job.instructions == InstructionSet::avx512);
    left.job.instructions = InstructionSet::avx2;
    CHECK(take_over_from(left).job.instructions == InstructionSet::avx2);
  }

  TEST_CASE("take over: LEAD-1, only the end that the predecessor decided is written at once") {
    SupervisorState left;
    left.job = job::make_state({1, 1, 1, 1, 1}, {"n0"});
    left.job.max_steps = left.job.committed_step = 10;
    left.job.generation = 1;
    left.job.phase = job::Phase::training;
    left.job.layout.domains = {{"n0"}};
    left.job.trainers["n0.0"].state = job::TrainerState::finished;
    left.job.trainers["n0.0"].step = 10;
    CHECK(!take_over_from(left).end);  // its own decision waits for the term files
    left.job.phase = job::Phase::failed;
    left.end_exit = exit_code(Code::gave_up);
    left.end_reason = "a reason";
    const auto end = take_over_from(left).end;
    REQUIRE(end);
    CHECK(end->code == exit_code(Code::gave_up));
    CHECK(end->reason == "a reason");
  }

  TEST_CASE("take over: checkpoints that are gone are forgotten, since the state may be old") {
    SupervisorState left;
    left.job = known();
    left.job.older_checkpoints = {2, 4, 6};
    for (const uint64_t newest : {10, 20}) {
      left.job.checkpoint_step = newest;
      const job::State job = take_over_from(left).job;
      CHECK(job.checkpoint_step == 10);
      CHECK(job.older_checkpoints == std::vector<uint64_t>{4});
    }
    const job::State job = take_over_from(left, {.had = true}).job;
    CHECK(!job.has_checkpoint);
    CHECK(job.older_checkpoints.empty());
  }

  TEST_CASE("take over: JOB-1, a state from before the first checkpoint does not hide that one") {
    SupervisorState left;
    left.job = known();
    left.job.had_checkpoint = left.job.has_checkpoint = false;
    CHECK(take_over_from(left, {.had = true}).job.had_checkpoint);
  }

  TEST_CASE("take over: JOB-1, checkpoints that are damaged or set aside were there") {
    test::MemoryFolder folder;
    for (const char* name : {"damaged/step-00000010", "aside/step-00000020.undone"}) {
      const auto path = std::filesystem::path(folder / name);
      std::filesystem::create_directories(path);
      const auto left = must(find_left_checkpoints(path.parent_path(), known(), system_files()));
      CHECK(!left->newest);
      CHECK(left->had);
    }
  }

  TEST_CASE("take over: a folder that is not there, or empty, changes nothing") {
    test::MemoryFolder folder;
    std::filesystem::create_directories(folder / "mountpoint");
    for (const char* name : {"unmounted", "mountpoint"}) {
      const auto left = must(find_left_checkpoints(folder / name, known(), system_files()));
      CHECK(!left->newest);
      CHECK(!left->had);
    }
    SupervisorState left;
    left.job = known();
    CHECK(take_over_from(left, {}).job.checkpoint_step == 10);
  }
}
