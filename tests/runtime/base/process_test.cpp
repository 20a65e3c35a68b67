// Child processes: their start, environment, output and end; lifelines, which report only a death.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "runtime/base/child_environment.hpp"
#include "runtime/base/lifeline.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/run_command.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

TEST_SUITE("process") {
  TEST_CASE("process: running, stopped, ended and unknown processes are told apart") {
    auto child = must(spawn({.argv = {"/bin/sleep", "60"}}));
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
    auto child = must(spawn({.argv = {"/bin/sleep", "60"}, .nice = 5}));
    CHECK(getpriority(PRIO_PROCESS, static_cast<id_t>(*child)) == usual + 5);
    CHECK(set_nice(*child, usual).ok() == may_lower_nice());
    if (may_lower_nice()) CHECK(getpriority(PRIO_PROCESS, static_cast<id_t>(*child)) == usual);
    kill(*child, SIGKILL);
    waitpid(*child, nullptr, 0);
  }

  TEST_CASE("process: the output of a child follows no link") {
    const test::TempFolder folder;
    std::filesystem::create_symlink(folder / "profile", folder / "n0.log");
    CHECK_FALSE(spawn({.argv = {"/bin/true"}, .output = folder / "n0.log"}).ok());
    CHECK_FALSE(std::filesystem::exists(folder / "profile"));
  }
}

TEST_SUITE("base") {
  TEST_CASE("run_command: returns output and exit code, and passes arguments as they are") {
    const auto print = must(run_command({"printf", "%s|", "$(reboot)", "a b", "'"}, 20'000));
    CHECK(print->output == "$(reboot)|a b|'|");
    CHECK(print->code == 0);
    CHECK(run_command({"false"}, 20'000)->code == 1);
    CHECK(run_command({"bash", "-c", "kill -9 $$"}, 20'000)->code == 128 + 9);
    CHECK(run_command({"no-such-program-of-ours"}, 20'000).status().code() == Code::not_found);
    CHECK(run_command({"cat"}, 20'000)->output.empty());  // stdin is empty
  }

  TEST_CASE("run_command: stderr is part of the output unless it is left out") {
    const std::vector<std::string> both = {"bash", "-c", "echo out; echo error >&2"};
    CHECK(run_command(both, 20'000)->output == "out\nerror\n");
    CHECK(run_command(both, 20'000, {.with_stderr = false})->output == "out\n");
  }

  TEST_CASE("run_command: a program that prints too much or does not end is killed") {
    const auto yes = run_command({"yes"}, 20'000, {.bytes_max = 100'000});
    CHECK(yes.status().code() == Code::io);
    CHECK(yes.status().message() == "yes: printed more than 100000 bytes");
    CHECK(run_command({"sleep", "1000"}, 10).status().code() == Code::deadline);
    // A program that closes its output and runs on.
    const std::vector<std::string> silent = {"bash", "-c", "exec >&- 2>&-; exec sleep 1000"};
    CHECK(run_command(silent, 50).status().code() == Code::deadline);
  }

  TEST_CASE("run_command: a program gets its input, and takes its own children with it") {
    const std::string text(300'000, 'x');
    CHECK(run_command({"cat"}, 20'000, {.input = text})->output == text);
    CHECK(run_command({"true"}, 20'000, {.input = text})->code == 0);  // it may leave it unread
    // The inner sleep holds the pipe open: only the death of the whole group ends the second one.
    const std::vector<std::string> nested = {"bash", "-c", "sleep 1000 & echo $!; wait"};
    const auto late = run_command(nested, 100, {.own_group = true});
    CHECK(late.status().code() == Code::deadline);
  }

  TEST_CASE("shell_text: a command as it is typed into a shell") {
    CHECK(shell_text({"a", "b c", "it's", "x=1"}) == "a 'b c' 'it'\\''s' x=1");
  }
}

TEST_CASE("child environment: a child has what it needs, and no secret of any name") {
  for (const char* name :
       {"PATH", "HOME", "LC_ALL", "LD_LIBRARY_PATH", "LD_PRELOAD", "SLURM_JOB_ID",
        "SLURMD_NODENAME", "SIMPLESCALE_LOG", "CUDA_VISIBLE_DEVICES", "NCCL_IB_PKEY", "UCX_TLS",
        "OMP_NUM_THREADS", "MKL_CBWR", "https_proxy", "FAKETIME", "GLIBC_TUNABLES", "ASAN_OPTIONS",
        "TZ"})
    CHECK_MESSAGE(inherits_variable(Inherits::needed, name), name);
  for (const char* name : {"AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "MY_HF_TOKEN2",
                           "DATABASE_URL", "SLACK_WEBHOOK", "OPENAI_KEY", "PGPASSWORD", "GH_PAT",
                           "NOTIFY_URL", "SLURM_JWT", "NVIDIA_API_KEY", "PATHS", "TZ_KEY"}) {
    CHECK_MESSAGE(!inherits_variable(Inherits::needed, name), name);
    CHECK_MESSAGE(inherits_variable(Inherits::all, name), name);
  }
  CHECK(inherits_variable(Inherits::with_bucket, "AWS_SECRET_ACCESS_KEY"));
  CHECK(inherits_variable(Inherits::with_bucket, "PATH"));
  CHECK(!inherits_variable(Inherits::with_bucket, "HF_TOKEN"));
  setenv(kPassVariable, "DARSHAN_*,SITE_MODE  OTHER", 1);
  for (const char* name : {"DARSHAN_LOG", "SITE_MODE", "OTHER"})
    CHECK_MESSAGE(inherits_variable(Inherits::needed, name), name);
  CHECK(!inherits_variable(Inherits::needed, "SITE_MODE2"));
  unsetenv(kPassVariable);
}

TEST_CASE("child environment: what is added counts more than what is inherited") {
  setenv("WANDB_API_KEY", "x", 1);
  const auto has = [](const std::vector<std::string>& all, const std::string& text) {
    return std::ranges::find(all, text) != all.end();
  };
  CHECK(has(child_environment({}, Inherits::all), "WANDB_API_KEY=x"));
  const auto needed =
      child_environment({{"HF_TOKEN", "given"}, {"PATH", "mine"}}, Inherits::needed);
  CHECK(!has(needed, "WANDB_API_KEY=x"));
  CHECK(has(needed, "HF_TOKEN=given"));
  CHECK(std::ranges::count_if(needed, [](const auto& v) { return v.starts_with("PATH="); }) == 1);
  CHECK(has(needed, "PATH=mine"));
  auto child = must(
      spawn({.argv = {"/bin/sh", "-c", "exit ${WANDB_API_KEY:+1}"}, .inherits = Inherits::needed}));
  int status = -1;
  waitpid(*child, &status, 0);
  CHECK(status == 0);
  unsetenv("WANDB_API_KEY");
}

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
  auto empty = must(SharedMemory::create("ss-test-life-empty-" + std::to_string(getpid()), 4096));
  CHECK(!watcher.watch(empty->name(), [] {}).ok());
}
