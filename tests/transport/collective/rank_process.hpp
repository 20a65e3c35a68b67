// Ranks as processes of their own (programs/collective_rank.cpp), for tests of their death and of
// processes that are no members.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

extern char** environ;

namespace simplescale::testing {

/// A collective_rank process and its output.
struct Process {
  pid_t pid = 0;
  FILE* out = nullptr;

  explicit Process(const std::vector<std::string>& arguments) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<std::string> all{SIMPLESCALE_COLLECTIVE_RANK};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (auto& a : all) argv.push_back(a.data());
    argv.push_back(nullptr);
    REQUIRE(posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    out = fdopen(ends[0], "r");
  }
  std::string line() {
    char text[512] = "";
    if (!fgets(text, sizeof(text), out)) return "";
    return std::string(text, strcspn(text, "\n"));
  }
  void kill() const { ::kill(pid, SIGKILL); }
  ~Process() {
    kill();
    waitpid(pid, nullptr, 0);
    fclose(out);
  }
};

}  // namespace simplescale::testing
