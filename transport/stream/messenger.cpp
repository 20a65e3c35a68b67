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
constexpr auto kTick = std::chrono::milliseconds(10);
constexpr auto kFinishTime = std::chrono::seconds(1);
constexpr uint64_t kEventSerial = 2, kTimerSerial = 3;  // listeners: 0 and 1
constexpr int kUnixBuffer = 1 << 20;
constexpr int kUnsentBytes =
    256 << 10;  // that the kernel keeps, so that a small message waits less

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
  const int one = 1, unsent = kUnsentBytes;
  if (network) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (network) setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
  if (!network) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kUnixBuffer, sizeof kUnixBuffer);
}

Endpoint endpoint_of(const sockaddr_storage& from) {
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
  return endpoint;
}

/// What one stranger can have many of counts as one: the ports of an address, and the addresses of
/// an IPv6 subnet.
std::string source_of(const Endpoint& from) {
  return {from.ip.begin(), from.ip.begin() + std::min<ptrdiff_t>(8, std::ssize(from.ip))};
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
  if (!made->watch(made->event_, kEventSerial, EPOLLIN, EPOLL_CTL_ADD) ||
      !made->watch(made->timer_, kTimerSerial, EPOLLIN, EPOLL_CTL_ADD))
    return system_error("cannot watch", "an event descriptor", errno);
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

bool Messenger::watch(int fd, uint64_t serial, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = serial;
  return epoll_ctl(epoll_, operation, fd, &event) == 0;
}

Status Messenger::listen_on(int fd, const char* what) {
  if (fd < 0 || listen(fd, kBacklog) != 0 ||
      !watch(fd, listeners_.size(), EPOLLIN, EPOLL_CTL_ADD)) {
    const Status failed = system_error("cannot listen on", what, errno);
    if (fd >= 0) ::close(fd);
    return failed;
  }
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
        add_accepted(fd, network, endpoint_of(from));
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

/// The link to end among those for which counts() is true; null: there is none. The oldest one
/// without a good hello, else the oldest: a flood of one host ends no connection of a process there
/// that has the key and is about to prove it.
LinkPtr Messenger::first_to_end(const std::function<bool(const LinkPtr&)>& counts) const {
  LinkPtr oldest;
  for (const auto& [number, link] : untrusted_) {
    if (!counts(link)) continue;
    const auto& secure = link->wires_.front()->secure;
    if (secure && !secure->greeted()) return link;
    if (!oldest) oldest = link;
  }
  return oldest;
}

/// Ends a connection of an unproven process. False: there is none.
bool Messenger::make_room() {
  const LinkPtr link = first_to_end([](const LinkPtr&) { return true; });
  if (link) end(link, End::stranger, "no descriptors are left");
  return link != nullptr;
}

void Messenger::add_accepted(int fd, bool network, const Endpoint& from) {
  limit_untrusted(network, network ? options_.strangers_max : options_.untrusted_max);
  limit_untrusted(false, options_.untrusted_max);
  auto link = std::make_shared<Link>();
  link->accepted_ = true;
  link->open_ = !network;
  link->name_ = network ? to_text(from) : "this host";
  if (network) link->source_ = source_of(from);
  link->since_ = Clock::now();
  set_options(fd, network);
  Wire* wire = add_wire(link, fd, false);
  if (!wire) return;
  if (network) wire->secure = std::make_unique<Secure>(Secure::Side::server, options_.key, id_);
  untrusted_[link->number_ = wire->serial] = link;
  start_ticking();
}

/// STREAM-2: ends accepted connections before trust() until there is room for one more: one of the
/// source that has most, see first_to_end(). strangers: counts only those without a proof of the key.
void Messenger::limit_untrusted(bool strangers, size_t most) {
  const auto counts = [&](const LinkPtr& link) { return !strangers || !link->open_; };
  while (untrusted_.size() >= most) {
    std::unordered_map<std::string_view, size_t> of_source;
    size_t count = 0, largest = 0;
    for (const auto& [number, link] : untrusted_)
      if (counts(link)) ++count, largest = std::max(largest, ++of_source[link->source_]);
    if (count < most) return;
    end(first_to_end([&](const LinkPtr& link) {
          return counts(link) && of_source[link->source_] == largest;
        }),
        End::stranger, "too many connections without a proof of the run's key");
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
         now - untrusted_.begin()->second->since_ > std::chrono::milliseconds(options_.proof_ms))
    end(untrusted_.begin()->second, End::stranger, "no proof of the run's key in time");
  for (const LinkPtr& link : std::vector<LinkPtr>(finishing_))
    if (now - link->since_ > kFinishTime) release(link);
  try_again();
  if (std::exchange(paused_, false))
    for (size_t i = 0; i < listeners_.size(); ++i)
      if (!watch(listeners_[i], i, EPOLLIN, EPOLL_CTL_ADD) && errno != EEXIST) paused_ = true;
  if (!untrusted_.empty() || !finishing_.empty() || !full_.empty() || paused_) return;
  ticking_ = false;
  const itimerspec never{};
  timerfd_settime(timer_, 0, &never, nullptr);
}

// ---- connecting -------------------------------------------------------------------------------

/// Null, with errno: the kernel watches no more descriptors, and this one is closed.
Wire* Messenger::add_wire(const LinkPtr& link, int fd, bool connecting) {
  auto wire = std::make_unique<Wire>();
  wire->fd = fd;
  wire->serial = ++last_serial_;
  wire->connecting = wire->waits_to_write = connecting;
  if (!watch(fd, wire->serial, connecting ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_ADD)) {
    const int error = errno;
    ::close(fd);
    errno = error;
    return nullptr;
  }
  wires_[wire->serial] = {link, wire.get()};
  return link->wires_.emplace_back(std::move(wire)).get();
}

/// True: connected, or the other process's backlog is full and try_again() goes on.
bool Messenger::connect_on_host(const LinkPtr& link, std::string& why) {
  sockaddr_storage to;
  const socklen_t bytes = to_sockaddr(link->to_, to);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&to), bytes) != 0) {
    const bool full = fd >= 0 && errno == EAGAIN;
    why = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    if (full && std::ranges::find(full_, link) == full_.end()) full_.push_back(link);
    if (full) start_ticking();
    return full;
  }
  if (!is_ours(fd)) {
    ::close(fd);
    why = "another user has this address now";
    return false;
  }
  set_options(fd, false);
  if (!add_wire(link, fd, false)) {
    why = std::strerror(errno);
    return false;
  }
  link->open_ = true;
  std::erase(full_, link);
  if (!link->queue_.empty()) mark_dirty(link);
  return true;
}

void Messenger::try_again() {
  for (const LinkPtr& link : std::vector<LinkPtr>(full_)) {
    std::string why;
    const bool late = Clock::now() - link->since_ > std::chrono::milliseconds(options_.proof_ms);
    if (late || !connect_on_host(link, why))
      end(link, End::lost, late ? "it accepts no connections" : why);
  }
}

Result<LinkPtr> Messenger::connect(std::span<const uint8_t> text) {
  const auto address = decode(text);
  if (!address) return Status(Code::bad_data, "not the address of a process of this version");
  const bool network = address->host != options_.host;
  if (network && address->endpoints.empty())
    return Status(Code::unavailable,
                  "it is on another host and accepts connections from its own host only; run this "
                  "command there");
  auto link = std::make_shared<Link>();
  link->since_ = Clock::now();
  link->to_ = address->id;
  std::string why;
  if (!network) {
    link->name_ = "this host";
    if (connect_on_host(link, why)) return link;
    // Copies of one machine may have one host id.
    if (address->endpoints.empty()) return Status(Code::unavailable, "cannot connect: " + why);
    link->name_.clear();
  }
  for (const Endpoint& endpoint : address->endpoints) {
    link->name_ += (link->name_.empty() ? "" : ", ") + to_text(endpoint);
    sockaddr_storage to;
    const socklen_t bytes = to_sockaddr(endpoint, to);
    const int fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || (::connect(fd, reinterpret_cast<const sockaddr*>(&to), bytes) != 0 &&
                   errno != EINPROGRESS)) {
      why = std::strerror(errno);
      if (fd >= 0) ::close(fd);
      continue;
    }
    set_options(fd, true);
    Wire* wire = add_wire(link, fd, true);
    if (!wire) {
      why = std::strerror(errno);
      continue;
    }
    wire->secure = std::make_unique<Secure>(Secure::Side::client, options_.key, address->id);
    wire->secure->begin(wire->out);
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
  bool busy = !dirty_.empty();
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
      busy = true;
    } else if (const auto found = wires_.find(serial); found != wires_.end()) {
      const auto [link, wire] = found->second;
      on_event(link, *wire, events[i].events);
      busy |= link->trusted_;
    }
  }
  if (ticked) tick();  // a process that was stopped reads proofs before it looks at the time
  return busy || count == kEventsMax;
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
