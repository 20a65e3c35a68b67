#include "runtime/base/parallel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

using namespace simplescale;

TEST_SUITE("parallel") {
  TEST_CASE("parallel: each task runs once, as many at a time as there are threads") {
    for (const int threads : {1, 3}) {
      // Each task waits for as many others as there are threads: one thread alone would not end.
      std::barrier together(threads);
      std::vector<std::atomic<int>> runs(12);
      parallel_on(threads)(runs.size(), [&](size_t task) {
        ++runs[task];
        together.arrive_and_wait();
      });
      for (const auto& run : runs) CHECK(run == 1);
    }
    parallel_on(4)(0, [](size_t) { FAIL("there is no task"); });
    const std::thread::id here = std::this_thread::get_id();
    parallel_on(4)(1, [&](size_t) { CHECK(std::this_thread::get_id() == here); });
  }

  TEST_CASE("parallel: pieces cover everything once, also without threads") {
    for (const Parallel& parallel : {Parallel(), parallel_on(3)})
      for (const size_t total : {0, 1, 10, 11, 19, 20}) {
        CAPTURE(total);
        std::vector<std::atomic<int>> seen(total);
        for_pieces(parallel, total, 10, [&](size_t first, size_t count) {
          CHECK((count > 0 && count <= 10));
          for (size_t i = first; i < first + count; ++i) ++seen[i];
        });
        for (const auto& times : seen) CHECK(times == 1);
      }
  }
}
