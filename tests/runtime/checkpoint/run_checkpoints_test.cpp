// What a run's events say of its checkpoints.
#include "runtime/checkpoint/run_checkpoints.hpp"

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/runtime/checkpoint/fixture.hpp"

using namespace simplescale;

TEST_SUITE("checkpoint") {
  TEST_CASE("checkpoint: JOB-1, events that cannot be read do not say that none was saved") {
    test::TempFolder folder;
    const RunFolder run{folder.path()};
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
}
