// STREAM-2 and STREAM-3: connections of a messenger, and strangers below its handshake.
#include "transport/stream/messenger.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "tests/must.hpp"

using namespace simplescale;
using namespace simplescale::stream;

namespace {

const std::string kKey(32, 'k');
const Id kElsewhere{7};  // as if on another host

/// A messenger that keeps what has happened.
struct Node {
  explicit Node(MessengerOptions options) {
    auto made = Messenger::create(
        std::move(options), {[this](const LinkPtr& link, Incoming& message) {
                               from = link;
                               if (closes) messenger->close(link);
                               if (trusts) messenger->trust(link, 16 << 20);
                               ++messages;
                               bytes += message.bytes;
                               if (message.data)
                                 last.assign(reinterpret_cast<const char*>(message.data.get()),
                                             message.bytes);
                             },
                             [this](const LinkPtr& link, End end, const std::string& why) {
                               ended.push_back({link, end, why});
                             }});
    INFO(made.status().message());
    REQUIRE(made.ok());
    messenger = made.take();
  }
  static MessengerOptions on_network(Id host = this_host()) {
    MessengerOptions options;
    options.key = kKey;
    options.network = true;
    options.host = host;
    return options;
  }
  void send(const LinkPtr& link, const std::string& text) {
    auto kept = std::make_shared<std::string>(text);
    const uint8_t header[] = {1, 2, 3};
    messenger->send(link, header, {reinterpret_cast<const uint8_t*>(kept->data()), kept->size()},
                    kept);
  }
  Endpoint port() const { return decode(messenger->address())->endpoints.at(0); }

  struct Ended {
    LinkPtr link;
    End end;
    std::string why;
  };
  std::unique_ptr<Messenger> messenger;
  bool trusts = true, closes = false;
  LinkPtr from;
  int messages = 0;
  size_t bytes = 0;
  std::string last;
  std::vector<Ended> ended;
};

void until(std::initializer_list<Node*> nodes, const std::function<bool()>& done) {
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  while (!done()) {
    REQUIRE(Clock::now() < deadline);
    for (Node* node : nodes) node->messenger->progress();
  }
}

LinkPtr connect(Node& from, const Node& to) {
  return must(from.messenger->connect(to.messenger->address())).take();
}

/// A socket of a stranger, connected below the handshake.
int stranger(const Node& victim) {
  sockaddr_storage to;
  const socklen_t bytes = to_sockaddr(victim.port(), to);
  const int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(fd >= 0);
  REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&to), bytes) == 0);
  return fd;
}

/// True once the other side has closed the connection.
bool is_closed(int fd) {
  char byte;
  const ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN);
}

size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 8192; ++fd) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

void exchange(Node& a, Node& b) {
  const LinkPtr link = connect(a, b);
  a.send(link, "small");
  until({&a, &b}, [&] { return b.messages == 1; });
  CHECK(b.last == "small");
  a.send(link, std::string(5 << 20, 'x'));
  for (int i = 0; i < 1000; ++i) a.send(link, "many");
  until({&a, &b}, [&] { return b.messages == 1002; });
  CHECK(b.bytes == 5 + (5 << 20) + 4000);
  b.send(b.from, "back");
  until({&a, &b}, [&] { return a.messages == 1; });
  CHECK(a.last == "back");
  a.send(link, "goodbye");
  a.messenger->finish(link);
  // Over TCP, connections to this host's other addresses may have ended before.
  until({&a, &b}, [&] { return !b.ended.empty() && b.ended.back().link == b.from; });
  CHECK(b.last == "goodbye");
  CHECK(b.ended.back().end == End::lost);
  CHECK(a.ended.empty());
}

}  // namespace

TEST_CASE("stream: messages in both directions over Unix sockets and over TCP") {
  Node here(Node::on_network()), there(Node::on_network()), far(Node::on_network(kElsewhere));
  exchange(here, there);
  Node other(Node::on_network());
  exchange(other, far);
}

TEST_CASE("stream: after close() or finish() nothing more is delivered, and there is no on_end") {
  // Over TCP, connections to this host's other addresses may end as well.
  const auto told = [](const Node& node, const LinkPtr& of) {
    return std::ranges::any_of(node.ended, [&](const auto& end) { return end.link == of; });
  };
  for (const Id& host : {this_host(), kElsewhere}) {
    Node a(Node::on_network(host)), b(Node::on_network());
    const LinkPtr link = connect(a, b);
    a.send(link, "first");
    until({&a, &b}, [&] { return b.messages == 1; });
    b.send(b.from, "late");
    b.messenger->flush(10'000);
    a.messenger->finish(link);
    until({&a, &b}, [&] { return told(b, b.from); });
    CHECK(a.messages == 0);
    CHECK_FALSE(told(a, link));
    // The handler closes the link of the first of three messages that arrive together.
    const LinkPtr again = connect(a, b);
    b.closes = true;
    for (int i = 0; i < 3; ++i) a.send(again, "together");
    until({&a, &b}, [&] { return told(a, again); });
    CHECK(b.messages == 2);
    CHECK_FALSE(told(b, b.from));
    CHECK_FALSE(told(a, link));  // by now it has read that b closed it
  }
}

TEST_CASE("stream: a finished link is closed after a second, also if nobody reads from it") {
  Node writer({.key = kKey}), other({.key = kKey});
  const size_t before = open_descriptors();
  const LinkPtr link = connect(writer, other);
  writer.send(link, std::string(16 << 20, 'x'));
  writer.messenger->finish(link);
  writer.messenger->flush(60'000);
  CHECK(open_descriptors() == before);
}

TEST_CASE("stream: a process of another user is not accepted") {
  if (geteuid() != 0) return skipped("only root can act as a second user");
  Node victim({.key = kKey});
  sockaddr_storage to;
  const socklen_t bytes = to_sockaddr(decode(victim.messenger->address())->id, to);
  const pid_t child = fork();
  if (child == 0) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    char byte;
    _exit(setuid(65534) == 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&to), bytes) == 0 &&
                  read(fd, &byte, 1) == 0
              ? 0
              : 1);
  }
  int status = 1;
  until({&victim}, [&] { return waitpid(child, &status, WNOHANG) == child; });
  CHECK(status == 0);
  CHECK(victim.ended.empty());  // it has not been a connection that a deadline ends
}

TEST_CASE("stream: nothing is sent to a process of another user that has taken a name") {
  if (geteuid() != 0) return skipped("only root can act as a second user");
  // The name of a messenger that has ended, for example of an earlier process of the run.
  const Address address{.id = Id{11}, .host = this_host(), .endpoints = {}};
  sockaddr_storage at;
  const socklen_t bytes = to_sockaddr(address.id, at);
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    const bool listens = setuid(65534) == 0 &&
                         ::bind(listener, reinterpret_cast<sockaddr*>(&at), bytes) == 0 &&
                         ::listen(listener, 1) == 0 && write(ready[1], "x", 1) == 1;
    const int fd = listens ? ::accept(listener, nullptr, nullptr) : -1;
    char byte;
    _exit(fd >= 0 && read(fd, &byte, 1) == 0 ? 0 : 1);
  }
  ::close(ready[1]);
  char byte;
  CHECK(read(ready[0], &byte, 1) == 1);
  ::close(ready[0]);
  {
    Node node({.key = kKey});
    const auto link = node.messenger->connect(encode(address));
    CHECK(link.status().code() == Code::unavailable);
    CHECK(link.status().message() == "cannot connect: another user has this address now");
  }
  int status = 1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);  // the connection was closed, and no byte was sent
}

TEST_CASE("stream: without network there is no TCP socket, and other hosts are told so") {
  const auto listening = [] {
    size_t count = 0;
    for (const char* file : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
      std::ifstream lines(file);
      for (std::string line; std::getline(lines, line);) count += line.find(" 0A ") != line.npos;
    }
    return count;
  };
  const size_t before = listening();
  Node host({.key = kKey});
  CHECK(listening() == before);
  CHECK(decode(host.messenger->address())->endpoints.empty());
  Node far(Node::on_network(kElsewhere));
  const auto link = far.messenger->connect(host.messenger->address());
  CHECK(says(link.status(), Code::unavailable, "from its own host only"));
}

TEST_CASE("stream: STREAM-1, a process with another key is refused, and its data is not parsed") {
  MessengerOptions wrong = Node::on_network(kElsewhere);
  wrong.key = std::string(32, 'x');
  Node victim(Node::on_network()), rogue(wrong);
  rogue.send(connect(rogue, victim), "let me in");
  until({&victim, &rogue}, [&] { return !rogue.ended.empty() && !victim.ended.empty(); });
  CHECK(victim.ended[0].end == End::stranger);
  CHECK(victim.messages == 0);
  CHECK(rogue.ended[0].why.find("it is of another run, or it has ended") != std::string::npos);
}

TEST_CASE("stream: STREAM-2, garbage and half-open connections by the thousand keep no peer out") {
  MessengerOptions options = Node::on_network();
  options.strangers_max = 64;
  Node victim(options), guest(Node::on_network(kElsewhere));
  const size_t before = open_descriptors();
  std::vector<int> sockets;
  for (int i = 0; i < 1000; ++i) {
    sockets.push_back(stranger(victim));
    if (i % 2 == 0) (void)!write(sockets.back(), std::string(5000, 'x').data(), 5000);
    victim.messenger->progress();
  }
  guest.send(connect(guest, victim), "hello");
  until({&victim, &guest}, [&] { return victim.messages == 1; });
  CHECK(open_descriptors() <= before + 1000 + 64 + 2);
  for (const int fd : sockets) close(fd);
}

TEST_CASE("stream: STREAM-2, strangers are no work, after which a thread would poll for more") {
  Node victim(Node::on_network()), guest(Node::on_network(kElsewhere));
  const int quiet = stranger(victim), loud = stranger(victim);
  REQUIRE(write(loud, std::string(200, 'x').data(), 200) == 200);
  bool work = false;
  const auto progress_until = [&](const std::function<bool()>& done) {
    until({&guest}, [&] {
      work |= victim.messenger->progress();
      return done();
    });
  };
  progress_until([&] { return !victim.ended.empty(); });
  CHECK_FALSE(work);
  const auto link = connect(guest, victim);
  guest.send(link, "hello");
  progress_until([&] { return victim.messages == 1; });
  work = false;
  guest.send(link, "more");
  progress_until([&] { return victim.messages == 2; });
  CHECK(work);
  for (const int fd : {quiet, loud}) close(fd);
}

TEST_CASE("stream: STREAM-2, a flood from one address ends no connection of another address") {
  MessengerOptions options = Node::on_network();
  options.strangers_max = 8;
  Node victim(options);
  sockaddr_in local{};
  local.sin_family = AF_INET;
  local.sin_addr.s_addr =
      htonl(INADDR_LOOPBACK + 1);  // 127.0.0.2, another address than the flood's
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(victim.port().port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto connect_from = [&](bool other) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (other) REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&local), sizeof local) == 0);
    REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
    return fd;
  };
  const int slow = connect_from(true);
  std::vector<int> flood;
  for (int i = 0; i < 100; ++i) {
    flood.push_back(connect_from(false));
    victim.messenger->progress();
  }
  until({&victim}, [&] { return is_closed(flood[90]); });
  CHECK_FALSE(is_closed(slow));
  CHECK(victim.ended.size() >= 92);
  for (const int fd : flood) close(fd);
  close(slow);
}

TEST_CASE(
    "stream: STREAM-2, a flood from its own address does not end a peer that proves its key") {
  MessengerOptions options = Node::on_network();
  options.strangers_max = 8;
  Node victim(options);
  Secure peer(Secure::Side::client, kKey, decode(victim.messenger->address())->id);
  Buffer out, plain;
  peer.begin(out);
  const int fd = stranger(victim);
  REQUIRE(write(fd, out.data(), out.size()) == std::ssize(out));
  pollfd polled{fd, POLLIN, 0};
  until({&victim}, [&] { return poll(&polled, 1, 0) == 1; });  // the victim has answered the hello
  std::vector<int> flood;
  for (int i = 0; i < 100; ++i) {
    flood.push_back(stranger(victim));
    victim.messenger->progress();
  }
  until({&victim}, [&] { return is_closed(flood[90]); });
  uint8_t welcome[4096];
  const ssize_t got = recv(fd, welcome, sizeof welcome, MSG_DONTWAIT);
  REQUIRE(got > 0);
  out.clear();
  REQUIRE(peer.receive({welcome, static_cast<size_t>(got)}, plain, out));
  CHECK(peer.proven());
  CHECK_FALSE(is_closed(fd));
  for (const int each : flood) close(each);
  close(fd);
}

TEST_CASE("stream: a process of this host whose backlog is full is tried again") {
  Node victim({.key = kKey}), guest({.key = kKey});
  sockaddr_storage to;
  const socklen_t bytes = to_sockaddr(decode(victim.messenger->address())->id, to);
  std::vector<int> sockets;
  for (bool full = false; !full;) {
    REQUIRE(sockets.size() < 10'000);
    sockets.push_back(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    full = ::connect(sockets.back(), reinterpret_cast<sockaddr*>(&to), bytes) != 0;
    if (full) REQUIRE(errno == EAGAIN);
  }
  const LinkPtr link = connect(guest, victim);
  guest.send(link, "patience");
  guest.messenger->progress();
  CHECK(guest.ended.empty());
  for (const int fd : sockets) close(fd);
  until({&victim, &guest}, [&] { return victim.last == "patience"; });
}

TEST_CASE("stream: a connection to a process whose backlog stays full ends at its deadline") {
  Node stopped({.key = kKey}), guest({.key = kKey, .proof_ms = 100});
  sockaddr_storage to;
  const socklen_t bytes = to_sockaddr(decode(stopped.messenger->address())->id, to);
  std::vector<int> sockets;
  do {
    REQUIRE(sockets.size() < 10'000);
    sockets.push_back(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  } while (::connect(sockets.back(), reinterpret_cast<sockaddr*>(&to), bytes) == 0);
  connect(guest, stopped);
  until({&guest}, [&] { return !guest.ended.empty(); });
  CHECK(guest.ended[0].why == "it accepts no connections");
  for (const int fd : sockets) close(fd);
}

TEST_CASE("stream: STREAM-2, a connection without a proof ends at its deadline") {
  MessengerOptions options = Node::on_network();
  options.proof_ms = 100;
  Node victim(options), silent({.key = kKey});
  const int fd = stranger(victim);
  silent.send(connect(silent, victim), "on this host");
  victim.trusts = false;  // it does not prove more
  until({&victim, &silent}, [&] { return victim.ended.size() == 2 && is_closed(fd); });
  CHECK(victim.ended[0].why == "no proof of the run's key in time");
  close(fd);
}

TEST_CASE("stream: a trusted connection has no deadline") {
  Node victim({.key = kKey, .proof_ms = 100}), peer({.key = kKey}), silent({.key = kKey});
  peer.send(connect(peer, victim), "hello");
  until({&victim, &peer}, [&] { return victim.messages == 1; });
  connect(silent, victim);  // later, so its deadline is later
  until({&victim, &silent}, [&] { return !victim.ended.empty(); });
  CHECK(victim.ended.size() == 1);
  CHECK(victim.ended[0].link != victim.from);
}

TEST_CASE("stream: STREAM-2, without descriptors strangers end, or the listener waits") {
  for (const rlim_t left : {0, 2}) {  // of the eight that can be accepted
    Node victim(Node::on_network());
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    std::vector<int> sockets;
    for (int i = 0; i < 8; ++i) sockets.push_back(stranger(victim));
    const int highest = dup(0);
    close(highest);
    rlimit none = before;
    none.rlim_cur = static_cast<rlim_t>(highest) + left;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    for (int i = 0; i < 20; ++i) victim.messenger->progress();
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(victim.ended.empty() == (left == 0));  // no connection could make room
    for (const Node::Ended& end : victim.ended) CHECK(end.why == "no descriptors are left");
    for (const int fd : sockets) close(fd);
    Node guest(Node::on_network(kElsewhere));
    guest.send(connect(guest, victim), "hello");
    until({&victim, &guest}, [&] { return victim.messages == 1; });
  }
}

TEST_CASE("stream: STREAM-2, before trust() only small messages are taken") {
  Node victim({.key = kKey}), rogue({.key = kKey});
  victim.trusts = false;
  const LinkPtr link = connect(rogue, victim);
  rogue.send(link, std::string(8 << 10, 'x'));
  until({&victim, &rogue}, [&] { return victim.messages == 1; });
  rogue.send(link, std::string((8 << 10) + 1, 'x'));
  until({&victim, &rogue}, [&] { return victim.ended.size() == 1; });
  CHECK(victim.ended[0].end == End::malformed);
  CHECK(victim.messages == 1);
}

TEST_CASE("stream: STREAM-3, what a killed process sent arrives, then the end of its connection") {
  for (const bool network : {false, true}) {
    Node victim(Node::on_network());
    const pid_t child = fork();
    if (child == 0) {
      Node node(network ? Node::on_network(kElsewhere) : MessengerOptions{.key = kKey});
      const LinkPtr link = connect(node, victim);
      node.send(link, "last words");
      node.messenger->flush(10'000);
      raise(SIGKILL);
    }
    REQUIRE(child > 0);
    until({&victim}, [&] { return victim.from && victim.ended.size() > 0; });
    until({&victim}, [&] { return victim.ended.back().link == victim.from; });
    CHECK(victim.last == "last words");
    CHECK(victim.ended.back().end == End::lost);
    waitpid(child, nullptr, 0);
  }
}
