#include "runtime/base/run_command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "runtime/base/process.hpp"

namespace simplescale {

namespace {

using Clock = std::chrono::steady_clock;

/// Waits until `fd` can be read. False: the deadline has passed.
bool readable(int fd, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{fd, POLLIN, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready >= 0 || errno != EINTR) return ready != 0;
  }
}

/// A file in memory that holds the text and is read from its beginning; -1: none.
int file_of(const std::string& text) {
  const int fd = memfd_create("stdin", MFD_CLOEXEC);
  if (fd < 0) return -1;
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  lseek(fd, 0, SEEK_SET);
  return fd;
}

/// Starts argv with its stdout, and its stderr if asked for, at `out`. Returns 0 or an errno.
int spawn(const std::vector<std::string>& argv, int out, const CommandOutput& kept, pid_t& pid) {
  std::vector<std::string> texts = argv,
                           variables = child_environment(kept.environment, kept.inherits);
  std::vector<char*> arguments = argument_list(texts), environment = argument_list(variables);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int in = kept.input.empty() ? -1 : file_of(kept.input);
  if (in >= 0)
    posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  else
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  if (kept.with_stderr) posix_spawn_file_actions_adddup2(&actions, out, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t pipe;  // `train` ignores it, which its children would inherit
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &pipe);
  posix_spawnattr_setflags(
      &attributes,
      static_cast<short>(POSIX_SPAWN_SETSIGDEF | (kept.own_group ? POSIX_SPAWN_SETPGROUP : 0)));
  const int error =
      posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (in >= 0) close(in);
  return error;
}

Status too_late() {
  return Status(Code::deadline, "did not end in time and was killed");
}

/// Reads until every writer has closed the pipe.
Status read_all(int in, Clock::time_point deadline, size_t bytes_max, std::string& text) {
  std::vector<char> buffer(1 << 16);
  while (readable(in, deadline)) {
    const ssize_t count = read(in, buffer.data(), buffer.size());
    if (count == 0) return {};
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("cannot read", "its output", errno);
    text.append(buffer.data(), static_cast<size_t>(count));
    if (text.size() > bytes_max)
      return Status(Code::io, "printed more than " + std::to_string(bytes_max) + " bytes");
  }
  return too_late();
}

/// Waits until the program ends, since it may run on after closing its output.
Status wait_until_ended(pid_t pid, Clock::time_point deadline) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  const bool ended = pidfd < 0 || readable(pidfd, deadline);
  if (pidfd >= 0) close(pidfd);
  return ended ? Status() : too_late();
}

}  // namespace

Result<CommandResult> run_command(const std::vector<std::string>& argv, int64_t timeout_ms,
                                  const CommandOutput& kept) {
  SS_ASSERT(!argv.empty());
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_error("cannot create a pipe for", argv[0], errno);
  pid_t pid = -1;
  const int error = spawn(argv, ends[1], kept, pid);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return system_error("cannot run", argv[0], error, Code::not_found);
  }
  CommandResult result;
  Status ended = read_all(ends[0], deadline, kept.bytes_max, result.output);
  close(ends[0]);
  if (ended.ok()) ended = wait_until_ended(pid, deadline);
  if (!ended.ok()) kill(kept.own_group ? -pid : pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended.ok()) return ended.in(argv[0]);
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
