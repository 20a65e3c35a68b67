// A run folder that is deleted or moved is detected; the watch ends without waiting.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "runtime/base/process.hpp"
#include "runtime/run/folder_watch.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {
struct Run : test::TempFolder {
  Run() { write("control/instance", "x\n"); }
  const RunFolder run{path};
};
}  // namespace

TEST_SUITE("folder watch") {
  TEST_CASE("folder watch: a folder that was moved is reported, a folder that exists is not") {
    Run one, two;
    CHECK_FALSE(folder_is_gone(one.run));
    std::promise<void> gone;
    FolderWatch watch(
        one.run, [&] { gone.set_value(); }, 1ms, 3);
    FolderWatch other(
        two.run, [] { FAIL("it is there"); }, 1ms, 3);
    fs::rename(one.run.path, one.run.path + "-elsewhere");
    gone.get_future().wait();
    CHECK(folder_is_gone(one.run));
    CHECK_FALSE(folder_is_gone(two.run));
    fs::remove_all(one.run.path + "-elsewhere");
  }

  TEST_CASE(
      "folder watch: the destructor returns at once, and the callback is not called afterwards") {
    Run run;
    bool called = false;
    {
      FolderWatch watch(
          run.run, [&] { called = true; }, 1h, 1);
    }
    fs::remove_all(run.run.path);
    CHECK_FALSE(called);
  }
}
