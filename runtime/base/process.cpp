#include "runtime/base/process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <set>

#include "runtime/base/open_output.hpp"

namespace simplescale {

Result<pid_t> spawn(const SpawnOptions& options) {
  // Allocate everything before fork(): in the child the allocator's lock may be held for ever.
  std::vector<std::string> argv = options.argv,
                           environment = child_environment(options.environment, options.inherits);
  std::vector<char*> arguments = argument_list(argv), variables = argument_list(environment);
  int output = -1;
  if (!options.output.empty()) {
    output = open_output(options.output, Output::append);
    if (output < 0) return output_error(options.output, errno, Code::io);
  }
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) {
    if (output >= 0) close(output);
    return system_error("cannot create a pipe for", options.argv[0], errno);
  }
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (int cpu : options.cpus)
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<size_t>(cpu), &cpus);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    if (options.die_with_parent) {
      prctl(PR_SET_PDEATHSIG, options.death_signal);
      if (getppid() != parent) _exit(127);
    }
    if (options.ignore_signals)
      for (int number : {SIGINT, SIGTERM, SIGUSR1}) signal(number, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    if (options.block_signals)
      for (int number : {SIGINT, SIGTERM, SIGUSR1, SIGRTMIN}) sigaddset(&none, number);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    signal(SIGPIPE, SIG_DFL);  // `train` ignores it
    if (options.nice != 0)
      setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + options.nice);
    // If this fails, the child keeps the affinity of this process.
    if (CPU_COUNT(&cpus) > 0) sched_setaffinity(0, sizeof cpus, &cpus);
    setpgid(0, 0);  // a terminal sends Ctrl-C to the launcher alone
    if (output >= 0) {
      dup2(output, STDOUT_FILENO);
      dup2(output, STDERR_FILENO);
      const int null = open("/dev/null", O_RDONLY);
      if (null >= 0) dup2(null, STDIN_FILENO);
    }
    execve(arguments[0], arguments.data(), variables.data());
    const int error = errno;
    if (write(report[1], &error, sizeof error) != sizeof error) _exit(126);
    _exit(127);
  }
  const int fork_error = errno;
  close(report[1]);
  if (output >= 0) close(output);
  int error = 0;
  const bool failed = child > 0 && read(report[0], &error, sizeof error) == sizeof error;
  close(report[0]);
  if (child < 0) return system_error("cannot fork for", options.argv[0], fork_error);
  if (failed) {
    waitpid(child, nullptr, 0);
    return system_error("cannot run", options.argv[0], error);
  }
  return child;
}

ProcessState process_state(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return ProcessState::gone;
  // "pid (name) state ..."; the name may contain any character
  const size_t name_end = text.rfind(')');
  const char state =
      name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : 'X';
  if (state == 'T' || state == 't') return ProcessState::stopped;
  return state == 'Z' || state == 'X' ? ProcessState::gone : ProcessState::runs;
}

const std::string& pid_scope() {
  static const std::string scope = [] {
    std::string text;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
    struct stat info {};
    if (stat("/proc/self/ns/pid", &info) == 0) text += "/" + std::to_string(info.st_ino);
    return text;
  }();
  return scope;
}

Status for_each_thread(pid_t pid, const char* call, const std::function<int(pid_t)>& set) {
  // A thread that started meanwhile inherited the old setting: repeat until no thread is new.
  std::set<pid_t> done;
  for (bool more = true; more;) {
    more = false;
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
      const pid_t thread = std::atoi(entry.path().filename().c_str());
      if (!done.insert(thread).second) continue;
      more = true;
      if (set(thread) != 0 && errno != ESRCH)
        return system_error(call, "of thread " + std::to_string(thread), errno);
    }
    if (error) return Status(Code::not_found, "process " + std::to_string(pid) + " has ended");
  }
  return {};
}

Status set_nice(pid_t pid, int nice) {
  return for_each_thread(pid, "setpriority", [nice](pid_t thread) {
    return setpriority(PRIO_PROCESS, static_cast<id_t>(thread), nice);
  });
}

bool may_lower_nice() {
  // Depends on a capability, so try it. Linux keeps the nice value per thread, so a thread of its
  // own.
  static const bool may = [] {
    bool done = false;
    std::thread([&done] {
      const int nice = getpriority(PRIO_PROCESS, 0);
      done = setpriority(PRIO_PROCESS, 0, nice + 1) == 0 && setpriority(PRIO_PROCESS, 0, nice) == 0;
    }).join();
    return done;
  }();
  return may;
}

std::string ExitStatus::text() const {
  if (exited) return "exit code " + std::to_string(code);
  return "killed by signal " + std::to_string(code) + " (" + strsignal(code) + ")";
}

ProcessWatcher::ProcessWatcher()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  SS_ASSERT(epoll_ >= 0 && wake_ >= 0);
  epoll_event event{.events = EPOLLIN, .data = {.fd = wake_}};
  SS_ASSERT(epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) == 0);
  thread_ = std::thread([this] { run(); });
}

ProcessWatcher::~ProcessWatcher() {
  post([this] { stopping_ = true; });
  thread_.join();
  for (const auto& [fd, child] : children_) close(fd);
  close(epoll_);
  close(wake_);
}

void ProcessWatcher::post(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof one);
}

Status ProcessWatcher::watch(pid_t child, std::function<void(pid_t, ExitStatus)> ended) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  if (fd < 0) return system_error("cannot watch", "process " + std::to_string(child), errno);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  post([this, fd, child, ended = std::move(ended)] {
    children_[fd] = {child, ended};
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    SS_ASSERT(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0);
  });
  return {};
}

Result<pid_t> ProcessWatcher::spawn(const SpawnOptions& options,
                                    std::function<void(pid_t, ExitStatus)> ended) {
  auto promise = std::make_shared<std::promise<Result<pid_t>>>();
  auto result = promise->get_future();
  post([promise, options] { promise->set_value(simplescale::spawn(options)); });
  Result<pid_t> child = result.get();
  if (child.ok()) SS_RETURN_IF_ERROR(watch(*child, std::move(ended)));
  return child;
}

void ProcessWatcher::run() {
  while (!stopping_) {
    std::array<epoll_event, 16> events;
    const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == wake_) {
        uint64_t ignored;
        (void)!read(wake_, &ignored, sizeof ignored);
        std::vector<std::function<void()>> jobs;
        {
          std::lock_guard lock(mutex_);
          jobs.swap(jobs_);
        }
        for (auto& job : jobs) job();
        continue;
      }
      auto found = children_.find(fd);
      if (found == children_.end()) continue;
      Child child = std::move(found->second);
      children_.erase(found);
      int status = 0;
      pid_t reaped;
      while ((reaped = waitpid(child.pid, &status, 0)) < 0 && errno == EINTR) {
      }
      close(fd);
      ExitStatus end;
      end.exited = reaped == child.pid && WIFEXITED(status);
      end.code = reaped != child.pid ? 0 : end.exited ? WEXITSTATUS(status) : WTERMSIG(status);
      child.ended(child.pid, end);
    }
  }
}

int usable_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  // Fails on a machine with more CPUs than a cpu_set_t holds.
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return std::max(1, CPU_COUNT(&mask));
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

std::string environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? value : "";
}

std::string program_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

std::string unique_id() {
  uint64_t random = 0;
  SS_ASSERT(getrandom(&random, sizeof random, 0) == sizeof random);
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(random));
  return text;
}

}  // namespace simplescale
