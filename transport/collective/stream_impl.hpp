// The implementation of StreamWorker. Only its source files include this header:
//   stream_worker.cpp       the thread and its loop
//   stream_connections.cpp  connections, hellos, the end of members
//   stream_messages.cpp     sending and receiving
//   stream_link.cpp         the Link that callers use
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/collective/stream_worker.hpp"
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

struct StreamMember {
  WorkerAddress address;  // empty: not reached by this worker
  stream::Id id{};
  bool acknowledged = false;
  std::string unjoined = "has not connected";  // why it has not acknowledged
  Status broken;
  std::unordered_map<uint64_t, StreamIncoming> incoming;  // by key
  std::map<uint64_t, StreamOutgoing> outgoing;            // by key, so the oldest operation first
  size_t waiting = 0;                                     // pieces in `outgoing`
  size_t copies = 0;                                      // bytes of copies in `outgoing`
  std::set<uint64_t> unreleased;                          // tickets
  uint64_t early_sent = 0, early_credit = 0;              // to the member
  uint64_t early_held = 0, early_read = 0, credit_sent = 0;  // from the member

  /// Marks the member as broken; the first reason stays.
  void fail(const std::string& why) {
    if (broken.ok()) broken = Status(Code::unavailable, why);
  }
};

/// The worker's lock guards `members` and `tickets`.
struct StreamChannel final : Channel {
  explicit StreamChannel(const ChannelSpec& spec);
  std::vector<StreamMember> members;  // by rank
  uint64_t tickets = 0;
};
using StreamChannelPtr = std::shared_ptr<StreamChannel>;

/// `lock` guards the channels' contents, `channels` and `commands`. Only the worker's thread uses
/// the rest, if not said otherwise.
struct StreamWorker::Impl {
  using Clock = std::chrono::steady_clock;
  /// With one other process.
  struct Connection {
    WorkerAddress address;  // of the other process
    bool opens = false;     // this process connects
    stream::LinkPtr link;   // null: not connected
    Clock::time_point retry{};
    std::optional<Clock::time_point> asked;  // the first hello since something was heard
    std::chrono::milliseconds patience{2000};
  };
  using Target = std::pair<StreamChannelPtr, uint16_t>;  // a channel's member
  /// The next message to a member.
  struct Chunk {
    StreamHeader header;
    Bytes data;
    std::shared_ptr<const void> owner;  // of the data; null: the caller
    uint64_t ticket = 0;                // done with this chunk
  };

  std::function<void()> ring;
  stream::Id id{};
  std::unique_ptr<stream::Messenger> messenger;
  std::map<stream::Id, Connection> connections;
  std::unordered_map<const stream::Link*, stream::Id> by_link;
  Clock::time_point next_hello = Clock::time_point::max();
  std::atomic<int> spin_us{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> woken{false};
  size_t turn = 0;  // of the members in pump()
  std::thread thread;

  std::mutex lock;
  std::map<std::pair<uint64_t, uint64_t>, StreamChannelPtr> channels;
  std::vector<std::function<void()>> commands;

  // --- Any thread ---

  void wake() {
    if (!woken.exchange(true)) messenger->signal();
  }
  void post(std::function<void()> command) {
    {
      std::lock_guard guard(lock);
      commands.push_back(std::move(command));
    }
    wake();
  }

  // --- The worker's thread ---

  Status start(const std::string& key);
  void run();
  bool run_commands();
  // stream_connections.cpp
  Connection* connection_of(const StreamMember& member);
  Status open(const stream::Id& to, Connection& connection);
  void greet(const stream::LinkPtr& link);
  void on_greeting(const stream::LinkPtr& link, const stream::Incoming& message);
  void send_hellos();
  bool reopen_silent(const stream::Id& to, Connection& connection);
  bool has_acknowledged(const stream::Id& id);
  void on_end(const stream::LinkPtr& link, const std::string& why);
  void fail_members(const stream::Id& id, const std::string& why);
  void end_channel(const StreamChannelPtr& channel, bool graceful);
  // stream_messages.cpp
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
