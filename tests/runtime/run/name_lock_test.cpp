#include "runtime/run/name_lock.hpp"

#include <doctest/doctest.h>

#include <optional>

#include "runtime/run/run_key.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using simplescale::test::TempFolder;

TEST_SUITE("name lock") {
  TEST_CASE("LOCK-2: at most one living command has the name of a node") {
    const TempFolder folder;
    const RunFolder run{folder.path + "/run"};
    must(make_control(run));
    std::optional<NameLock> first = must(NameLock::take(run, "a", 0)).take();
    const auto twice = NameLock::take(run, "a", 0);
    CHECK(twice.status().code() == Code::unavailable);
    CHECK(twice.status().message().find("runs n0") != std::string::npos);
    CHECK(NameLock::take(run, "b", 0).ok());  // another start
    first.reset();
    CHECK(NameLock::take(run, "a", 0).ok());
  }

  TEST_CASE("LOCK-2: a host that joins takes a name that no living command has") {
    const TempFolder folder;
    const RunFolder run{folder.path + "/run"};
    must(make_control(run));
    std::optional<NameLock> of_run = must(NameLock::take(run, "a", 1)).take();
    const NameLock third = must(NameLock::take_free(run, "a", 2, 4)).take();
    CHECK(third.node() == 2);
    const NameLock fourth = must(NameLock::take_free(run, "a", 2, 4)).take();
    CHECK(fourth.node() == 3);
    // Then those of hosts that are gone.
    const NameLock lost = must(NameLock::take_free(run, "a", 2, 4)).take();
    CHECK(lost.node() == 0);
    CHECK(NameLock::take_free(run, "a", 2, 4).status().code() == Code::unavailable);
    of_run.reset();
    CHECK(must(NameLock::take_free(run, "a", 2, 4))->node() == 1);
  }
}
