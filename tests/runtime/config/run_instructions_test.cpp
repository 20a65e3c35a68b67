#include "runtime/config/run_instructions.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

TEST_CASE(
    "run instructions: BACKEND-3: a start is held to the run's own, else to the configuration's") {
  test::TempFolder folder;
  const RunFolder run{folder.path};
  std::filesystem::create_directories(run.control());
  Config config;
  CHECK(*must(required_instructions(run, config)) == InstructionSet::automatic);
  config.cluster.instructions = InstructionSet::avx512;
  CHECK(*must(required_instructions(run, config)) == InstructionSet::avx512);
  std::ofstream(run.instructions()) << "avx2\n";
  CHECK(*must(required_instructions(run, config)) == InstructionSet::avx2);
  CHECK(*must(run_instructions(run)) == InstructionSet::avx2);
  config.cluster.device = DeviceKind::cuda;
  CHECK(*must(required_instructions(run, config)) == InstructionSet::automatic);
  for (const char* damaged : {"", "auto\n", "avx3"}) {
    std::ofstream(run.instructions()) << damaged;
    CHECK(run_instructions(run).status().code() == Code::bad_data);
  }
}
