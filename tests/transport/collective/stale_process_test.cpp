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
#include "tests/temp_folder.hpp"

namespace simplescale::testing {
namespace {

const std::string kOtherKey(32, 'x');

std::vector<uint8_t> read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Two ranks of a generation, which go on until FOLDER/end exists.
struct Ranks {
  test::TempFolder run;
  std::vector<std::unique_ptr<Process>> all;
  std::string want[2];  // their first lines

  Ranks() {
    for (const std::string rank : {"0", "1"})
      all.push_back(std::make_unique<Process>(std::vector<std::string>{
          run.path, rank, "2", "7", "steady", "20000", "host" + rank, kKey}));
    for (size_t i = 0; i < 2; ++i) want[i] = all[i]->line();
  }
  /// At least every second process has a smaller id than rank 0.
  bool easy_to_find() const { return stream_id(read(run.path + "/7-0"))[0] >= 0x80; }
};

/// What a process prints that joins with rank 0 of the run as rank 1, with an address of its own.
/// Of two processes the one with the smaller id connects: here, the stale one.
std::string last_words(const std::string& run, const std::string& generation,
                       const std::string& key) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    test::TempFolder own;
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
    auto ranks = std::make_unique<Ranks>();
    while (!ranks->easy_to_find()) ranks = std::make_unique<Ranks>();
    const std::string& run = ranks->run.path;

    // Another run.
    std::string said = last_words(run, "7", kOtherKey);
    CHECK(said ==
          "deadline: world@7: ranks 0 did not join within 5000 ms; rank 0 is lost (closed before a "
          "proof of the run's key: it is of another run, or it has ended)");
    // The key and the number of the generation, but not what its members drew; an old generation.
    for (const std::string generation : {"7", "6"}) {
      said = last_words(run, generation, kKey);
      CHECK(said == "deadline: world@" + generation +
                        ": ranks 0 did not join within 5000 ms; rank 0 is connected, but has not "
                        "joined this generation");
    }

    std::ofstream(run + "/end").flush();
    for (size_t i = 0; i < 2; ++i) {
      CHECK(ranks->want[i].starts_with("ok "));
      CHECK(ranks->all[i]->line() == ranks->want[i]);  // the last hash, or one that differs
      CHECK(ranks->all[i]->line().empty());
    }
  }
}

}  // namespace simplescale::testing
