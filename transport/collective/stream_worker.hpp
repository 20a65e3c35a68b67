// The worker of a data plane over encrypted TCP (transport/stream): one messenger and one thread,
// which connects, encrypts, decrypts and sends. It has connections of its own, so that collectives
// never delay the control plane.
//
// * Of two processes the one with the smaller id connects. The connection serves all channels of
//   the two; it proves that both have the run's key, and its server that it is the process with
//   this address. The end of a connection is the loss of its members, and a later generation
//   connects again.
// * The caller's memory is encrypted in place, one chunk at a time and all of it at once. So an
//   abort waits for at most one chunk, and what is left is not sent.
// * The chunks of the oldest operation are sent first, so that a later operation never blocks an
//   earlier one (COLLECTIVE-2 in operation.hpp).
//
//   COLLECTIVE-3  The bytes held for a member are bounded. A sender announces a stream, and sends
//                 as much of it as the receiver, which expects the stream, has granted. Small
//                 pieces may come early, up to a limit for each member. A piece that is not the
//                 next one of its stream, or that nobody granted, ends the member: it never stands
//                 for another piece.
//
// Its source files; no other includes this header, but data_plane.cpp and tests:
//   stream_worker.cpp       start, stop, a round of its thread
//   stream_connections.cpp  connections, hellos, the end of members
//   stream_messages.cpp     sending and receiving
//   stream_link.cpp         the Link that callers use
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/collective/worker_base.hpp"
#include "transport/stream/messenger.hpp"

namespace simplescale::collective {

inline constexpr size_t kStreamChunk = size_t{64} << 10;  // largest data of one message
inline constexpr size_t kStreamWindow = size_t{2} << 20;  // granted ahead, of one stream
inline constexpr size_t kStreamWindowMin = 2 * kStreamChunk;
inline constexpr size_t kStreamBudget = size_t{16} << 20;  // of a member; see kStreamWindowMin
inline constexpr size_t kStreamEarly = size_t{256} << 10;  // not granted, of a member
inline constexpr size_t kStreamCopies = size_t{1} << 20;   // that wait to be sent to a member
inline constexpr size_t kStreamsMax = 512;                 // of a member
inline constexpr size_t kStreamSmall = size_t{4} << 10;    // smaller pieces are merged

enum class StreamKind : uint32_t {
  greeting,     // the data is the sender's id
  hello,        // of a channel
  acknowledge,  // of a hello
  bye,
  announce,  // the stream `key` has data
  grant,     // bytes of the stream `key` up to `offset` may be sent
  credit,    // `offset` early bytes have been read in all
  early,     // a small piece that was not granted
  data,
};

/// The header of every message, in native byte order.
struct StreamHeader {
  StreamKind kind;
  uint16_t from, to;
  uint64_t generation, name_hash;
  uint64_t key, offset;
  Secret secret;
};
static_assert(sizeof(StreamHeader) <= stream::kHeaderMax);

struct StreamIncoming {
  struct Piece {
    std::unique_ptr<uint64_t[]> data;
    size_t bytes;
    size_t early;     // bytes of it that were not granted
    size_t capacity;  // of `data`
    size_t at = 0;    // bytes read
  };
  bool expected = false, announced = false;
  bool granting = false;  // grant() will be called
  uint64_t read = 0, received = 0, granted = 0;
  size_t window = 0;  // at the last grant
  std::deque<Piece> pieces;

  /// Adds what has arrived. A small piece is added to the one before, unless a reader may hold that:
  /// the bounds count bytes, and a piece costs more than its bytes.
  void add(std::unique_ptr<uint64_t[]> data, size_t bytes, bool early);
};

struct StreamOutgoing {
  struct Piece {
    uint64_t offset;
    Bytes data;
    std::shared_ptr<std::byte[]> copy;  // null: data is the caller's memory
    uint64_t ticket;
    size_t sent = 0;
  };
  bool announced = false;
  uint64_t granted = 0;
  std::deque<Piece> pieces;
};

struct StreamMember : RemoteMember {
  explicit StreamMember(const WorkerAddress& at);
  stream::Id id{};                                        // all zeros: the address is malformed
  std::unordered_map<uint64_t, StreamIncoming> incoming;  // by key
  std::map<uint64_t, StreamOutgoing> outgoing;            // by key, so the oldest operation first
  size_t waiting = 0;                                     // pieces in `outgoing`
  size_t copies = 0;                                      // bytes of copies in `outgoing`
  std::set<uint64_t> unreleased;                          // tickets
  uint64_t early_sent = 0, early_credit = 0;              // to the member
  uint64_t early_held = 0, early_read = 0, credit_sent = 0;  // from the member
};
using StreamChannel = ChannelOf<StreamMember>;
using StreamChannelPtr = std::shared_ptr<StreamChannel>;

struct StreamWorker final : WorkerBase<StreamMember> {
  /// With one other process.
  struct Connection {
    WorkerAddress address;  // of the other process
    bool opens = false;     // this process connects
    stream::LinkPtr link;   // null: not connected
    Clock::time_point retry{};
    std::optional<Clock::time_point> asked;  // the first hello since something was heard
    std::chrono::milliseconds patience{2000};
  };
  /// The next message to a member.
  struct Chunk {
    StreamHeader header;
    Bytes data;
    std::shared_ptr<const void> owner;  // of the data; null: the caller
    uint64_t ticket = 0;                // done with this chunk
  };

  stream::Id id{};
  std::unique_ptr<stream::Messenger> messenger;
  std::map<stream::Id, Connection> connections;
  std::unordered_map<const stream::Link*, stream::Id> by_link;
  std::atomic<bool> woken{false};
  size_t turn = 0;  // of the members in pump()

  /// key: of the run; see MessengerOptions. ring: called on the worker's thread when data arrived,
  /// was sent, or a member was lost.
  static Result<std::unique_ptr<StreamWorker>> create(const std::string& key,
                                                      std::function<void()> ring);
  ~StreamWorker() override { end(); }

  // --- Any thread ---

  const WorkerAddress& address() const override { return messenger->address(); }
  std::unique_ptr<Link> link(const ChannelPtr& channel, int peer, std::string peer_name) override;
  void wake() override {
    if (!woken.exchange(true)) messenger->signal();
  }

  // --- The worker's thread ---

  Status start(const std::string& key);
  bool progress() override;
  bool arm() override { return messenger->arm(); }
  int event_fd() const override { return messenger->event_fd(); }
  void flush() override;
  void clear(StreamMember& member) override;
  // stream_connections.cpp
  Connection* connection_of(const StreamMember& member);
  Status open(const stream::Id& to, Connection& connection);
  void greet(const stream::LinkPtr& link);
  void on_greeting(const stream::LinkPtr& link, const stream::Incoming& message);
  void send_hello(const StreamChannelPtr& channel, uint16_t to, Clock::time_point now) override;
  bool reopen_silent(const stream::Id& to, Connection& connection);
  void on_end(const stream::LinkPtr& link, const std::string& why);
  void fail_members(const stream::Id& id, const std::string& why);
  // stream_messages.cpp
  void send_bye(const StreamChannelPtr& channel, uint16_t to) override {
    send_control(StreamKind::bye, channel, to);
  }
  void send_control(StreamKind kind, const StreamChannelPtr& channel, uint16_t to, uint64_t key = 0,
                    uint64_t offset = 0);
  bool pump();
  bool pump(const Target& target, const stream::LinkPtr& link);
  std::optional<Chunk> take_chunk(const StreamChannelPtr& channel, uint16_t to);
  void on_message(const stream::LinkPtr& link, stream::Incoming& message);
  void receive(const StreamChannelPtr& channel, StreamMember& member, const StreamHeader& header,
               stream::Incoming& message);
  void receive_piece(StreamMember& member, const StreamHeader& header, stream::Incoming& message);
  void grant(const StreamChannelPtr& channel, uint16_t from, uint64_t key);
  void give_credit(const StreamChannelPtr& channel, uint16_t from);
};

/// Counts so many early bytes as read. Under the lock. True: give_credit() has work.
bool count_as_read(StreamMember& member, size_t early);

}  // namespace simplescale::collective
