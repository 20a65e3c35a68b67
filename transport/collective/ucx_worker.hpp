// The worker of a data plane over UCX: one context, one worker, one thread that sleeps on the
// worker's event descriptor. It exchanges active messages with processes on other hosts. UCX does
// not protect them, so it is used only on networks that the configuration trusts.
//
// Only the worker's thread calls UCX. Other threads take the lock, post a command and signal the
// worker. A thread that waits for data sleeps on the plane's doorbell, which the worker's thread
// rings.
//
// * UCX never sees the caller's memory. The thread copies data to send into its own buffers and
//   receives into its own buffers. So an abort neither waits for UCX nor closes a connection;
//   messages of a dead channel that are in flight are dropped on arrival.
// * Every channel has two queues for each member, one for the oldest operation and one for the
//   others. Each has its own limit of fragments in flight, so a later operation never blocks an
//   earlier one (COLLECTIVE-2 in operation.hpp).
// * The bytes held for a member are bounded: what it announces is fetched while this process
//   expects the stream and reads it, small pieces that come early have a limit. A member that
//   exceeds one is lost.
//
// Its source files; no other includes this header, but data_plane.cpp and tests:
//   ucx_worker.cpp    start, stop, a round of its thread; its connections
//   ucx_messages.cpp  sending and receiving
//   ucx_link.cpp      the Link that callers use
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/collective/worker_base.hpp"
#include "transport/ucx/ucx.hpp"

namespace simplescale::collective {

inline constexpr unsigned kUcxMessageId = 1;
inline constexpr uint32_t kUcxMagic = 0x31637353;
inline constexpr size_t kUcxFragment = size_t{1} << 20;  // largest part of a piece in one message
inline constexpr size_t kUcxEarly = size_t{64} << 20;    // small pieces that wait for the caller
inline constexpr size_t kUcxWindow = 8;                  // fragments of one queue in flight
inline constexpr size_t kUcxHeld = 16;                   // pieces of a stream, fetched ahead
inline constexpr size_t kUcxStreamsMax = 512;            // of a member

/// A piece of a stream that has arrived, or that UCX is receiving into `data`.
struct UcxPiece {
  std::unique_ptr<std::byte[]> data;
  size_t bytes = 0;
  bool complete = false;
  bool pooled = false;  ///< data is one of the worker's buffers for large pieces
  /// What it costs: a piece takes memory besides its bytes.
  size_t cost() const { return bytes + 256; }
};

struct UcxStream {
  /// A large piece that stays at the sender until this process expects the stream.
  struct Announced {
    uint64_t offset;
    size_t bytes;
    void* descriptor;
  };
  bool expected = false;
  uint64_t read = 0;                                     ///< bytes popped so far
  std::map<uint64_t, std::shared_ptr<UcxPiece>> pieces;  ///< by offset
  std::vector<Announced> announced;

  /// Takes the announced piece to fetch next out of `announced`: the one that is read first. None:
  /// the stream is not expected, or the reader has enough pieces before that one.
  std::optional<Announced> take_next();
};

/// A part of the caller's memory that is sent as one message.
struct UcxFragment {
  uint64_t key;
  uint64_t offset;
  Bytes data;
  uint64_t ticket;
};

struct UcxMember : RemoteMember {
  using RemoteMember::RemoteMember;
  std::unordered_map<uint64_t, UcxStream> streams;  ///< by key
  size_t early = 0;  ///< cost of the small pieces that have not been read
  /// Fragments to send, and the number in flight. [0]: of later operations; [1]: of the oldest.
  struct Queue {
    std::deque<UcxFragment> waiting;
    size_t under_way = 0;
  } queues[2];
  std::unordered_map<uint64_t, size_t> uncopied;  ///< ticket -> fragments still to be copied
};
using UcxChannel = ChannelOf<UcxMember>;
using UcxChannelPtr = std::shared_ptr<UcxChannel>;

enum class UcxKind : uint32_t { hello, acknowledge, bye, data };

/// The header of every message, in native byte order.
struct UcxHeader {
  uint32_t magic;
  UcxKind kind;
  uint64_t generation;
  uint64_t name_hash;
  uint32_t from, to;
  uint64_t key;
  uint64_t offset;
  Secret secret;

  static UcxHeader of(const UcxChannel& channel, UcxKind kind, uint32_t to, uint64_t key = 0,
                      uint64_t offset = 0) {
    return {kUcxMagic,
            kind,
            channel.generation,
            channel.name_hash,
            static_cast<uint32_t>(channel.rank),
            to,
            key,
            offset,
            channel.secret};
  }
};

/// Why a member is broken, after a failed UCX call.
inline std::string lost(ucs_status_t status) {
  return std::string("is lost (") + ucs_status_string(status) + ")";
}

/// `lock` also guards `pool`.
struct UcxWorker final : WorkerBase<UcxMember> {
  struct Connection {
    std::unique_ptr<ucx::Endpoint> endpoint;
    ucs_status_t failed = UCS_OK;
  };
  /// A send that UCX has not completed.
  struct Sending {
    UcxWorker* worker;
    UcxHeader header;
    std::unique_ptr<std::byte[]> data;
    size_t bytes = 0;
    bool large = false;  // `data` is a buffer of the pool
    int queue = 0;       // if large: index in UcxMember::queues
    UcxChannelPtr channel;
  };
  struct Receiving {
    UcxWorker* worker;
    UcxChannelPtr channel;
    uint32_t from;
    std::shared_ptr<UcxPiece> piece;
  };

  std::unique_ptr<ucx::Context> context;
  std::unique_ptr<ucx::Worker> ucp_worker;
  std::map<WorkerAddress, Connection> connections;
  std::vector<std::unique_ptr<std::byte[]>> pool;  // idle buffers of kUcxFragment bytes each

  /// ring: called on the worker's thread when data arrived, or a send completed or failed.
  /// interfaces: of this host; UCX uses no other.
  static Result<std::unique_ptr<UcxWorker>> create(std::function<void()> ring,
                                                   const std::vector<std::string>& interfaces);
  ~UcxWorker() override { end(); }

  // --- Any thread ---

  const WorkerAddress& address() const override { return ucp_worker->address(); }
  std::unique_ptr<Link> link(const ChannelPtr& channel, int peer, std::string peer_name) override;
  void wake() override { ucp_worker->signal(); }

  // --- The worker's thread ---

  Status start(const ucx::Devices& devices);
  bool progress() override;
  bool arm() override;
  int event_fd() const override { return ucp_worker->event_fd(); }
  void flush() override;
  void clear(UcxMember& member) override;
  void send_hello(const UcxChannelPtr& channel, uint16_t to, Clock::time_point) override {
    send_control(UcxKind::hello, channel, to);
  }
  void send_bye(const UcxChannelPtr& channel, uint16_t to) override {
    send_control(UcxKind::bye, channel, to);
  }
  bool close_failed();
  void fail_members(const WorkerAddress& address, const std::string& why);
  ucp_ep_h connect(const WorkerAddress& address);
  void send_control(UcxKind kind, const UcxChannelPtr& channel, uint32_t to);
  void send(std::unique_ptr<Sending> sending);
  void send_waiting(const UcxChannelPtr& channel, uint32_t to);
  void on_sent(std::unique_ptr<Sending> sending, ucs_status_t status);
  void fetch(const UcxChannelPtr& channel, uint32_t from, uint64_t key);
  bool fetch_next(const UcxChannelPtr& channel, uint32_t from, uint64_t key);
  void on_received(std::unique_ptr<Receiving> receiving, ucs_status_t status);
  ucs_status_t on_message(const UcxHeader& header, void* data, size_t bytes, bool announced);

  // --- Under the lock ---

  std::unique_ptr<std::byte[]> take_buffer();
  void give_buffer(std::unique_ptr<std::byte[]> buffer);
};

}  // namespace simplescale::collective
