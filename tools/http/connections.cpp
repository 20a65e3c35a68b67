#include "tools/http/connections.hpp"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <utility>

namespace simplescale {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kConnectionsMax = 96;  // the process may open 128 files
constexpr size_t kRequestBytesMax = 8 << 10;
constexpr int kAcceptsMax = 8;  // in a round: the accepted ones come first
constexpr size_t kWorkers = 4;  // the file system may be slow
constexpr std::chrono::seconds kRequestTime{5}, kAnswerTime{10};
constexpr int kLookMs = 200;  // how often deadlines are checked
const std::string kTooLong =
    "HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: "
    "0\r\n\r\n";

struct Addresses {
  addrinfo* first = nullptr;
  ~Addresses() {
    if (first) freeaddrinfo(first);
  }
};

int bind_one(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  // Not SO_REUSEPORT: two supervisors on a host would share the port.
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(fd, address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  close(fd);
  return -1;
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  char port[16] = "";
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return -1;
  getnameinfo(reinterpret_cast<sockaddr*>(&address), bytes, nullptr, 0, port, sizeof port,
              NI_NUMERICSERV);
  return std::atoi(port);
}

}  // namespace

struct HttpConnections::Connection {
  explicit Connection(int socket) : fd(socket) {}
  ~Connection() { close(fd); }
  enum class Phase : unsigned char { request, asked, answer } phase = Phase::request;
  const int fd;
  uint64_t id = 0;
  Clock::time_point until = Clock::now() + kRequestTime;  // not in phase `asked`
  std::string text;                                       // the request, then the answer
  size_t sent = 0;
};

Result<std::unique_ptr<HttpConnections>> HttpConnections::listen(const std::string& host, int port,
                                                                 Answer answer) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  Addresses found;
  const std::string service = std::to_string(port);
  int listener = -1;
  if (getaddrinfo(host.c_str(), service.c_str(), &hints, &found.first) == 0)
    for (const addrinfo* one = found.first; one && listener < 0; one = one->ai_next)
      listener = bind_one(*one);
  if (listener < 0) return Status(Code::unavailable, "cannot listen at " + host + ":" + service);
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    close(listener);
    return system_error("cannot make", "an eventfd", errno);
  }
  return std::unique_ptr<HttpConnections>(
      new HttpConnections(listener, wake, port_of(listener), std::move(answer)));
}

HttpConnections::HttpConnections(int listener, int wake, int port, Answer answer)
    : listener_(listener), wake_(wake), port_(port), answer_(std::move(answer)) {
  threads_.emplace_back([this] { run(); });
  for (size_t i = 0; i < kWorkers; ++i) threads_.emplace_back([this] { work(); });
}

HttpConnections::~HttpConnections() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  asked_.notify_all();
  (void)!::eventfd_write(wake_, 1);
  for (std::thread& thread : threads_) thread.join();
  connections_.clear();
  close(listener_);
  close(wake_);
}

void HttpConnections::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    asked_.wait(lock, [&] { return stopping_ || !requests_.empty(); });
    if (stopping_) return;
    auto [id, request] = std::move(requests_.front());
    requests_.pop_front();
    lock.unlock();
    std::string answer = answer_(request);
    lock.lock();
    answers_.emplace_back(id, std::move(answer));
    (void)!::eventfd_write(wake_, 1);
  }
}

void HttpConnections::run() {
  std::vector<pollfd> polled;
  while (true) {
    const bool full = std::ranges::count(connections_, Connection::Phase::asked,
                                         &Connection::phase) == kConnectionsMax;
    polled.assign({{wake_, POLLIN, 0}, {full ? -1 : listener_, POLLIN, 0}});
    for (const auto& one : connections_)
      polled.push_back({one->fd,
                        static_cast<short>(one->phase == Connection::Phase::request  ? POLLIN
                                           : one->phase == Connection::Phase::answer ? POLLOUT
                                                                                     : 0),
                        0});
    ::poll(polled.data(), polled.size(), kLookMs);
    eventfd_t count = 0;
    ::eventfd_read(wake_, &count);
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    const auto now = Clock::now();
    size_t at = 2;
    std::erase_if(connections_, [&](const std::unique_ptr<Connection>& one) {
      const short events = polled[at++].revents;
      const bool late = one->phase != Connection::Phase::asked && now > one->until;
      const bool over = late || (events != 0 && !step(*one, events));
      if (over && one->phase == Connection::Phase::asked) forget(one->id);
      return over;
    });
    take_answers();
    if (polled[1].revents != 0) accept_all();
  }
}

void HttpConnections::accept_all() {
  static uint64_t ids = 0;
  for (int i = 0; i < kAcceptsMax && make_room(); ++i) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    connections_.push_back(std::make_unique<Connection>(fd));
    connections_.back()->id = ++ids;
    if (!read(*connections_.back())) connections_.pop_back();  // a request is often there already
  }
}

/// If all places are taken, drops the client that has had the most time to send its request, or to
/// take its answer. False: all connections wait for this server.
bool HttpConnections::make_room() {
  if (connections_.size() < kConnectionsMax) return true;
  for (const auto phase : {Connection::Phase::request, Connection::Phase::answer}) {
    const auto oldest =
        std::ranges::find_if(connections_, [&](const auto& one) { return one->phase == phase; });
    if (oldest == connections_.end()) continue;
    connections_.erase(oldest);
    return true;
  }
  return false;
}

void HttpConnections::take_answers() {
  std::deque<std::pair<uint64_t, std::string>> answers;
  {
    std::lock_guard lock(mutex_);
    answers.swap(answers_);
  }
  for (auto& [id, text] : answers) {
    const auto one = std::ranges::find_if(
        connections_, [&, id = id](const auto& connection) { return connection->id == id; });
    if (one == connections_.end()) continue;  // the client has closed the connection
    (*one)->phase = Connection::Phase::answer;
    (*one)->until = Clock::now() + kAnswerTime;
    (*one)->text = std::move(text);
  }
}

/// The client has gone away: without this, a client that comes back again and again would have any
/// number of requests wait for a slow answer.
void HttpConnections::forget(uint64_t id) {
  std::lock_guard lock(mutex_);
  std::erase_if(requests_, [&](const auto& request) { return request.first == id; });
}

/// False: the connection is over.
bool HttpConnections::step(Connection& connection, short events) {
  if (connection.phase == Connection::Phase::request) return read(connection);
  if (connection.phase == Connection::Phase::answer && (events & POLLOUT)) return write(connection);
  return (events & (POLLERR | POLLHUP)) == 0;
}

bool HttpConnections::read(Connection& connection) {
  std::array<char, 4096> chunk;
  const ssize_t got = recv(connection.fd, chunk.data(), chunk.size(), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  connection.text.append(chunk.data(), static_cast<size_t>(got));
  if (connection.text.find("\r\n\r\n") != std::string::npos) {
    connection.phase = Connection::Phase::asked;
    std::lock_guard lock(mutex_);
    requests_.emplace_back(connection.id, std::move(connection.text));
    asked_.notify_one();
  } else if (connection.text.size() > kRequestBytesMax) {
    connection.phase = Connection::Phase::answer;
    connection.text = kTooLong;
  }
  return true;
}

bool HttpConnections::write(Connection& connection) {
  const ssize_t put = send(connection.fd, connection.text.data() + connection.sent,
                           connection.text.size() - connection.sent, MSG_NOSIGNAL);
  if (put < 0) return errno == EAGAIN || errno == EINTR;
  connection.sent += static_cast<size_t>(put);
  if (connection.sent < connection.text.size()) return true;
  // Bytes that were not read would reset the connection, and the client would lose the answer.
  std::array<char, 4096> rest;
  for (int i = 0; i < 16 && recv(connection.fd, rest.data(), rest.size(), 0) > 0;) ++i;
  shutdown(connection.fd, SHUT_WR);
  return false;
}

}  // namespace simplescale
