// What a run's events say of its checkpoints.
#include "runtime/checkpoint/run_checkpoints.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"

using namespace simplescale;

TEST_SUITE("checkpoint") {
  TEST_CASE("checkpoint: JOB-1, events that cannot be read do not say that none was saved") {
    test::MemoryFolder folder;
    const RunFolder run{folder.path};
    CHECK(!*was_saved(run));
    CHECK(check_never_saved(run, folder / "checkpoints").ok());
    test::spew(run.events(), "{\"kind\":\"started\"}\n");
    CHECK(!*was_saved(run));
    test::spew(run.events(), "{\"kind\":\"started\"}\n{\"kind\":\"checkpoint_saved\"}\n");
    CHECK(*was_saved(run));
    CHECK(check_never_saved(run, folder / "checkpoints").code() == Code::io);
    std::filesystem::remove(run.events());
    std::filesystem::create_symlink(run.events(), run.events());
    CHECK(was_saved(run).status().code() == Code::io);
    CHECK(check_never_saved(run, folder / "checkpoints").code() == Code::io);
  }

  TEST_CASE("CHECKPOINT-7: checkpoints of another run are not used, replaced or removed") {
    test::MemoryFolder folder;
    const RunFolder run{folder / "run"};
    const std::string kept = folder / "kept";
    std::filesystem::create_directories(run.control());
    std::filesystem::create_directories(kept);
    const ModelShape shape = test::tiny_shape();
    const auto save = [&](uint64_t step, const std::string& by) {
      CheckpointInfo info = test::info_of(shape, step);
      info.resume = by.empty() ? "{}" : with_run(R"({"generation":3})", by);
      return test::save(kept, test::random_state(shape, static_cast<uint32_t>(step)), info, 1);
    };
    REQUIRE(save(10, "").ok());  // of an earlier version
    REQUIRE(save(20, *run_id(run)).ok());
    REQUIRE(save(30, "another").ok());
    CHECK(find_newest_valid(kept)->checkpoint.info().step == 30);  // the folder has no owner yet
    REQUIRE(claim_checkpoints(run, kept).ok());
    const auto found = must(find_newest_valid(kept));
    CHECK(found->checkpoint.info().step == 20);
    CHECK(generation_of(found->checkpoint.info()) == 3);
    REQUIRE(found->warnings.size() == 1);
    CHECK(found->warnings[0].find("step-00000030: another run made") != std::string::npos);
    CHECK(found->older == std::vector<uint64_t>{10});
    CHECK(checkpoint_steps(kept) == std::vector<uint64_t>{10, 20});
    REQUIRE(revoke_publishers(kept).ok());
    CHECK(std::filesystem::read_symlink(kept + "/latest") == "step-00000020");
    REQUIRE(set_aside_undone(kept, 20, [](uint64_t, uint64_t) { return true; }).ok());
    const std::string manifest = test::contents(kept + "/step-00000030/manifest.json");
    CHECK(save(30, *run_id(run)).status().code() == Code::bad_data);
    CHECK(test::contents(kept + "/step-00000030/manifest.json") == manifest);
    REQUIRE(save(40, *run_id(run)).ok());
    REQUIRE(prune_checkpoints(kept, {.keep = 2}).ok());
    CHECK(checkpoint_steps(kept) == std::vector<uint64_t>{20, 40});
    CHECK(test::contents(kept + "/step-00000030/manifest.json") == manifest);
    std::filesystem::remove_all(kept + "/step-00000020");
    std::filesystem::remove_all(kept + "/step-00000040");
    CHECK(find_newest_valid(kept).status().code() == Code::bad_data);
    REQUIRE(continue_checkpoints_of(kept, "another").ok());
    CHECK(find_newest_valid(kept)->checkpoint.info().step == 30);
    CHECK(claim_checkpoints(run, kept).ok());
  }

  TEST_CASE(
      "checkpoint: a run that lost its id in control/ keeps the one that its checkpoints have") {
    test::MemoryFolder folder;
    const RunFolder run{folder.path};
    std::filesystem::create_directories(run.control());
    std::filesystem::create_directories(folder / "checkpoints");
    REQUIRE(claim_checkpoints(run, folder / "checkpoints").ok());
    const std::string id = *run_id(run);
    std::filesystem::remove(run.control() + "/id");
    CHECK(check_checkpoints_owner(run, folder / "checkpoints").code() == Code::bad_config);
    test::spew(run.config(), "");
    CHECK(claim_checkpoints(run, folder / "checkpoints").ok());
    CHECK(*run_id(run) == id);
  }
}
