// Tasks that several threads share.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "runtime/base/parallel.hpp"

using namespace simplescale;

TEST_SUITE_BEGIN("parallel");

TEST_CASE("parallel: each task is run once, on no more threads than there are tasks") {
  for (const size_t threads : {0, 1, 3, 8})
    for (const size_t tasks : {0, 1, 2, 1000}) {
      std::mutex mutex;
      std::multiset<size_t> ran;
      std::set<std::thread::id> ran_on;
      run_tasks(on_threads(threads), tasks, [&](size_t task) {
        const std::lock_guard lock(mutex);
        ran.insert(task);
        ran_on.insert(std::this_thread::get_id());
      });
      std::multiset<size_t> all;
      for (size_t task = 0; task < tasks; ++task) all.insert(task);
      CHECK(ran == all);
      CHECK(ran_on.size() <= std::min(std::max<size_t>(threads, 1), tasks));
    }
}

TEST_CASE("parallel: without threads, tasks run in order, and none after an error") {
  std::vector<size_t> ran;
  const Status status = try_tasks({}, 9, [&](size_t task) {
    ran.push_back(task);
    return task == 3 ? Status(Code::io, "broken") : Status();
  });
  CHECK(status.message() == "broken");
  CHECK(ran == std::vector<size_t>{0, 1, 2, 3});
}

TEST_CASE("parallel: the error of the first task that fails is returned, whichever fails earlier") {
  const auto body = [](size_t task) {
    return task % 5 == 4 ? Status(Code::io, "task " + std::to_string(task)) : Status();
  };
  const Parallel backwards = [](size_t tasks, const std::function<void(size_t)>& task) {
    while (tasks-- > 0) task(tasks);
  };
  for (const Parallel& parallel : {Parallel(), backwards, on_threads(4)})
    CHECK(try_tasks(parallel, 100, body).message() == "task 4");
  CHECK(try_tasks(on_threads(4), 4, body).ok());
}

TEST_CASE("parallel: saves beside training leave most cores to it") {
  CHECK(all_cores() >= 1);
  CHECK(cores_beside_training() >= 1);
  CHECK(cores_beside_training() <= std::max<size_t>(1, all_cores() / 4));
}

TEST_CASE("parallel: each task runs once, as many at a time as there are threads") {
  for (const size_t threads : {1, 3}) {
    // Each task waits for as many others as there are threads: one thread alone would not end.
    std::barrier together(static_cast<ptrdiff_t>(threads));
    std::vector<std::atomic<int>> runs(12);
    on_threads(threads)(runs.size(), [&](size_t task) {
      ++runs[task];
      together.arrive_and_wait();
    });
    for (const auto& run : runs) CHECK(run == 1);
  }
  on_threads(4)(0, [](size_t) { FAIL("there is no task"); });
  const std::thread::id here = std::this_thread::get_id();
  on_threads(4)(1, [&](size_t) { CHECK(std::this_thread::get_id() == here); });
}

TEST_CASE("parallel: pieces cover everything once, also without threads") {
  for (const Parallel& parallel : {Parallel(), on_threads(3)})
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

TEST_SUITE_END();
