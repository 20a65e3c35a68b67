#include "runtime/base/run_command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace simplescale {

namespace {

constexpr size_t kOutputBytes = size_t{1} << 20;

struct Pipe {
  int ends[2] = {-1, -1};
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  void close_end(int i) {
    if (ends[i] >= 0) close(ends[i]);
    ends[i] = -1;
  }
};

/// Reads until the writers are gone; false: the deadline came first.
bool read_all(int fd, std::chrono::steady_clock::time_point deadline, std::string& output) {
  char buffer[4096];
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd wait{fd, POLLIN, 0};
    const int ready = poll(&wait, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    output.append(buffer, std::min(static_cast<size_t>(n),
                                   kOutputBytes - std::min(kOutputBytes, output.size())));
  }
}

}  // namespace

Result<CommandResult> run_command(const std::vector<std::string>& argv, int64_t timeout_ms) {
  SS_ASSERT(!argv.empty());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  Pipe pipe;
  if (pipe2(pipe.ends, O_CLOEXEC) != 0)
    return Status(Code::io, std::string("pipe: ") + std::strerror(errno));
  std::vector<std::string> texts = argv;
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, pipe.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, pipe.ends[1], STDERR_FILENO);
  pid_t child = 0;
  const int error = posix_spawnp(&child, pointers[0], &files, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0)
    return Status(error == ENOENT ? Code::not_found : Code::io,
                  "cannot run " + argv[0] + ": " + std::strerror(error));
  pipe.close_end(1);
  CommandResult result;
  const bool ended = read_all(pipe.ends[0], deadline, result.output);
  if (!ended) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended)
    return Status(Code::deadline,
                  argv[0] + " did not end within " + std::to_string(timeout_ms) + " ms");
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

std::string shell_text(const std::vector<std::string>& argv) {
  std::string text;
  for (const std::string& argument : argv) {
    const bool plain = !argument.empty() && std::ranges::all_of(argument, [](unsigned char c) {
      return std::isalnum(c) || std::strchr("_-./,:=@%+", c) != nullptr;
    });
    std::string quoted = argument;
    if (!plain) {
      quoted = "'";
      for (char c : argument) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
      quoted += "'";
    }
    text += (text.empty() ? "" : " ") + quoted;
  }
  return text;
}

}  // namespace simplescale
