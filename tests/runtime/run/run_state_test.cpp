// What the current start has written into control/ counts, and of its supervisors' ends the newest.
#include "runtime/run/run_state.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/run/term.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

TEST_SUITE("run state") {
  TEST_CASE("run state: LEAD-1, the end that a replaced supervisor writes late ends no run") {
    // The launcher took it for the end of the living run, and started no killed agent again.
    const test::TempFolder folder;
    const RunFolder run{folder.path};
    std::filesystem::create_directories(run.control());
    const TermFiles files(run, "x");
    const auto write = [&](uint64_t term) {
      REQUIRE(write_file_atomic(run.end(), end_text({3, "gave up", "x", term})).ok());
    };
    REQUIRE(*files.claim({1, "n0", 1, "a", 0}));
    write(1);
    REQUIRE(end_of(run, "x"));
    CHECK(end_of(run, "x")->code == 3);
    CHECK(end_of(run, "x")->reason == "gave up");
    CHECK(end_of(run, "x")->term == 1);
    CHECK(!end_of(run, "y"));
    REQUIRE(write_file_atomic(run.end(), R"({"instance":"x","epoch":1,"exit":3})").ok());
    CHECK(end_of(run, "x")->term == 1);  // as older versions wrote it
    REQUIRE(*files.claim({2, "n1", 2, "b", 0}));
    CHECK(!end_of(run, "x"));
    CHECK(!end_of(run));
    write(2);
    CHECK(end_of(run, "x"));
  }

  TEST_CASE("run state: what another start has written for others to read does not count") {
    const test::TempFolder folder;
    const RunFolder run{folder.path};
    std::filesystem::create_directories(run.control());
    CHECK(status_of(run, "x").is_null());
    CHECK(page_url_of(run).empty());
    const auto write = [](const std::string& path, const std::string& text) {
      REQUIRE(write_file_atomic(path, text).ok());
    };
    write(run.instance(), "x\n");
    write(run.status(), R"({"instance": "x", "state": "training", "nodes": []})");
    write(run.http(), R"({"instance": "x", "url": "http://a"})");
    CHECK(status_of(run, "x")["state"] == "training");
    CHECK(page_url_of(run) == "http://a");
    CHECK(status_of(run, "y").is_null());
    write(run.instance(), "y\n");
    CHECK(page_url_of(run).empty());
    for (const char* damaged : {"", "7", "[]", R"({"state": "training"})", R"({"instance": 7})"}) {
      write(run.status(), damaged);
      CHECK(status_of(run, "x").is_null());
    }
  }
}
