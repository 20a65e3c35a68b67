// Lifelines report a process's death, and nothing else.
#include "runtime/base/lifeline.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>

using namespace simplescale;

namespace {

/// Starts a child that holds the lifeline until it is killed; returns once the child holds it.
pid_t holder(const std::string& name) {
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = hold_lifeline(name).ok() ? 'y' : 'n';
    (void)!write(ready[1], &byte, 1);
    for (;;) pause();
  }
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  REQUIRE(byte == 'y');
  close(ready[0]);
  close(ready[1]);
  return child;
}

}  // namespace

TEST_CASE("lifeline: the death of the holder is reported once, a stopped holder is not") {
  const std::string name = "ss-test-life-" + std::to_string(getpid());
  const pid_t child = holder(name);
  LifelineWatcher watcher;
  std::promise<void> dead;
  REQUIRE(watcher.watch(name, [&] { dead.set_value(); }).ok());
  auto reported = dead.get_future();
  kill(child, SIGSTOP);
  CHECK(reported.wait_for(std::chrono::milliseconds(0)) == std::future_status::timeout);
  kill(child, SIGKILL);
  CHECK(reported.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  waitpid(child, nullptr, 0);
}

TEST_CASE("lifeline: a watcher that is destroyed before the process dies reports nothing") {
  const std::string name = "ss-test-life2-" + std::to_string(getpid());
  const pid_t child = holder(name);
  bool reported = false;
  {
    LifelineWatcher watcher;
    REQUIRE(watcher.watch(name, [&] { reported = true; }).ok());
  }
  CHECK(!reported);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_CASE("lifeline: a segment that is missing or not held cannot be watched") {
  LifelineWatcher watcher;
  CHECK(!watcher.watch("ss-test-life-none", [] {}).ok());
  auto empty = SharedMemory::create("ss-test-life-empty-" + std::to_string(getpid()), 4096);
  REQUIRE(empty.ok());
  CHECK(!watcher.watch(empty->name(), [] {}).ok());
}
