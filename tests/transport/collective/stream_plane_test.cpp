// COLLECTIVE-3, and who may speak: a member that breaks the rules, a process with the key that is no
// member, a relay that changes bytes, and what UCX opens.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "collective_ranks.hpp"
#include "transport/collective/plane_address.hpp"
#include "transport/collective/stream_impl.hpp"

namespace simplescale::testing {
namespace {

using namespace collective;

const std::string kKey(32, 'k');

/// A process with the run's key that writes its own messages to the plane of rank 0.
struct Rogue {
  explicit Rogue(stream::Id host = {1, 2, 3}) {
    stream::MessengerOptions options;
    options.key = kKey;
    options.network = true;
    options.host = host;
    auto made = stream::Messenger::create(
        std::move(options),
        {[this](const stream::LinkPtr& from, stream::Incoming& message) { on(from, message); },
         [this](const stream::LinkPtr&, stream::End, const std::string&) { ++ended; }});
    REQUIRE(made.ok());
    messenger = made.take();
    id = stream::decode(messenger->address())->id;
  }
  /// As a member, or not.
  std::vector<uint8_t> address(const std::vector<uint8_t>& like) const {
    PlaneAddress own = *decode_plane(like);
    own.host_id = "elsewhere";
    own.stream = messenger->address();
    return encode_plane(own);
  }
  void connect(const std::vector<uint8_t>& victim) {
    connect(victim, StreamKind::greeting, {reinterpret_cast<const char*>(id.data()), id.size()});
  }
  /// With another first message.
  void connect(const std::vector<uint8_t>& victim, StreamKind kind, const std::string& data) {
    const WorkerAddress to = decode_plane(victim)->stream;
    link = messenger->connect(to).take();
    messenger->trust(link, 1 << 20);
    send({kind}, data);
  }
  void send(StreamHeader header, const std::string& data = "") {
    auto kept = std::make_shared<std::string>(data);
    messenger->send(link, {reinterpret_cast<const uint8_t*>(&header), sizeof header},
                    {reinterpret_cast<const uint8_t*>(kept->data()), kept->size()}, kept);
  }
  /// Of the communicator that the victim's last hello named.
  StreamHeader of(StreamKind kind, uint64_t key = 0, uint64_t offset = 0) const {
    StreamHeader header = hello;
    header.kind = kind, header.from = 1, header.to = 0, header.key = key, header.offset = offset;
    return header;
  }
  void on(const stream::LinkPtr& from, stream::Incoming& message) {
    if (!link) link = from, messenger->trust(link, 1 << 20);
    ++heard;
    StreamHeader header;
    std::memcpy(&header, message.header.data(), sizeof header);
    if (header.kind == StreamKind::hello) {
      hello = header;
      send(of(StreamKind::acknowledge));
      send(of(StreamKind::hello));
    }
    if (header.kind == StreamKind::announce) send(of(StreamKind::announce, header.key));
    if (header.kind == StreamKind::grant) granted[header.key] = header.offset;
    if (header.kind == StreamKind::credit) credit = header.offset;
    if (header.kind == StreamKind::announce || header.kind == StreamKind::early)
      seen.insert(header.key);
    if (header.kind == StreamKind::early) early_bytes += message.bytes;
    if (header.kind == StreamKind::data) data_bytes += message.bytes;
    if (header.kind != StreamKind::early) return;
    if (barrier == 0) barrier = header.key;
    last_key = header.key;
    if (header.key == barrier)
      send(of(StreamKind::early, header.key, header.offset),
           {reinterpret_cast<const char*>(message.data.get()), message.bytes});
  }
  void until(const std::function<bool()>& done) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!done()) {
      REQUIRE(std::chrono::steady_clock::now() < limit);
      messenger->progress();
    }
  }
  std::unique_ptr<stream::Messenger> messenger;
  stream::Id id;
  stream::LinkPtr link;
  StreamHeader hello{};
  // Of the victim's operations: the barrier in join(), in which the rogue repeats what the victim
  // sends, and the newest.
  uint64_t barrier = 0, last_key = 0;
  std::map<uint64_t, uint64_t> granted;    // bytes, by stream
  uint64_t credit = 0;                     // early bytes that the victim has read
  std::set<uint64_t> seen;                 // streams of the victim
  size_t early_bytes = 0, data_bytes = 0;  // from the victim
  int heard = 0, ended = 0;                // messages; connections
};

stream::Id stream_id(const std::vector<uint8_t>& plane) {
  return stream::decode(decode_plane(plane)->stream)->id;
}

/// A rogue that connects to the plane, or, without `calls`, to which the plane would connect.
std::unique_ptr<Rogue> rogue_for(const std::vector<uint8_t>& plane, bool calls,
                                 stream::Id host = {1, 2, 3}) {
  auto rogue = std::make_unique<Rogue>(host);
  while ((rogue->id < stream_id(plane)) != calls) rogue = std::make_unique<Rogue>(host);
  return rogue;
}

using Attack = std::function<void(Rogue&, const RankPlanes&)>;

/// Rank 0 joins with the rogue as rank 1 and does its work, of which the status is returned.
Status victim_of(const Attack& attack, const std::function<Status(Collective&)>& work, bool calls) {
  RankPlanes ranks("victim", {0}, 1 << 20, {kKey});
  const auto rogue = rogue_for(ranks.addresses[0], calls);
  const std::vector<uint8_t> member = rogue->address(ranks.addresses[0]);
  if (calls) rogue->connect(ranks.addresses[0]);
  std::atomic<bool> done = false;
  Status status;
  std::thread victim([&] {
    auto c = ranks.planes[0]->join({1, "world", 0, {ranks.addresses[0], member}, 20'000});
    status = c.ok() ? work(**c) : c.status();
    done = true;
  });
  attack(*rogue, ranks);
  rogue->until([&] { return done.load(); });
  victim.join();
  return status;
}

/// The work: to gather 8 bytes. attack: instead of the rogue's part in that.
Status victim_of(const Attack& attack, uint64_t* got, bool calls = true) {
  const auto wait_first = [&](Rogue& rogue, const RankPlanes& ranks) {
    rogue.until([&] { return rogue.last_key != rogue.barrier; });
    attack(rogue, ranks);
  };
  const auto work = [got](Collective& world) {
    const uint64_t mine = 42;
    uint64_t all[2] = {};
    const Status status = world.all_gather_bytes(&mine, all, sizeof mine)->wait();
    *got = all[1];
    return status;
  };
  return victim_of(wait_first, work, calls);
}

void gather(Rogue& rogue) {
  rogue.send(rogue.of(StreamKind::early, rogue.last_key), std::string(8, '\1'));
}

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
          victim_of([](Rogue& rogue, const RankPlanes&) { gather(rogue); }, &got, calls);
      CHECK(status.message() == "");
      CHECK(got == 0x0101010101010101);
    }
  }

  TEST_CASE("collective: COLLECTIVE-3, a member is granted a bounded number of bytes in all") {
    constexpr size_t kStreams = 20, kBytes = 4 << 20;
    size_t granted = 0;
    const Status status = victim_of(
        [&](Rogue& rogue, const RankPlanes&) {
          rogue.until([&] { return rogue.granted.size() == kStreams; });
          for (const auto& [key, bytes] : rogue.granted) granted += bytes;
          rogue.send(rogue.of(StreamKind::bye));
        },
        [&](Collective& world) {
          const std::vector<char> mine(kBytes);
          std::vector<char> all(2 * kBytes);  // nothing arrives
          std::vector<WorkPtr> work;
          for (size_t i = 0; i < kStreams; ++i)
            work.push_back(world.all_gather_bytes(mine.data(), all.data(), kBytes));
          return work[0]->wait();
        },
        true);
    CHECK(status.message().find("has left") != std::string::npos);
    CHECK(granted <= kStreamBudget + kStreams * kStreamWindowMin);
  }

  TEST_CASE("collective: COLLECTIVE-3, a rank sends no more than was granted, and little before") {
    constexpr size_t kStreams = 30, kSmall = 16 << 10, kLarge = 1 << 20;
    for (const size_t bytes : {kSmall, kLarge}) {
      const Status status = victim_of(
          [&](Rogue& rogue, const RankPlanes&) {
            rogue.until([&] { return rogue.seen.size() == kStreams + 1; });  // and the barrier's
            CHECK(rogue.early_bytes <= kStreamEarly);
            if (bytes == kLarge) {
              CHECK(rogue.data_bytes == 0);
              const uint64_t key = *rogue.seen.rbegin();
              for (const uint64_t offset : {uint64_t{1000}, uint64_t{100'000}}) {
                rogue.send(rogue.of(StreamKind::grant, key, offset));
                rogue.until([&] { return rogue.data_bytes >= offset; });
                CHECK(rogue.data_bytes == offset);
              }
            }
            rogue.send(rogue.of(StreamKind::bye));
          },
          [&](Collective& world) {
            const std::vector<char> mine(bytes);
            std::vector<char> all(2 * bytes);
            std::vector<WorkPtr> work;
            for (size_t i = 0; i < kStreams; ++i)
              work.push_back(world.all_gather_bytes(mine.data(), all.data(), bytes));
            return work[0]->wait();
          },
          true);
      CHECK(status.message().find("has left") != std::string::npos);
    }
  }

  TEST_CASE("collective: COLLECTIVE-3, early bytes that a rank has read may be sent again") {
    constexpr size_t kOperations = 5, kBytes = 8 << 10;
    const Status status = victim_of(
        [](Rogue& rogue, const RankPlanes&) {
          rogue.until([&] { return rogue.seen.size() == kOperations + 1; });  // and the barrier's
          CHECK(rogue.credit == 0);
          for (const uint64_t key : rogue.seen)
            if (key != rogue.barrier)
              rogue.send(rogue.of(StreamKind::early, key), std::string(kBytes, 'x'));
          rogue.until([&] { return rogue.credit >= kStreamEarly / 8; });
          CHECK(rogue.credit <= kOperations * kBytes + rogue.early_bytes);
        },
        [](Collective& world) {
          const std::vector<char> mine(kBytes);
          std::vector<char> all(2 * kBytes);
          std::vector<WorkPtr> work;
          for (size_t i = 0; i < kOperations; ++i)
            work.push_back(world.all_gather_bytes(mine.data(), all.data(), kBytes));
          Status status;
          for (const WorkPtr& each : work)
            if (Status ended = each->wait(); status.ok()) status = std::move(ended);
          return status;
        },
        true);
    CHECK(status.message() == "");
  }

  TEST_CASE("collective: what a link keeps of an operation goes with it") {
    // More operations than a member may have streams, and more bytes than may wait to be sent.
    constexpr size_t kOperations = kStreamsMax + 100, kBytes = 4 << 10;
    static_assert(kOperations * kBytes > 2 * kStreamCopies);
    RankPlanes ranks("each", {0, 1}, 1 << 20, {kKey, kKey});
    CHECK(on_ranks(2, [&](int rank) -> std::string {
            const auto joined = ranks.join(rank, 2, 1);
            Status status = joined.status();
            for (size_t i = 0; i < kOperations && status.ok(); ++i) {
              const std::string mine(kBytes, static_cast<char>('a' + i % 2 + 2 * size_t(rank)));
              std::string all(2 * kBytes, ' ');
              status = (*joined)->all_gather_bytes(mine.data(), all.data(), kBytes)->wait();
              if (status.ok() && all.substr(size_t(rank) * kBytes, kBytes) != mine)
                return "altered";
            }
            return status.message();
          }) == "");
  }

  TEST_CASE("collective: COLLECTIVE-3, who may connect, and what must be its first message") {
    RankPlanes ranks("greeting", {0}, 1 << 20, {kKey});
    const auto& plane = ranks.addresses[0];
    const auto is_closed = [&](std::unique_ptr<Rogue> rogue,
                               const std::function<void(Rogue&)>& in) {
      in(*rogue);
      rogue->until([&] { return rogue->ended > 0; });
    };
    is_closed(rogue_for(plane, true),
              [&](Rogue& rogue) { rogue.connect(plane, StreamKind::hello, "0123456789abcdef"); });
    for (const char* id : {"", "short", "a text that is longer than an id"})
      is_closed(rogue_for(plane, true),
                [&](Rogue& rogue) { rogue.connect(plane, StreamKind::greeting, id); });
    // Of two processes, that with the lower id connects.
    is_closed(rogue_for(plane, false), [&](Rogue& rogue) { rogue.connect(plane); });
    // Over a Unix socket, on which a process needs no key.
    const stream::Id host = stream::decode(decode_plane(plane)->stream)->host;
    is_closed(rogue_for(plane, true, host), [&](Rogue& rogue) {
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
                [&](Rogue& rogue, const RankPlanes&) {
                  secrets.insert(rogue.hello.secret);
                  gather(rogue);
                },
                &got)
                .ok());
    }
    CHECK(secrets.size() == 2);
  }

  TEST_CASE(
      "collective: COLLECTIVE-3, what nobody granted, or does not come next, ends its sender") {
    struct Case {
      const char* reason;
      Attack attack;
    };
    const Case cases[] = {
        {"what nobody has granted",
         [](Rogue& r, const RankPlanes&) {
           r.send(r.of(StreamKind::data, r.last_key), "12345678");
         }},
        {"what nobody has granted",
         [](Rogue& r, const RankPlanes&) { r.send(r.of(StreamKind::data, 99 << 16), "12345678"); }},
        {"not the next one",
         [](Rogue& r, const RankPlanes&) {
           r.send(r.of(StreamKind::early, r.last_key, 4), "1234");
         }},
        {"not the next one",
         [](Rogue& r, const RankPlanes&) {
           for (int i = 0; i < 2; ++i) r.send(r.of(StreamKind::early, r.last_key), "1234");
         }},
        {"too much before it was expected",
         [](Rogue& r, const RankPlanes&) {
           for (uint64_t i = 0; i < 5; ++i)
             r.send(r.of(StreamKind::early, (99 + i) << 16), std::string(kStreamChunk, 'x'));
         }},
        {"too much before it was expected",
         [](Rogue& r, const RankPlanes&) {
           for (uint64_t i = 0; i <= kStreamsMax; ++i)
             r.send(r.of(StreamKind::early, (99 + i) << 16), "x");
         }},
        {"too many streams",
         [](Rogue& r, const RankPlanes&) {
           for (uint64_t i = 0; i <= kStreamsMax; ++i)
             r.send(r.of(StreamKind::announce, (99 + i) << 16));
         }},
        {"too large",
         [](Rogue& r, const RankPlanes&) {
           r.send(r.of(StreamKind::early, r.last_key), std::string(kStreamChunk + 1, 'x'));
         }},
        {"has connected again",
         [](Rogue& r, const RankPlanes& ranks) { r.connect(ranks.addresses[0]); }},
        {"has left", [](Rogue& r, const RankPlanes&) { r.send(r.of(StreamKind::bye)); }},
        {"garbage",
         [](Rogue& r, const RankPlanes&) {
           r.messenger->send(r.link, std::span(r.id).first(3), {}, nullptr);
         }},
    };
    for (const auto& [reason, attack] : cases) {
      CAPTURE(reason);
      uint64_t got = 0;
      const Status status = victim_of(attack, &got);
      CHECK(status.code() == Code::unavailable);
      CHECK(status.message().find(reason) != std::string::npos);
      CHECK(status.message().find("rank 1") != std::string::npos);
    }
  }

  TEST_CASE("collective: bye, data and hellos of a process that is no member have no effect") {
    uint64_t got = 0;
    const Status status = victim_of(
        [](Rogue& member, const RankPlanes& ranks) {
          // With the run's key and the generation's secret, but not over the member's connection.
          const auto other = rogue_for(ranks.addresses[0], true);
          Rogue& outsider = *other;
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
          outsider.send(last);
          outsider.heard = 0;
          outsider.until([&] { return outsider.heard > 0; });
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
