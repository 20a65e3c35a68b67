#include "app/launch/background.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "runtime/base/log.hpp"
#include "runtime/base/open_output.hpp"

namespace simplescale {

namespace {

std::string log_of(const RunFolder& run) {
  return run.logs() + "/train.log";
}

bool is_file(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

void leave_terminal(const RunFolder& run, bool keep_files) {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int log = open_output(log_of(run), Output::append);
  if (null >= 0) dup2(null, STDIN_FILENO);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO})
    if (!(keep_files && is_file(output)) && null >= 0) dup2(log >= 0 ? log : null, output);
  if (null >= 0) close(null);
  if (log >= 0) close(log);
  init_logging("simplescale");  // without colours
}

Result<Background> Background::start(const RunFolder& run) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_error("cannot create", "a pipe", errno);
  std::fflush(nullptr);  // or both processes would print what is buffered
  const pid_t child = fork();
  if (child < 0) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    return system_error("cannot fork", "a process for the background", error);
  }
  close(ends[child > 0 ? 1 : 0]);
  if (child > 0) return Background(child, ends[0]);
  setsid();
  leave_terminal(run, false);
  return Background(0, ends[1]);
}

Background::Background(Background&& other) noexcept : child_(other.child_), pipe_(other.pipe_) {
  other.pipe_ = -1;
}

Background::~Background() {
  if (pipe_ >= 0) close(pipe_);
}

Status Background::wait(const RunFolder& run) {
  char byte = 0;
  ssize_t got = 0;
  while ((got = read(pipe_, &byte, 1)) < 0 && errno == EINTR) {
  }
  if (got == 1) return {};
  int ended = 0;
  waitpid(child_, &ended, 0);
  return Status(Code::internal,
                "the run could not be started in the background; the reason is in " + log_of(run));
}

void Background::started() {
  const char byte = 1;
  (void)!write(pipe_, &byte, 1);
  close(pipe_);
  pipe_ = -1;
}

}  // namespace simplescale
