// The checks of one machine: they pass on a healthy one, and report what is wrong.
#include "runtime/diagnostics/diagnose.hpp"

#include <doctest/doctest.h>

#include <filesystem>

using namespace simplescale;

TEST_CASE("diagnose: all checks pass on this machine") {
  const auto results = check_machine(std::filesystem::temp_directory_path().string());
  CHECK(results.size() == 4);
  CHECK_MESSAGE(all_ok(results), table(results));
  CHECK(complaints(results).empty());
  for (const auto& r : results)
    if (r.unit != "ms") CHECK(r.value > 0);
}

TEST_CASE("diagnose: a folder that cannot be written fails the disk check by name") {
  const auto result = check_disk("/nonexistent");
  CHECK(!result.ok);
  CHECK(result.detail.find("/nonexistent") != std::string::npos);
}
