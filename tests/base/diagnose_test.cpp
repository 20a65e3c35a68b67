// The checks of a machine: they pass on a sound one, say what is wrong, and compare with others.
#include "runtime/base/diagnose.hpp"

#include <doctest/doctest.h>

#include <filesystem>

using namespace simplescale;

TEST_CASE("diagnose: this machine is fit") {
  const auto results = check_machine(std::filesystem::temp_directory_path().string());
  CHECK(results.size() == 4);
  CHECK_MESSAGE(all_ok(results), table(results));
  CHECK(complaints(results).empty());
  for (const auto& r : results)
    if (r.unit != "ms") CHECK(r.value > 0);
}

TEST_CASE("diagnose: a folder that cannot be written is named") {
  const auto result = check_disk("/nonexistent");
  CHECK(!result.ok);
  CHECK(result.detail.find("/nonexistent") != std::string::npos);
}

TEST_CASE("diagnose: slow is several times worse than the median of the others") {
  std::vector<CheckResult> mine = {{"memory", true, 2, "GB/s", ""},
                                   {"disk", true, 90, "MB/s", ""},
                                   {"clock", true, 50, "ms", ""},
                                   {"link", true, 0.09, "GB/s", ""},
                                   {"link_rtt", true, 90, "us", ""}};
  const nlohmann::json other = to_json({{"memory", true, 10, "GB/s", ""},
                                        {"disk", true, 100, "MB/s", ""},
                                        {"clock", true, 1, "ms", ""},
                                        {"link", true, 1, "GB/s", ""},
                                        {"link_rtt", true, 10, "us", ""}});
  compare(mine, {other});
  CHECK(all_ok(mine));  // one other is no fleet
  compare(mine, {other, other, nlohmann::json("nonsense")});
  CHECK(!mine[0].ok);
  CHECK(mine[1].ok);
  CHECK(mine[2].ok);
  CHECK(!mine[3].ok);
  CHECK(mine[4].ok);
  CHECK(complaints(mine).find("times worse than the median") != std::string::npos);
}
