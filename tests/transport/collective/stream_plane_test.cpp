// Who may speak: a member, a process with the key that is no member, a relay that changes bytes, and
// what UCX opens.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>

#include "rogue_member.hpp"

namespace simplescale::testing {
namespace {

/// Ports on which this process listens, by address.
std::multiset<std::string> listening() {
  std::set<std::string> mine;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    mine.insert(std::filesystem::read_symlink(entry.path(), error).string());
  }
  std::multiset<std::string> found;
  for (const char* file : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, word, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> word;
      words >> inode;
      if (state == "0A" && mine.contains("socket:[" + inode + "]"))
        found.insert(local.substr(0, local.find(':')));
    }
  }
  return found;
}

/// Passes a connection on to a port, and changes one byte on the way there.
struct Relay {
  explicit Relay(stream::Endpoint to, size_t change_at) {
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0);
    REQUIRE(listen(listener, 16) == 0);
    socklen_t bytes = sizeof any;
    getsockname(listener, reinterpret_cast<sockaddr*>(&any), &bytes);
    port = ntohs(any.sin_port);
    thread = std::thread([this, to, change_at] { run(to, change_at); });
  }
  ~Relay() {
    stop = true;
    thread.join();
    close(listener);
  }
  void run(const stream::Endpoint& to, size_t change_at) {
    std::vector<std::pair<int, int>> pairs;
    std::vector<char> buffer(64 << 10);
    size_t passed = 0;
    while (!stop) {
      std::vector<pollfd> events{{listener, POLLIN, 0}};
      for (const auto& [a, b] : pairs)
        events.push_back({a, POLLIN, 0}), events.push_back({b, POLLIN, 0});
      if (poll(events.data(), events.size(), 10) <= 0) continue;
      for (size_t i = 0; i < pairs.size(); ++i)
        for (const bool there : {true, false}) {
          if (!events[1 + 2 * i + !there].revents) continue;
          auto& [a, b] = pairs[i];
          const ssize_t got = recv(there ? a : b, buffer.data(), buffer.size(), MSG_DONTWAIT);
          if (got <= 0) {
            shutdown(a, SHUT_RDWR), shutdown(b, SHUT_RDWR);
            continue;
          }
          if (there && change_at >= passed && change_at < passed + static_cast<size_t>(got))
            buffer[change_at - passed] ^= 0x10, changed = true;
          if (there) passed += static_cast<size_t>(got);
          (void)!::send(there ? b : a, buffer.data(), static_cast<size_t>(got), MSG_NOSIGNAL);
        }
      if (!events[0].revents) continue;
      sockaddr_storage address;
      const socklen_t bytes = stream::to_sockaddr(to, address);
      const int a = accept(listener, nullptr, nullptr),
                b = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(b, reinterpret_cast<sockaddr*>(&address), bytes) == 0) pairs.emplace_back(a, b);
    }
    for (const auto& [a, b] : pairs) close(a), close(b);
  }
  int listener;
  uint16_t port = 0;
  std::atomic<bool> stop = false, changed = false;
  std::thread thread;
};

/// Two ranks sum over a relay that changes the byte at `change_at`. Returns whether it did.
bool sum_over_relay(size_t change_at) {
  RankPlanes ranks("relay", {0, 1}, 1 << 20, {kKey, kKey});
  const int client = stream_id(ranks.addresses[0]) < stream_id(ranks.addresses[1]) ? 0 : 1,
            server = 1 - client;
  PlaneAddress real = *decode_plane(ranks.addresses[static_cast<size_t>(server)]);
  stream::Address address = *stream::decode(real.stream);
  Relay relay(address.endpoints.at(0), change_at);
  address.endpoints = {{{127, 0, 0, 1}, relay.port}};
  real.stream = stream::encode(address);
  std::atomic<int> failures = 0;
  const std::string errors = on_ranks(2, [&](int rank) -> std::string {
    auto members = ranks.addresses;
    if (rank == client) members[static_cast<size_t>(server)] = encode_plane(real);
    // The second generation finds a relay that changes nothing more.
    for (const uint64_t generation : {1u, 2u}) {
      auto c = ranks.planes[static_cast<size_t>(rank)]->join(
          {generation, "world", rank, members, generation == 1 ? 2'000 : 20'000});
      std::vector<float> data(200'000, static_cast<float>(rank + 1));
      Status status = c.status();
      if (c.ok()) status = (*c)->all_reduce(data.data(), data.size(), DType::f32)->wait();
      if (!status.ok()) {
        if (generation == 2) return status.message();
        ++failures;
        ranks.planes[static_cast<size_t>(rank)]->abort(1, "a rank has failed");
        continue;
      }
      for (const float x : data)
        if (x != 3.0f) return "an altered sum";
    }
    return "";
  });
  CHECK(errors == "");
  // What is changed while they join is sent again over a new connection.
  CHECK((failures > 0 || !relay.changed || change_at < 2'000));
  return relay.changed;
}

}  // namespace

TEST_SUITE("collective stream") {
  TEST_CASE("collective: COLLECTIVE-3, a member that keeps the rules takes part") {
    uint64_t got = 0;
    for (const bool calls : {true, false}) {
      const Status status =
          victim_of([](RogueMember& rogue, const RankPlanes&) { gather(rogue); }, &got, calls);
      CHECK(status.message() == "");
      CHECK(got == 0x0101010101010101);
    }
  }

  TEST_CASE("collective: COLLECTIVE-3, who may connect, and what must be its first message") {
    RankPlanes ranks("greeting", {0}, 1 << 20, {kKey});
    const auto& plane = ranks.addresses[0];
    const auto is_closed = [&](std::unique_ptr<RogueMember> rogue,
                               const std::function<void(RogueMember&)>& in) {
      in(*rogue);
      rogue->until([&] { return rogue->ended > 0; });
    };
    is_closed(rogue_for(plane, true), [&](RogueMember& rogue) {
      rogue.connect(plane, StreamKind::hello, "0123456789abcdef");
    });
    for (const char* id : {"", "short", "a text that is longer than an id"})
      is_closed(rogue_for(plane, true),
                [&](RogueMember& rogue) { rogue.connect(plane, StreamKind::greeting, id); });
    // Of two processes, that with the lower id connects.
    is_closed(rogue_for(plane, false), [&](RogueMember& rogue) { rogue.connect(plane); });
    // Over a Unix socket, on which a process needs no key.
    const stream::Id host = stream::decode(decode_plane(plane)->stream)->host;
    is_closed(rogue_for(plane, true, host), [&](RogueMember& rogue) {
      rogue.connect(plane);
      CHECK_FALSE(rogue.link->is_encrypted());
    });
  }

  TEST_CASE("collective: the same generation of other members has another secret") {
    // The two rogues have the run's key and know generation and name, as a stale process does.
    std::set<Secret> secrets;
    for (int i = 0; i < 2; ++i) {
      uint64_t got = 0;
      CHECK(victim_of(
                [&](RogueMember& rogue, const RankPlanes&) {
                  secrets.insert(rogue.hello.secret);
                  gather(rogue);
                },
                &got)
                .ok());
    }
    CHECK(secrets.size() == 2);
  }

  TEST_CASE("collective: bye, data and hellos of a process that is no member have no effect") {
    uint64_t got = 0;
    const Status status = victim_of(
        [](RogueMember& member, const RankPlanes& ranks) {
          // With the run's key and the generation's secret, but not over the member's connection.
          auto other = rogue_for(ranks.addresses[0], true);
          RogueMember& outsider = *other;
          outsider.hello = member.hello;
          outsider.connect(ranks.addresses[0]);
          for (const StreamKind kind : {StreamKind::early, StreamKind::data, StreamKind::grant,
                                        StreamKind::credit, StreamKind::hello, StreamKind::bye})
            outsider.send(outsider.of(kind, member.last_key), "87654321");
          // Without the generation's secret, over the member's connection: as a stale process.
          const Secret secret = member.hello.secret;
          member.hello.secret[0] ^= 1;
          for (const StreamKind kind : {StreamKind::early, StreamKind::bye})
            member.send(member.of(kind, member.last_key), "87654321");
          member.hello.secret = secret;
          // To another rank.
          StreamHeader misled = member.of(StreamKind::bye);
          misled.to = 1;
          member.send(misled);
          // Of a generation that does not exist.
          StreamHeader unknown = member.of(StreamKind::bye);
          ++unknown.generation;
          member.send(unknown);
          // The victim answers a hello of a generation that it has not joined, so it has read the
          // messages before.
          StreamHeader last = outsider.of(StreamKind::hello);
          ++last.generation;
          const auto until_read = [&](RogueMember& by) {
            by.send(last);
            by.heard = 0;
            by.until([&] { return by.heard > 0; });
          };
          until_read(outsider);
          other.reset();  // nor has its end
          const auto later = rogue_for(ranks.addresses[0], true);
          later->connect(ranks.addresses[0]);
          until_read(*later);
          gather(member);
        },
        &got);
    CHECK(status.message() == "");
    CHECK(got == 0x0101010101010101);
  }

  TEST_CASE("collective: without a trusted network UCX opens nothing, with one only there") {
    const auto before = listening();
    {
      RankPlanes ranks("closed", {0});
      CHECK(listening().size() == before.size() + 1);  // the stream's
    }
    RankPlanes ranks("open", {0}, 1 << 20, {kKey}, {"lo"});
    auto now = listening();
    for (const auto& address : before) now.erase(now.find(address));
    CHECK(now.size() >= 2);
    CHECK(now.count("0100007F") == now.size() - 1);
  }

  TEST_CASE("collective: a relay that changes a byte ends the connection; no sum is altered") {
    int changed = 0;
    for (const size_t at : {0, 30, 100, 150, 250, 1'000, 20'000, 100'000, 399'999, 500'000})
      changed += sum_over_relay(at);
    CHECK(changed >= 8);
  }
}

}  // namespace simplescale::testing
