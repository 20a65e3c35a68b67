// A member of a communicator that writes its own messages: for tests of what a rank sends, and of
// what it takes.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <map>
#include <set>

#include "collective_ranks.hpp"
#include "transport/collective/plane_address.hpp"
#include "transport/collective/stream_worker.hpp"

namespace simplescale::testing {

using namespace collective;

inline const std::string kKey(32, 'k');

/// A process with the run's key that writes its own messages to the plane of rank 0.
struct RogueMember {
  explicit RogueMember(stream::Id host = {1, 2, 3}) {
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
    last_kind = header.kind;
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
    if (header.kind == StreamKind::early || header.kind == StreamKind::data)
      content[header.key].append(reinterpret_cast<const char*>(message.data.get()), message.bytes);
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
  std::map<uint64_t, uint64_t> granted;     // bytes, by stream
  uint64_t credit = 0;                      // early bytes that the victim has read
  std::map<uint64_t, std::string> content;  // of the victim's streams
  std::set<uint64_t> seen;                  // streams of the victim
  size_t early_bytes = 0, data_bytes = 0;   // from the victim
  StreamKind last_kind{};                   // of the last message
  int heard = 0, ended = 0;                 // messages; connections
};

inline stream::Id stream_id(const std::vector<uint8_t>& plane) {
  return stream::decode(decode_plane(plane)->stream)->id;
}

/// A rogue that connects to the plane, or, without `calls`, to which the plane would connect.
inline std::unique_ptr<RogueMember> rogue_for(const std::vector<uint8_t>& plane, bool calls,
                                              stream::Id host = {1, 2, 3}) {
  auto rogue = std::make_unique<RogueMember>(host);
  while ((rogue->id < stream_id(plane)) != calls) rogue = std::make_unique<RogueMember>(host);
  return rogue;
}

using Attack = std::function<void(RogueMember&, const RankPlanes&)>;

/// Rank 0 joins with the rogue as rank 1 and does its work, of which the status is returned.
inline Status victim_of(const Attack& attack, const std::function<Status(Collective&)>& work,
                        bool calls) {
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
inline Status victim_of(const Attack& attack, uint64_t* got, bool calls = true) {
  const auto wait_first = [&](RogueMember& rogue, const RankPlanes& ranks) {
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

inline void gather(RogueMember& rogue) {
  rogue.send(rogue.of(StreamKind::early, rogue.last_key), std::string(8, '\1'));
}

}  // namespace simplescale::testing
