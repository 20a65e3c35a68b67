// Listening, accepting and connecting. link.cpp reads and writes.
#include "transport/stream/messenger.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/log.hpp"

namespace simplescale::stream {
namespace {

constexpr int kBacklog = 4096;
constexpr int kAcceptsMax = 8;   // of one listener in a round: the accepted ones come first
constexpr int kEventsMax = 256;  // of a round
constexpr auto kTick = std::chrono::milliseconds(100);
constexpr auto kFinishTime = std::chrono::seconds(1);
constexpr uint64_t kEventSerial = 2, kTimerSerial = 3;  // listeners: 0 and 1
constexpr int kUnixBuffer = 1 << 20;

/// Every connection is a descriptor, and the usual soft limit is 1024.
void raise_descriptor_limit() {
  constexpr rlim_t kEnough = 65'536;  // programs that we start may close each possible descriptor
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kEnough);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

/// True if a process of this user is at the other end of a Unix socket.
bool is_ours(int fd) {
  ucred other{};
  socklen_t bytes = sizeof other;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0 && other.uid == geteuid();
}

void set_options(int fd, bool network) {
  const int one = 1;
  if (network) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (!network) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kUnixBuffer, sizeof kUnixBuffer);
}

std::string name_of(const sockaddr_storage& from) {
  Endpoint endpoint;
  if (from.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
    endpoint = {{v6.sin6_addr.s6_addr + (mapped ? 12 : 0), v6.sin6_addr.s6_addr + 16},
                ntohs(v6.sin6_port)};
  } else {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    const auto* ip = reinterpret_cast<const uint8_t*>(&v4.sin_addr);
    endpoint = {{ip, ip + 4}, ntohs(v4.sin_port)};
  }
  return to_text(endpoint);
}

}  // namespace

Result<std::unique_ptr<Messenger>> Messenger::create(MessengerOptions options, Handlers handlers) {
  raise_descriptor_limit();
  if (sodium_init() < 0) return Status(Code::internal, "libsodium cannot be initialised");
  std::unique_ptr<Messenger> made(new Messenger(std::move(options), std::move(handlers)));
  randombytes_buf(made->id_.data(), made->id_.size());
  made->epoll_ = epoll_create1(EPOLL_CLOEXEC);
  made->event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  made->timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (made->epoll_ < 0 || made->event_ < 0 || made->timer_ < 0)
    return system_error("cannot make", "an event descriptor", errno);
  made->watch(made->event_, kEventSerial, EPOLLIN, EPOLL_CTL_ADD);
  made->watch(made->timer_, kTimerSerial, EPOLLIN, EPOLL_CTL_ADD);
  SS_RETURN_IF_ERROR(made->listen_on_host());
  Address address{made->id_, made->options_.host, {}};
  if (made->options_.network) {
    SS_RETURN_IF_ERROR(made->listen_on_network());
    sockaddr_storage bound{};
    socklen_t bytes = sizeof bound;
    getsockname(made->listeners_[1], reinterpret_cast<sockaddr*>(&bound), &bytes);
    address.endpoints = local_endpoints(
        ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(bound).sin_port));
  }
  made->address_ = encode(address);
  return made;
}

Messenger::~Messenger() {
  while (!wires_.empty()) release(wires_.begin()->second.first);
  for (const int fd : listeners_) ::close(fd);
  for (const int fd : {epoll_, event_, timer_})
    if (fd >= 0) ::close(fd);
}

void Messenger::watch(int fd, uint64_t serial, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = serial;
  epoll_ctl(epoll_, operation, fd, &event);
}

Status Messenger::listen_on(int fd, const char* what) {
  if (fd < 0 || listen(fd, kBacklog) != 0) {
    const Status failed = system_error("cannot listen on", what, errno);
    if (fd >= 0) ::close(fd);
    return failed;
  }
  watch(fd, listeners_.size(), EPOLLIN, EPOLL_CTL_ADD);
  listeners_.push_back(fd);
  return {};
}

/// An abstract socket: no file is left behind, and the name belongs to the network namespace.
Status Messenger::listen_on_host() {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_storage name;
  const socklen_t bytes = to_sockaddr(id_, name);
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&name), bytes) != 0) {
    const Status failed = system_error("cannot bind", "a Unix socket", errno);
    ::close(fd);
    return failed;
  }
  return listen_on(fd, "a Unix socket");
}

Status Messenger::listen_on_network() {
  for (const int family : {AF_INET6, AF_INET}) {  // AF_INET6 takes IPv4, too
    const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const int off = 0;
    if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(family);
    if (bind(fd, reinterpret_cast<sockaddr*>(&any),
             family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)) == 0)
      return listen_on(fd, "a TCP port");
    ::close(fd);
  }
  return system_error("cannot bind", "a TCP port", errno);
}

// ---- accepting --------------------------------------------------------------------------------

void Messenger::accept_from(int listener) {
  const bool network = listener != listeners_[0];
  for (int i = 0; i < kAcceptsMax; ++i) {
    sockaddr_storage from{};
    socklen_t bytes = sizeof from;
    const int fd =
        accept4(listener, reinterpret_cast<sockaddr*>(&from), &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      if (!network && !is_ours(fd)) {
        ::close(fd);  // another user's
      } else {
        add_accepted(fd, network, network ? name_of(from) : "this host");
      }
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
    if (make_room()) continue;
    // STREAM-2: without descriptors the listeners pause; they are not closed.
    paused_ = true;
    for (const int each : listeners_) epoll_ctl(epoll_, EPOLL_CTL_DEL, each, nullptr);
    return start_ticking();
  }
}

/// Ends the oldest connection of an unproven process. False: there is none.
bool Messenger::make_room() {
  if (untrusted_.empty()) return false;
  end(LinkPtr(untrusted_.front()), End::stranger, "no descriptors are left");
  return true;
}

void Messenger::add_accepted(int fd, bool network, std::string name) {
  limit_untrusted(network, network ? options_.strangers_max : options_.untrusted_max);
  limit_untrusted(false, options_.untrusted_max);
  auto link = std::make_shared<Link>();
  link->accepted_ = true;
  link->open_ = !network;
  link->name_ = std::move(name);
  link->since_ = Clock::now();
  set_options(fd, network);
  Wire& wire = add_wire(link, fd, false);
  if (network) wire.secure = std::make_unique<Secure>(Secure::Side::server, options_.key, id_);
  untrusted_.push_back(link);
  start_ticking();
}

/// Ends the oldest accepted connections before trust() until there is room for one more.
/// strangers: counts only those without a proof of the key. A regular proof takes a round trip.
void Messenger::limit_untrusted(bool strangers, size_t most) {
  const auto counts = [&](const LinkPtr& link) { return !strangers || !link->open_; };
  if (untrusted_.size() < most) return;
  auto count = static_cast<size_t>(std::ranges::count_if(untrusted_, counts));
  for (auto at = untrusted_.begin(); at != untrusted_.end() && count >= most;) {
    const LinkPtr link = *at++;
    if (!counts(link)) continue;
    --count;
    end(link, End::stranger, "too many connections without a proof of the run's key");
  }
}

void Messenger::start_ticking() {
  if (ticking_) return;
  ticking_ = true;
  const long ns = std::chrono::nanoseconds(kTick).count();
  const itimerspec each{{0, ns}, {0, ns}};
  timerfd_settime(timer_, 0, &each, nullptr);
}

void Messenger::tick() {
  uint64_t times;
  (void)!::read(timer_, &times, sizeof times);
  const auto now = Clock::now();
  while (!untrusted_.empty() &&
         now - untrusted_.front()->since_ > std::chrono::milliseconds(options_.proof_ms))
    end(LinkPtr(untrusted_.front()), End::stranger, "no proof of the run's key in time");
  for (const LinkPtr& link : std::vector<LinkPtr>(finishing_))
    if (now - link->since_ > kFinishTime) release(link);
  if (std::exchange(paused_, false))
    for (size_t i = 0; i < listeners_.size(); ++i) watch(listeners_[i], i, EPOLLIN, EPOLL_CTL_ADD);
  if (!untrusted_.empty() || !finishing_.empty()) return;
  ticking_ = false;
  const itimerspec never{};
  timerfd_settime(timer_, 0, &never, nullptr);
}

// ---- connecting -------------------------------------------------------------------------------

Wire& Messenger::add_wire(const LinkPtr& link, int fd, bool connecting) {
  auto wire = std::make_unique<Wire>();
  wire->fd = fd;
  wire->serial = ++last_serial_;
  wire->connecting = wire->waits_to_write = connecting;
  watch(fd, wire->serial, connecting ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_ADD);
  wires_[wire->serial] = {link, wire.get()};
  return *link->wires_.emplace_back(std::move(wire));
}

Result<LinkPtr> Messenger::connect(std::span<const uint8_t> text) {
  const auto address = decode(text);
  if (!address) return Status(Code::bad_data, "not the address of a process of this version");
  bool network = address->host != options_.host;
  if (network && address->endpoints.empty())
    return Status(Code::unavailable,
                  "it is on another host and accepts connections from its own host only; run this "
                  "command there");
  auto link = std::make_shared<Link>();
  link->since_ = Clock::now();
  std::string why;
  const auto add = [&](const sockaddr_storage& to, socklen_t bytes) {
    const int fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const bool begun =
        fd >= 0 && (::connect(fd, reinterpret_cast<const sockaddr*>(&to), bytes) == 0 ||
                    (network && errno == EINPROGRESS));
    if (!begun) {
      why = std::strerror(errno);
    } else if (!network && !is_ours(fd)) {
      why = "another user has this address now";
    } else {
      set_options(fd, network);
      Wire& wire = add_wire(link, fd, network);
      if (!network) return;
      wire.secure = std::make_unique<Secure>(Secure::Side::client, options_.key, address->id);
      return wire.secure->begin(wire.out);
    }
    if (fd >= 0) ::close(fd);
  };
  sockaddr_storage to;
  if (!network) {
    const socklen_t bytes = to_sockaddr(address->id, to);
    add(to, bytes);
    link->open_ = true;
    link->name_ = "this host";
  }
  // Copies of one machine may have one host id.
  if (!network && link->wires_.empty() && !address->endpoints.empty()) {
    network = true;
    link->open_ = false;
    link->name_.clear();
  }
  for (const Endpoint& endpoint : network ? address->endpoints : std::vector<Endpoint>{}) {
    const socklen_t bytes = to_sockaddr(endpoint, to);
    add(to, bytes);
    link->name_ += (link->name_.empty() ? "" : ", ") + to_text(endpoint);
  }
  if (link->wires_.empty()) return Status(Code::unavailable, "cannot connect: " + why);
  return link;
}

// ---- the owner's thread -----------------------------------------------------------------------

void Messenger::signal() {
  const uint64_t one = 1;
  (void)!::write(event_, &one, sizeof one);
}

bool Messenger::progress() {
  const bool busy = !dirty_.empty();
  for (const LinkPtr& link : std::exchange(dirty_, {})) {
    link->dirty_ = false;
    if (!link->ended_) write(link);
  }
  epoll_event events[kEventsMax];
  const int count = epoll_wait(epoll_, events, kEventsMax, 0);
  bool ticked = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t serial = events[i].data.u64;
    if (serial < listeners_.size()) {
      accept_from(listeners_[serial]);
    } else if (serial == kTimerSerial) {
      ticked = true;
    } else if (serial == kEventSerial) {
      uint64_t number;
      (void)!::read(event_, &number, sizeof number);
    } else if (const auto found = wires_.find(serial); found != wires_.end()) {
      const auto [link, wire] = found->second;
      on_event(link, *wire, events[i].events);
    }
  }
  if (ticked) tick();  // a process that was stopped reads proofs before it looks at the time
  return busy || count > 0;
}

void Messenger::flush(int timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  const auto unsent = [this] {
    return !finishing_.empty() || std::ranges::any_of(wires_, [](const auto& entry) {
      const auto& [link, wire] = entry.second;
      return !link->queue_.empty() || wire->out_at < wire->out.size();
    });
  };
  while (unsent()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return;
    pollfd event{epoll_, POLLIN, 0};
    if (arm()) ::poll(&event, 1, static_cast<int>(left));
    progress();
  }
}

}  // namespace simplescale::stream
