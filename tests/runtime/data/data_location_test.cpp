// Where the samples of a configuration lie.
#include "runtime/data/data_location.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace simplescale;

TEST_SUITE("data location") {
  TEST_CASE("data location: samples are named by the file and the byte where they begin") {
    const std::string folder = "/tmp/ss-data-location-test-" + std::to_string(getpid());
    std::filesystem::create_directories(folder);
    std::vector<std::string> paths;
    for (const char* name : {"/a.bin", "/b.bin"}) {
      paths.push_back(folder + name);
      const std::vector<uint16_t> tokens(25, 1);
      std::ofstream(paths.back(), std::ios::binary)
          .write(reinterpret_cast<const char*>(tokens.data()), 50);
    }
    const auto tokens = TokenSource::open(paths, "nanogpt", 10);
    REQUIRE(tokens.ok());  // 50 tokens: four samples of 10 + 1
    const SampleOrder in_order(4, 1, false);
    const auto text = [&](const std::vector<uint64_t>& runs, uint64_t most) {
      return places_text(*tokens, in_order, 10, runs, most);
    };
    CHECK(text({}, 4) == "");
    CHECK(text({0, 1}, 4) == "sample 0: " + paths[0] + ", byte 0");
    CHECK(text({2, 2}, 4) == "sample 2: " + paths[0] + ", byte 40; sample 3: " + paths[1] +
                                 ", byte 10");  // token 30 is the sixth one of the second file
    CHECK(text({5, 1, 0, 3}, 2) == "sample 5: " + paths[0] + ", byte 20; sample 0: " + paths[0] +
                                       ", byte 0; and 2 more");  // 5: in the second epoch
    const SampleOrder shuffled(4, 1, true);
    CHECK(places_text(*tokens, shuffled, 10, {7, 1}) ==
          "sample 7: " + tokens->place_of(shuffled.position(7), 10));
    std::filesystem::remove_all(folder);
  }
}
