#include "runtime/data/run_program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

extern char** environ;

namespace simplescale {

namespace {

using Clock = std::chrono::steady_clock;

// Waits until fd can be read. False: the deadline has passed.
bool readable(int fd, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{fd, POLLIN, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::max<long>(left, 0)));
    if (ready >= 0 || errno != EINTR) return ready != 0;
  }
}

// Starts argv with stdout at `out`. Returns an errno.
int spawn(const std::vector<std::string>& argv, int out, pid_t& pid) {
  std::vector<char*> arguments;
  for (const auto& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  const int error = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

// Reads until the end of the pipe.
Status drain(int in, Clock::time_point deadline, size_t bytes_max, std::string& text) {
  std::vector<char> buffer(1 << 16);
  while (readable(in, deadline)) {
    const ssize_t count = read(in, buffer.data(), buffer.size());
    if (count == 0) return {};
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Status(Code::io, std::strerror(errno));
    text.append(buffer.data(), static_cast<size_t>(count));
    if (text.size() > bytes_max)
      return Status(Code::io, "printed more than " + std::to_string(bytes_max) + " bytes");
  }
  return Status(Code::deadline, "took too long and was killed");
}

// Waits for the program's end, killing it at the deadline. Returns the status of waitpid.
int wait_exit(pid_t pid, Clock::time_point deadline) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pidfd >= 0 && !readable(pidfd, deadline)) kill(pid, SIGKILL);
  if (pidfd >= 0) close(pidfd);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

Result<std::string> run_program(const std::vector<std::string>& argv, int timeout_ms,
                                size_t bytes_max) {
  SS_ASSERT(!argv.empty());
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0)
    return Status(Code::io, std::string("cannot create a pipe: ") + std::strerror(errno));
  pid_t pid = -1;
  const int error = spawn(argv, pipe_ends[1], pid);
  close(pipe_ends[1]);
  if (error != 0) {
    close(pipe_ends[0]);
    return Status(error == ENOENT ? Code::not_found : Code::io,
                  "cannot start " + argv[0] + ": " + std::strerror(error));
  }
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  std::string text;
  const Status drained = drain(pipe_ends[0], deadline, bytes_max, text);
  close(pipe_ends[0]);
  if (!drained.ok()) kill(pid, SIGKILL);
  const int status = wait_exit(pid, deadline);
  if (!drained.ok()) return drained.in(argv[0]);
  if (WIFSIGNALED(status))
    return Status(Code::io, argv[0] + " was killed by signal " + std::to_string(WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0)
    return Status(Code::io,
                  argv[0] + " failed with exit status " + std::to_string(WEXITSTATUS(status)));
  return text;
}

}  // namespace simplescale
