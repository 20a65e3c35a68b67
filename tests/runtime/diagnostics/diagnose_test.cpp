// The checks of one machine: they pass on a healthy one, and report what is wrong.
#include "runtime/diagnostics/diagnose.hpp"

#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

using namespace simplescale;

TEST_CASE("diagnose: all checks pass on this machine") {
  const auto results = check_machine(std::filesystem::temp_directory_path().string());
  CHECK(results.size() == 4);
  CHECK_MESSAGE(all_ok(results), table(results));
  CHECK(complaints(results).empty());
  for (const auto& r : results)
    if (r.unit != "ms") CHECK(r.value > 0);
}

TEST_CASE("diagnose: the disk check follows no link that another user of the folder has made") {
  namespace fs = std::filesystem;
  char name[] = "/tmp/simplescale-disk-XXXXXX";
  const std::string folder = mkdtemp(name), mine = folder + "/mine";
  std::ofstream(mine) << "mine";
  fs::create_symlink(mine, folder + "/.check-" + std::to_string(getpid()));
  CHECK(check_disk(folder).ok);
  CHECK(fs::file_size(mine) == 4);
  fs::remove_all(folder);
}

TEST_CASE("diagnose: a folder that cannot be written fails the disk check by name") {
  const auto result = check_disk("/nonexistent");
  CHECK(!result.ok);
  CHECK(result.detail.find("/nonexistent") != std::string::npos);
}
