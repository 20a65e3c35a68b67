// COLLECTIVE-3: what arrives at the UCX worker of a data plane, on a trusted network. UCX itself is
// not started: the pieces that it would fetch are only counted.
#include <array>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/driver.hpp"
#include "transport/collective/ucx_worker.hpp"

using namespace simplescale;
using namespace simplescale::collective;

namespace {

constexpr uint64_t kGeneration = 3, kName = 4, kExpected = 4;  // kExpected: streams 0 to 3
constexpr Secret kSecret{5, 6};

/// One message of the input. flags: which fields are made right, so that mutations get behind the
/// first checks, and what happens then.
struct Record {
  enum : uint32_t {
    member = 1,
    short_key = 2,
    small_offset = 4,
    announced = 8,
    fetch = 16,
    read = 32,
    no_secret = 64
  };
  UcxHeader header;
  uint32_t flags, bytes;
};

UcxWorker& worker() {
  static UcxWorker* const only = [] {
    auto* made = new UcxWorker;
    made->ring = [] {};
    return made;
  }();
  return *only;
}

void check(const UcxMember& member) {
  size_t early = 0;
  for (const auto& [key, stream] : member.streams) {
    size_t pooled = 0;
    for (const auto& [offset, piece] : stream.pieces)
      piece->pooled ? ++pooled : early += piece->cost();
    require(stream.announced.size() <= std::size(member.queues) * kUcxWindow);
    for (const auto& piece : stream.announced) require(piece.bytes <= kUcxFragment);
    require(pooled <= kUcxHeld + 1);  // 1: the piece that is read next
  }
  require(early == member.early && early <= kUcxEarly);
  require(member.streams.size() <= kUcxStreamsMax);
}

/// What the worker holds for the member: streams, pieces of the stream `key`, announced ones.
std::array<size_t, 3> held(const UcxMember& member, uint64_t key) {
  const auto stream = member.streams.find(key);
  if (stream == member.streams.end()) return {member.streams.size(), 0, 0};
  return {member.streams.size(), stream->second.pieces.size(), stream->second.announced.size()};
}

/// As fetch_next(), without UCX.
void fetch(UcxStream& stream) {
  while (const auto next = stream.take_next()) {
    auto piece = std::make_shared<UcxPiece>();
    piece->bytes = next->bytes;
    piece->complete = piece->pooled = true;
    stream.pieces.emplace(next->offset, std::move(piece));
  }
}

/// As UcxLink::pop() of a whole piece.
void read(UcxMember& member, UcxStream& stream) {
  const auto first = stream.pieces.begin();
  if (first == stream.pieces.end() || first->first != stream.read) return;
  stream.read += first->second->bytes;
  if (!first->second->pooled) member.early -= first->second->cost();
  stream.pieces.erase(first);
}

}  // namespace

static void run(const uint8_t* data, size_t bytes) {
  static const std::string payload(kUcxFragment, 'p');
  UcxWorker& tested = worker();
  const auto channel =
      std::make_shared<UcxChannel>(ChannelSpec{kGeneration, kName, kSecret, 0, {{}, {7}}});
  tested.channels = {{{kGeneration, kName}, channel}};
  UcxMember& member = channel->members[1];
  for (uint64_t key = 0; key < kExpected; ++key) member.streams[key].expected = true;
  Record record;
  for (; bytes >= sizeof record; data += sizeof record, bytes -= sizeof record) {
    std::memcpy(&record, data, sizeof record);
    UcxHeader& header = record.header;
    if (record.flags & Record::member) {
      header.generation = kGeneration, header.name_hash = kName, header.secret = kSecret;
      header.from = 1, header.to = 0;
    }
    if (record.flags & Record::no_secret) header.secret = {};
    if (record.flags & Record::short_key) header.key %= 2 * kExpected;
    if (record.flags & Record::small_offset) header.offset %= 64;
    const bool announced = record.flags & Record::announced;
    const size_t size = record.bytes % (announced ? 2 * kUcxFragment : payload.size());
    std::string copy = payload.substr(0, announced ? 0 : size);
    const auto found = member.streams.find(header.key);
    const bool repeated = found != member.streams.end() && header.offset < found->second.read;
    const auto before = held(member, header.key);
    const bool was_ok = member.broken.ok();
    const ucs_status_t status = tested.on_message(header, copy.data(), size, announced);
    require(status == UCS_OK || (announced && status == UCS_INPROGRESS));
    require(tested.commands.size() <= 1);
    tested.commands.clear();
    if (repeated || header.secret != kSecret) require(held(member, header.key) == before);
    if (header.secret != kSecret) require(member.broken.ok() == was_ok);
    if (const auto stream = member.streams.find(header.key); stream != member.streams.end()) {
      if (record.flags & Record::fetch) fetch(stream->second);
      if (record.flags & Record::read) read(member, stream->second);
    }
    check(member);
  }
}

static std::vector<std::string> seeds() {
  const uint32_t good = Record::member | Record::short_key | Record::small_offset;
  using Message = std::pair<UcxKind, uint32_t>;
  const auto text = [](const std::vector<Message>& messages, uint32_t flags) {
    std::string bytes;
    uint64_t offset = 0, key = 0;
    for (const auto& [kind, size] : messages) {
      Record record{};
      record.header.kind = kind;
      record.header.offset = offset++;
      if (!(flags & Record::short_key)) record.header.key = key++;
      record.flags = flags, record.bytes = size;
      bytes.append(reinterpret_cast<const char*>(&record), sizeof record);
    }
    return bytes;
  };
  const Message one{UcxKind::data, 1}, large{UcxKind::data, 1 << 20};
  return {text({{UcxKind::hello, 0}, {UcxKind::acknowledge, 0}, {UcxKind::bye, 0}}, good),
          text({one, one, {UcxKind::data, 5000}, one}, good),
          text({one, one, one, one}, good | Record::read),
          text(std::vector<Message>(20, large), good | Record::announced),
          text(std::vector<Message>(20, large), good | Record::announced | Record::fetch),
          text(std::vector<Message>(600, one), Record::member),
          text(std::vector<Message>(70, {UcxKind::data, (1 << 20) - 1}),
               Record::member | Record::short_key),
          text({one, one, {UcxKind::bye, 0}}, good | Record::no_secret),
          text({large, one, large, one}, good | Record::announced | Record::fetch | Record::read),
          text({one, one}, Record::announced)};
}

static const FuzzTarget target("ucx", run, seeds);
