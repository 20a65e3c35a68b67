#include "runtime/run/notice.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace simplescale;
using nlohmann::json;

TEST_SUITE("run: notice") {
  const json well = {{"unwritten", ""}, {"checkpoint_failed", nullptr}};

  TEST_CASE("notice: nothing is said of records that are new, on any disk") {
    CHECK(notice_text("r", 0, "", well) == "");
    CHECK(notice_text("r", kStatusStaleS, "its disk is full (0 bytes are free)", well) == "");
    CHECK(notice_text("r", -1, "", json()) == "");
  }

  TEST_CASE("notice: records that are old are said to be, with the reason that is known") {
    const std::string quiet = notice_text("r", 23, "", well);
    CHECK(quiet.starts_with("the records in r are 23 s old"));
    CHECK(quiet.find("logs/supervisor-*.log") != std::string::npos);
    CHECK(notice_text("r", 23, "its disk is full (0 bytes are free)", well) ==
          "the records in r are 23 s old, and what is shown may be, too: its disk is full (0 bytes "
          "are free); no checkpoint is published until they are written");
    const json live = {{"unwritten", "metrics.jsonl: No space left on device"}};
    CHECK(notice_text("r", 0, "", live) ==
          "the run's newest records are not on the disk: the supervisor cannot write "
          "metrics.jsonl: No space left on device; no checkpoint is published until they are "
          "written");
  }

  TEST_CASE("notice: a checkpoint that could not be saved is named, alone or beside old records") {
    const json failed = {{"checkpoint_failed", {{"step", 40}, {"reason", "no space"}}}};
    CHECK(notice_text("r", 0, "", failed) == "step 40 could not be saved: no space");
    CHECK(notice_text("r", 9, "its disk is full", failed)
              .ends_with("until they are written. step 40 could not be saved: no space"));
  }
}
