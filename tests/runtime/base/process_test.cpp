#include "runtime/base/process.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

using namespace simplescale;

TEST_SUITE("process") {
  TEST_CASE("process: running, stopped, ended and unknown processes are told apart") {
    auto child = spawn({.argv = {"/bin/sleep", "60"}});
    REQUIRE(child.ok());
    CHECK(process_state(*child) == ProcessState::runs);
    kill(*child, SIGSTOP);
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(*child), &info, WSTOPPED | WNOWAIT);
    CHECK(process_state(*child) == ProcessState::stopped);
    kill(*child, SIGKILL);
    waitid(P_PID, static_cast<id_t>(*child), &info, WEXITED | WNOWAIT);
    CHECK(process_state(*child) == ProcessState::gone);  // a zombie
    waitpid(*child, nullptr, 0);
    CHECK(process_state(*child) == ProcessState::gone);
    CHECK_FALSE(set_nice(*child, 0).ok());
  }

  TEST_CASE(
      "process: the nice value of a child is raised at its start and lowered where permitted") {
    const int usual = getpriority(PRIO_PROCESS, 0);
    auto child = spawn({.argv = {"/bin/sleep", "60"}, .nice = 5});
    REQUIRE(child.ok());
    CHECK(getpriority(PRIO_PROCESS, static_cast<id_t>(*child)) == usual + 5);
    CHECK(set_nice(*child, usual).ok() == may_lower_nice());
    if (may_lower_nice()) CHECK(getpriority(PRIO_PROCESS, static_cast<id_t>(*child)) == usual);
    kill(*child, SIGKILL);
    waitpid(*child, nullptr, 0);
  }

  TEST_CASE("process: the output of a child follows no link") {
    char name[] = "/tmp/simplescale-output-XXXXXX";
    const std::string folder = mkdtemp(name);
    std::filesystem::create_symlink(folder + "/profile", folder + "/n0.log");
    CHECK_FALSE(spawn({.argv = {"/bin/true"}, .output = folder + "/n0.log"}).ok());
    CHECK_FALSE(std::filesystem::exists(folder + "/profile"));
    std::filesystem::remove_all(folder);
  }
}
