// Shared memory is found as long as the process that made it lives, whatever lies in /dev/shm. Other
// users of the host can neither read, damage, nor stand for it. The cases with a second user need
// root, and say so without it.
#include "runtime/base/shared_memory.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "runtime/base/host_lock.hpp"
#include "runtime/base/named_descriptors.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

constexpr uid_t kNobody = 65534;

std::string unique(const std::string& what) {
  static int count = 0;
  return "ss-test-" + what + "-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

/// Runs `attack` in a process of the user nobody; true if it returned true.
bool as_stranger(const std::function<bool()>& attack) {
  const pid_t child = fork();
  if (child == 0) _exit(setgid(kNobody) == 0 && setuid(kNobody) == 0 && attack() ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool can_be_stranger() {
  if (geteuid() != 0) MESSAGE("skipped: only root can act as a second user");
  return geteuid() == 0;
}

struct Address {
  sockaddr_un name{};
  socklen_t bytes;
  explicit Address(const std::string& text)
      : bytes(static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())) {
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, text.data(), text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

/// A process that has done `begin` and then waits to be killed.
class Holder {
 public:
  explicit Holder(const std::function<bool()>& begin) {
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const char byte = begin() ? 'y' : 'n';
      (void)!write(ready[1], &byte, 1);
      for (;;) pause();
    }
    char byte = 0;
    REQUIRE(read(ready[0], &byte, 1) == 1);
    REQUIRE(byte == 'y');
    close(ready[0]);
    close(ready[1]);
  }
  ~Holder() { end(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  void stop() const {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }
  void go_on() const { kill(pid_, SIGCONT); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

std::string bytes_of(const SharedMemory& memory) {
  return {static_cast<const char*>(memory.data()), memory.bytes()};
}

}  // namespace

TEST_CASE("shared memory: processes find it by name as long as its maker lives") {
  const std::string name = unique("life");
  SharedMemory made;
  Holder holder([&] {
    auto memory = SharedMemory::create(name, 5000);
    if (!memory.ok()) return false;
    std::memcpy(memory->data(), "state", 5);
    made = memory.take();
    return true;
  });
  CHECK(access(("/dev/shm/" + name).c_str(), F_OK) != 0);  // no file, so nothing can remove it
  auto first = SharedMemory::open(name), second = SharedMemory::open(name);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first->bytes() == 5000);
  static_cast<char*>(second->data())[0] = 'S';
  CHECK(bytes_of(*first).substr(0, 6) == std::string("State\0", 6));
  holder.end();
  CHECK(bytes_of(*first).substr(0, 5) == "State");  // whoever has mapped it keeps it
  const Status gone = SharedMemory::open(name).status();
  CHECK(gone.code() == Code::io);
  CHECK(gone.message() == "shared memory: no process of this host holds " + name);
  auto next = SharedMemory::create(name, 8);  // as the agent that follows a killed one
  REQUIRE(next.ok());
  CHECK(bytes_of(*next) == std::string(8, '\0'));
}

TEST_CASE("shared memory: a segment of the same name takes the place of the earlier one") {
  const std::string name = unique("twice");
  auto first = SharedMemory::create(name, 10);
  auto second = must(SharedMemory::create(name, 20));
  CHECK(SharedMemory::open(name)->bytes() == 20);
  *first = SharedMemory();  // the end of the earlier one takes nothing from the new one
  CHECK(SharedMemory::open(name)->bytes() == 20);
  *second = SharedMemory();
  CHECK_FALSE(SharedMemory::open(name).ok());
}

TEST_CASE("shared memory: a process that does not answer is waited for, and no longer") {
  const std::string name = unique("stopped");
  SharedMemory made;
  Holder holder([&] {
    auto memory = SharedMemory::create(name, 4096);
    if (memory.ok()) made = memory.take();
    return made.data() != nullptr;
  });
  holder.stop();
  const Status status = SharedMemory::open(name, std::chrono::milliseconds(50)).status();
  CHECK(says(status, Code::deadline, "does not answer"));
  std::thread late([&] { holder.go_on(); });
  CHECK(SharedMemory::open(name, std::chrono::minutes(1)).ok());
  late.join();
}

TEST_CASE("shared memory: what has no room is refused") {
  const Status status = SharedMemory::create(unique("large"), size_t{1} << 50).status();
  CHECK(status.code() == Code::io);
  CHECK(status.message().starts_with("no room for 1073741824 MiB of shared memory"));
}

TEST_CASE("shared memory: only reserved pages take memory, and released ones are zero afterwards") {
  constexpr size_t kPage = 4096, kBytes = 64 * kPage;
  const std::string name = unique("sparse");
  auto memory = must(SharedMemory::create(name, kBytes, true));
  auto other = must(SharedMemory::open(name));
  const auto pages = [&] {
    for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const auto target = std::filesystem::read_symlink(fd.path(), error).string();
      struct stat info {};
      if (target.find(name) != std::string::npos && target.starts_with("/memfd:") &&
          stat(fd.path().c_str(), &info) == 0)
        return static_cast<size_t>(info.st_blocks) * 512 / kPage;
    }
    return SIZE_MAX;
  };
  CHECK(pages() == 0);
  REQUIRE(memory->reserve(8 * kPage, 16 * kPage).ok());
  CHECK(pages() == 16);
  auto* bytes = static_cast<unsigned char*>(memory->data());
  std::memset(bytes + 8 * kPage, 7, 16 * kPage);
  other->release(16 * kPage, 8 * kPage);  // whoever maps it can give pages back
  CHECK(pages() == 8);
  CHECK(bytes[16 * kPage - 1] == 7);
  REQUIRE(other->reserve(16 * kPage, 8 * kPage).ok());
  CHECK(pages() == 16);
  CHECK(bytes[16 * kPage] == 0);
  CHECK(bytes[24 * kPage - 1] == 0);
}

TEST_CASE("shared memory: a process without descriptors gets a sentence, and goes on") {
  const std::string name = unique("full");
  auto memory = must(SharedMemory::create(name, 4096));
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit none{3, limit.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const Status opened = SharedMemory::open(name).status();
  const Status made = SharedMemory::create(name + "-more", 4096).status();
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  for (const Status& status : {opened, made}) {
    CHECK(says(status, Code::io, "Too many open files"));
  }
  CHECK(SharedMemory::open(name).ok());
}

TEST_CASE("shared memory (SHM-4): another user gets no descriptor") {
  if (!can_be_stranger()) return;
  const std::string name = unique("read");
  auto memory = must(SharedMemory::create(name, 4096));
  const Address at(socket_name(name));  // as anybody can list it
  CHECK(as_stranger([&] {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    char byte = 0, control[256];
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part, message.msg_iovlen = 1;
    message.msg_control = control, message.msg_controllen = sizeof control;
    return connect(fd, at.get(), at.bytes) == 0 && recvmsg(fd, &message, 0) <= 0;
  }));
  CHECK(SharedMemory::open(name).ok());  // it still answers
}

TEST_CASE("shared memory (SHM-4): nothing is taken from another user that has the name") {
  if (!can_be_stranger()) return;
  const std::string name = unique("planted");
  const Address at(socket_name(name));
  Holder stranger([&] {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return setgid(kNobody) == 0 && setuid(kNobody) == 0 && bind(fd, at.get(), at.bytes) == 0 &&
           listen(fd, 5) == 0;
  });
  CHECK(says(SharedMemory::open(name).status(), Code::io, "another user"));
}

TEST_CASE("shared memory (SHM-4): what is no segment of this program is refused") {
  const std::string name = unique("kind");
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const int open_end = memfd_create("test", MFD_CLOEXEC);  // could shrink below a mapping
  REQUIRE(ftruncate(open_end, 4096) == 0);
  for (const int fd : {ends[0], open_end}) {
    const int socket = take_name(name).take();
    const uint64_t id = offer_descriptor(name, socket, fd).take();
    CHECK(SharedMemory::open(name).status().message().find("is no segment") != std::string::npos);
    withdraw_offer(id);
  }
  for (const int fd : {ends[0], ends[1], open_end}) close(fd);
}

TEST_CASE("host lock: a lock is one process's, or shared, and ends with the last holder") {
  const std::string name = unique("lock");
  const auto other = [&](bool shared) { return HostLock::take(name, shared).status().code(); };
  {
    const auto held = must(HostLock::take(name, false));
    CHECK(other(false) == Code::unavailable);
    CHECK(other(true) == Code::unavailable);
  }
  HostLock of_first, of_second;
  const auto take = [&](HostLock& lock) {
    auto taken = HostLock::take(name, true);
    if (taken.ok()) lock = taken.take();
    return taken.ok();
  };
  Holder first([&] { return take(of_first); }), second([&] { return take(of_second); });
  CHECK(other(false) == Code::unavailable);
  CHECK(other(true) == Code::ok);
  first.end();  // which had made the socket
  CHECK(other(false) == Code::unavailable);
  CHECK(other(true) == Code::ok);
  second.end();
  CHECK(other(false) == Code::ok);
}
