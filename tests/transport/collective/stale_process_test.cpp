// Processes of another run, and old processes of this run, that take running ranks for their own:
// they disturb nothing, get no answer, and say why.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "rank_process.hpp"
#include "rogue_member.hpp"

namespace simplescale::testing {
namespace {

const std::string kOtherKey(32, 'x');

std::vector<uint8_t> read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What a process prints that joins with rank 0 of the run as rank 1, with an address of its own.
/// Of two processes the one with the smaller id connects: here, the stale one.
std::string last_words(const std::string& run, const std::string& generation,
                       const std::string& key) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    Folder own;
    Process stale({own.path, "1", "2", generation, "all", "5000", "stale", key});
    const std::filesystem::path folder = own.path, mine = folder / (generation + "-1");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!std::filesystem::exists(mine)) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      std::this_thread::yield();
    }
    const std::vector<uint8_t> rank_0 = read(run + "/7-0");
    if (!(stream_id(read(mine)) < stream_id(rank_0))) continue;
    const std::filesystem::path arriving = folder / "arriving";
    std::filesystem::copy(run + "/7-0", arriving);
    std::filesystem::rename(arriving, folder / (generation + "-0"));
    return stale.line();
  }
  return "no process had a smaller id";
}

}  // namespace

TEST_SUITE("collective faults") {
  TEST_CASE("collective: ranks go on while stale processes and those of another run call them") {
    Folder run;
    std::vector<std::unique_ptr<Process>> ranks;
    for (const std::string rank : {"0", "1"})
      ranks.push_back(std::make_unique<Process>(std::vector<std::string>{
          run.path, rank, "2", "7", "steady", "20000", "host" + rank, kKey}));
    std::string want[2];
    for (size_t i = 0; i < 2; ++i) want[i] = ranks[i]->line();

    // Another run.
    std::string said = last_words(run.path, "7", kOtherKey);
    CHECK(said ==
          "deadline: world@7: ranks 0 did not join within 5000 ms; rank 0 is lost (closed before a "
          "proof of the run's key: it is of another run, or it has ended)");
    // The key and the number of the generation, but not what its members drew; an old generation.
    for (const std::string generation : {"7", "6"}) {
      said = last_words(run.path, generation, kKey);
      CHECK(said == "deadline: world@" + generation +
                        ": ranks 0 did not join within 5000 ms; rank 0 is connected, but has not "
                        "joined this generation");
    }

    std::ofstream(run.path + "/end").flush();
    for (size_t i = 0; i < 2; ++i) {
      CHECK(want[i].starts_with("ok "));
      int after = 0;
      for (std::string line; !(line = ranks[i]->line()).empty(); ++after) CHECK(line == want[i]);
      CHECK(after > 0);
    }
  }
}

}  // namespace simplescale::testing
