#include "runtime/base/named_descriptors.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "runtime/base/hash.hpp"

namespace simplescale {

namespace {

/// Never freed: threads may take names until the process ends.
std::string& name_secret() {
  static auto& secret = *new std::string();
  return secret;
}

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
  explicit Address(const std::string& of) {
    const std::string text = socket_name(of);
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, text.data(), text.size());  // sun_path[0] = 0: abstract
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

/// A message of one byte, with room for one descriptor.
struct Message {
  char byte = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{&byte, 1};
  msghdr header{};
  Message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
};

void send_descriptor(int to, int fd) {
  Message message;
  cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(control), &fd, sizeof fd);
  (void)!sendmsg(to, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

class Server {
 public:
  Server() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

  /// Once; before the first offer.
  Status start() {
    if (epoll_ < 0) return system_error("cannot make", "an epoll descriptor", errno);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for other threads
    Status status;
    try {
      std::thread([this] { run(); }).detach();
    } catch (const std::system_error& error) {
      status = system_error("cannot start", "the thread that offers shared memory",
                            error.code().value());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return status;
  }

  Result<uint64_t> add(const std::string& name, int socket, int fd) {
    std::lock_guard lock(mutex_);
    const uint64_t id = ids_ + 1;
    epoll_event event{.events = EPOLLIN, .data = {.u64 = id}};
    if (listen(socket, SOMAXCONN) != 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) != 0)
      return system_error("cannot offer", name, errno);
    offers_[id] = {name, socket, fd};
    return ids_ = id;
  }

  void remove(uint64_t id) {
    std::lock_guard lock(mutex_);
    const auto offer = offers_.extract(id);
    if (offer.empty()) return;
    // Not by close() alone: a child between fork() and exec() has the socket, too.
    epoll_ctl(epoll_, EPOLL_CTL_DEL, offer.mapped().socket, nullptr);
    close(offer.mapped().socket);
  }

  uint64_t find(const std::string& name) {
    std::lock_guard lock(mutex_);
    for (const auto& [id, offer] : offers_)
      if (offer.name == name) return id;
    return 0;
  }

  /// A copy of what this process offers; -1: nothing of this name, or no descriptor is free.
  int copy(const std::string& name) {
    std::lock_guard lock(mutex_);
    for (const auto& [id, offer] : offers_)
      if (offer.name == name) return fcntl(offer.fd, F_DUPFD_CLOEXEC, 0);
    return -1;
  }

 private:
  struct Offer {
    std::string name;
    int socket = -1, fd = -1;
  };

  [[noreturn]] void run() {
    pthread_setname_np(pthread_self(), "descriptors");
    while (true) {
      epoll_event event{};
      if (epoll_wait(epoll_, &event, 1, -1) == 1) answer(event.data.u64);
    }
  }

  void answer(uint64_t id) {
    std::unique_lock lock(mutex_);
    const auto offer = offers_.find(id);
    if (offer == offers_.end()) return;
    const int client = accept4(offer->second.socket, nullptr, nullptr, SOCK_CLOEXEC);
    if (client >= 0) {
      if (is_of_this_user(client)) send_descriptor(client, offer->second.fd);
      close(client);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // until a descriptor is free
    }
  }

  const int epoll_;
  std::mutex mutex_;
  std::map<uint64_t, Offer> offers_;
  uint64_t ids_ = 0;
};

/// The server of this process; make: starts it if there is none. Never freed: its thread ends with
/// the process. A child of fork() has its parent's variables, but not its thread.
Result<Server*> server(bool make) {
  static std::mutex mutex;
  static Server* one = nullptr;
  static pid_t process = 0;
  std::lock_guard lock(mutex);
  if (process != getpid()) one = nullptr;
  if (one || !make) return one;
  auto* made = new Server();
  SS_RETURN_IF_ERROR(made->start());
  process = getpid();
  return one = made;
}

Result<int> new_socket(const std::string& name, int flags) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
  if (fd < 0) return system_error("cannot make a socket for", name, errno);
  return fd;
}

/// A connection to the process that offers the name.
Result<int> connect_to(const std::string& name, std::chrono::milliseconds patience) {
  SS_ASSIGN(const int fd, new_socket(name, 0));
  const std::chrono::microseconds us(patience);
  const timeval limit{us.count() / 1'000'000, us.count() % 1'000'000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);  // of connect()
  const Address to(name);
  const bool connected = connect(fd, to.get(), to.bytes) == 0;
  const int error = errno;
  if (connected && is_of_this_user(fd)) return fd;
  close(fd);
  if (connected) return Status(Code::io, "a process of another user holds the name of " + name);
  if (error == EAGAIN) return Status(Code::deadline, "the process that holds " + name + " is busy");
  return Status(Code::not_found, "no process of this host holds " + name);
}

}  // namespace

void set_name_secret(const std::string& secret) {
  name_secret() = secret;
}

std::string socket_name(const std::string& name) {
  const std::string text = std::to_string(geteuid()) + "/" +
                           (name.starts_with("lock/") ? "" : name_secret()) + "/" + name;
  return "simplescale-fd-" + hash128(text.data(), text.size()).hex();
}

Result<int> take_name(const std::string& name) {
  SS_ASSIGN(const int fd, new_socket(name, SOCK_NONBLOCK));
  const Address at(name);
  if (bind(fd, at.get(), at.bytes) == 0) return fd;
  const int error = errno;
  close(fd);
  if (error == EADDRINUSE) return -1;
  return system_error("cannot take the name of", name, error);
}

Result<uint64_t> offer_descriptor(const std::string& name, int socket, int fd) {
  auto here = server(true);
  auto id = here.ok() ? (*here)->add(name, socket, fd) : Result<uint64_t>(here.status());
  if (!id.ok()) close(socket);
  return id;
}

void withdraw_offer(uint64_t id) {
  if (const auto here = server(false); here.ok() && *here) (*here)->remove(id);
}

uint64_t find_offer(const std::string& name) {
  const auto here = server(false);
  return here.ok() && *here ? (*here)->find(name) : 0;
}

Result<int> receive_descriptor(const std::string& name, std::chrono::milliseconds patience) {
  if (const auto here = server(false); here.ok() && *here)
    if (const int own = (*here)->copy(name); own >= 0) return own;
  SS_ASSIGN(const int from, connect_to(name, patience));
  Message message;
  ssize_t got = -1;
  while ((got = recvmsg(from, &message.header, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
  }
  const int error = errno;
  close(from);
  const cmsghdr* control = got == 1 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (control && control->cmsg_type == SCM_RIGHTS && control->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(control), sizeof fd);
    return fd;
  }
  if (got == 1)
    return Status(Code::io, "cannot open " + name + ": this process has no descriptor left");
  if (got < 0 && error == EAGAIN)
    return Status(Code::deadline, "the process that holds " + name + " does not answer");
  return Status(Code::not_found, "the process that holds " + name + " ends");
}

}  // namespace simplescale
