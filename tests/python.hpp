// The project's Python, which imports its modules once for all tests of a program.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/paths.hpp"

extern char** environ;

namespace simplescale::test {

/// A process of python_server.py. Not thread-safe.
class Python {
 public:
  /// The process with these modules. Null if there is no Python, or a module is missing.
  static Python* with(const std::vector<std::string>& modules) {
    static std::map<std::vector<std::string>, std::unique_ptr<Python>> all;
    std::unique_ptr<Python>& found = all[modules];
    if (!found) found.reset(new Python(modules));
    return found->ready_ ? found.get() : nullptr;
  }
  ~Python() {
    if (to_) std::fclose(to_);
    if (from_) std::fclose(from_);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  Python(const Python&) = delete;
  Python& operator=(const Python&) = delete;

  /// Runs a script in a folder, and returns its exit code. output: the file for stdout and stderr.
  int run(const std::string& script, const std::string& folder, const std::string& output,
          const std::vector<std::string>& arguments = {}) {
    nlohmann::json line{script, output, folder};
    for (const std::string& argument : arguments) line.push_back(argument);
    std::fputs((line.dump() + "\n").c_str(), to_);
    std::fflush(to_);
    const std::string answer = read();
    return answer.empty() ? -1 : std::atoi(answer.c_str());
  }

 private:
  explicit Python(const std::vector<std::string>& modules) {
    const std::string python = deps_dir() + "/python/bin/python",
                      server = source_dir() + "/tests/python_server.py";
    int in[2], out[2];
    if (::access(python.c_str(), X_OK) != 0 || ::pipe2(in, O_CLOEXEC) != 0 ||
        ::pipe2(out, O_CLOEXEC) != 0)
      return;
    std::vector<const char*> argv{python.c_str(), "-B", server.c_str()};
    for (const std::string& module : modules) argv.push_back(module.c_str());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn(&pid_, python.c_str(), &actions, nullptr, const_cast<char**>(argv.data()), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    to_ = ::fdopen(in[1], "w");
    from_ = ::fdopen(out[0], "r");
    ready_ = read() == "ready\n";
  }
  std::string read() {
    char line[64] = "";
    return std::fgets(line, sizeof line, from_) ? line : "";
  }

  pid_t pid_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
  bool ready_ = false;
};

}  // namespace simplescale::test
