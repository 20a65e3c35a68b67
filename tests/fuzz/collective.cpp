// COLLECTIVE-3: what arrives at the stream worker of a data plane, from a member and with headers of
// any kind.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/driver.hpp"
#include "transport/collective/stream_worker.hpp"

using namespace simplescale;
using namespace simplescale::collective;

namespace {

constexpr uint64_t kGeneration = 3, kName = 4, kExpected = 4;  // kExpected: streams 0 to 3
constexpr Secret kSecret{5, 6};
const stream::Id kMember{7};

/// One message of the input. flags: which fields are made right, so that mutations get behind the
/// first checks, and whether the caller reads the stream then.
struct Record {
  enum : uint32_t { member = 1, short_key = 2, next_offset = 4, read = 8, cut_header = 16 };
  StreamHeader header;
  uint32_t flags, bytes;
};

StreamWorker& worker() {
  static StreamWorker* const only = [] {
    auto* made = new StreamWorker;
    made->ring = [] {};
    if (!made->start(std::string(32, 'k')).ok()) abort();
    return made;
  }();
  return *only;
}

void check(const StreamMember& member) {
  size_t early = 0, ahead = 0;
  for (const auto& [key, stream] : member.incoming) {
    size_t held = 0, small = 0;
    for (const auto& piece : stream.pieces) {
      held += piece.bytes, early += piece.early;
      require(piece.early <= piece.bytes && piece.bytes <= piece.capacity);
      // Of two neighbours one is large, but for the two that a reader may hold.
      small = piece.bytes <= kStreamSmall / 2 ? small + 1 : 0;
      require(small <= 2);
    }
    require(held == stream.received - stream.read);
    require(stream.received <= stream.granted + kStreamEarly + member.early_read);
    ahead += stream.granted - std::min(stream.granted, stream.read);
  }
  require(early == member.early_held && early <= kStreamEarly);
  require(ahead <= kStreamBudget + kExpected * kStreamWindowMin);
  require(member.incoming.size() <= kStreamsMax);
}

void read(StreamWorker& tested, const StreamChannelPtr& channel, uint64_t key) {
  StreamMember& member = channel->members[1];
  const auto found = member.incoming.find(key);
  if (found == member.incoming.end() || found->second.pieces.empty()) return;
  StreamIncoming& stream = found->second;
  const auto& piece = stream.pieces.front();
  stream.read += piece.bytes;
  const bool credit = count_as_read(member, piece.early);
  stream.pieces.pop_front();
  if (credit) tested.give_credit(channel, 1);
  tested.grant(channel, 1, key);
}

}  // namespace

static void run(const uint8_t* data, size_t bytes) {
  StreamWorker& tested = worker();
  tested.channels.clear(), tested.connections.clear(), tested.by_link.clear();
  const auto link = std::make_shared<stream::Link>();
  const auto channel = std::make_shared<StreamChannel>(
      ChannelSpec{kGeneration, kName, kSecret, 0, {{}, stream::encode({kMember, {}, {}})}});
  tested.channels[{kGeneration, kName}] = channel;
  tested.connections[kMember].link = link;
  tested.by_link[link.get()] = kMember;
  StreamMember& member = channel->members[1];
  for (uint64_t key = 0; key < kExpected; ++key) member.incoming[key].expected = true;
  Record record;
  for (; bytes >= sizeof record && tested.by_link.contains(link.get());
       data += sizeof record, bytes -= sizeof record) {
    std::memcpy(&record, data, sizeof record);
    StreamHeader& header = record.header;
    if (record.flags & Record::member) {
      header.generation = kGeneration, header.name_hash = kName, header.secret = kSecret;
      header.from = 1, header.to = 0;
    }
    if (record.flags & Record::short_key) header.key %= 2 * kExpected;
    if (record.flags & Record::next_offset) {
      const auto stream = member.incoming.find(header.key);
      header.offset = stream == member.incoming.end() ? 0 : stream->second.received;
    }
    stream::Incoming message;
    message.header_bytes = record.flags & Record::cut_header ? 8 : sizeof header;
    std::memcpy(message.header.data(), &header, sizeof header);
    message.bytes = record.bytes % (2 * kStreamChunk);
    if (message.bytes > 0 && message.bytes <= kStreamChunk)  // larger ones are skipped before
      message.data = std::make_unique<uint64_t[]>((message.bytes + 7) / 8);
    tested.on_message(link, message);
    if (record.flags & Record::read) read(tested, channel, header.key);
    check(member);
  }
}

static std::vector<std::string> seeds() {
  const uint32_t good = Record::member | Record::short_key | Record::next_offset;
  const auto text = [](std::initializer_list<std::pair<StreamKind, uint32_t>> messages,
                       uint32_t flags) {
    std::string bytes;
    for (const auto& [kind, size] : messages) {
      Record record{};
      record.header.kind = kind;
      record.flags = flags, record.bytes = size;
      bytes.append(reinterpret_cast<const char*>(&record), sizeof record);
    }
    return bytes;
  };
  return {text({{StreamKind::hello, 0}, {StreamKind::acknowledge, 0}, {StreamKind::bye, 0}}, good),
          text({{StreamKind::announce, 0}, {StreamKind::data, 5000}, {StreamKind::data, 65536}},
               good | Record::read),
          text({{StreamKind::early, 65536},
                {StreamKind::early, 65536},
                {StreamKind::early, 65536},
                {StreamKind::early, 65536},
                {StreamKind::early, 1}},
               good),
          text({{StreamKind::early, 1},
                {StreamKind::early, 1},
                {StreamKind::early, 1},
                {StreamKind::early, 4096},
                {StreamKind::announce, 0},
                {StreamKind::early, 1}},
               good),
          text({{StreamKind::early, 100}, {StreamKind::grant, 0}, {StreamKind::credit, 0}},
               good | Record::read),
          text({{StreamKind::greeting, 16}, {StreamKind::data, 8}}, 0)};
}

static const FuzzTarget target("collective", run, seeds);
