// The UCX worker of a data plane: one context, one worker, one thread that sleeps on the worker's
// event descriptor. It carries active messages between processes on different hosts and knows
// channels, one for every communicator.
//
// Only the worker's thread calls UCX. Others take the lock, post a command and signal the worker;
// whoever waits for data sleeps on the plane's doorbell, which the thread rings.
//
// U1: UCX sees no memory of the caller: the thread copies what is sent into buffers of ours, and
// data
//     is received into such. So an abort need not wait for UCX and closes no connection; what is
//     under way in a dead channel dies out.
// U2: what a channel has under way to a member is bounded, apart for operations that were and were
//     not the oldest when they sent: a later one never keeps an earlier one from going on (COLLECTIVE-2 in
//     operation.hpp).
// U3: messages of a channel that is not registered (another generation) are dropped.
// U4: a member has joined when it has acknowledged our greeting: it is registered and our
// connection
//     to it works.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/status.hpp"
#include "transport/collective/link.hpp"

namespace simplescale::collective {

using UcxAddress = std::vector<uint8_t>;

/// A piece of a stream that has arrived, or is on its way into `data`.
struct UcxPiece {
  std::unique_ptr<std::byte[]> data;
  size_t bytes = 0;
  bool complete = false;
  bool pooled = false;  ///< data is one of the worker's buffers for large pieces
};

struct UcxStream {
  /// A large piece that stays with the sender until the reader expects the stream.
  struct Announced {
    uint64_t offset;
    size_t bytes;
    void* descriptor;
  };
  bool expected = false;
  uint64_t read = 0;                                     ///< bytes popped so far
  std::map<uint64_t, std::shared_ptr<UcxPiece>> pieces;  ///< by offset
  std::vector<Announced> announced;
};

/// A piece of the caller's memory to be sent as one message.
struct UcxFragment {
  uint64_t key;
  uint64_t offset;
  Bytes data;
  uint64_t ticket;
};

/// One remote member of a channel.
struct UcxMember {
  UcxAddress address;  ///< empty: not reached by UCX
  bool acknowledged = false;
  Status broken;
  std::unordered_map<uint64_t, UcxStream> streams;  ///< by key
  /// Pieces to be sent, and how many are in UCX's hands: of operations in line, and of the oldest.
  struct Queue {
    std::deque<UcxFragment> waiting;
    size_t under_way = 0;
  } queues[2];
  std::unordered_map<uint64_t, size_t> uncopied;  ///< ticket -> its pieces that are waiting

  /// Marks the member as broken; the first reason stays.
  void fail(const std::string& why) {
    if (broken.ok()) broken = Status(Code::unavailable, why);
  }
};

/// One communicator's members. Everything but the constants is guarded by the worker's lock.
struct UcxChannel {
  uint64_t generation = 0;
  uint64_t name_hash = 0;
  int rank = 0;
  std::vector<UcxMember> members;  ///< by rank
  uint64_t tickets = 0;
};
using UcxChannelPtr = std::shared_ptr<UcxChannel>;

class UcxWorker {
 public:
  /// ring: called on the worker's thread when something arrived, completed or failed.
  static Result<std::unique_ptr<UcxWorker>> create(std::function<void()> ring);
  ~UcxWorker();

  const UcxAddress& address() const;
  /// How long the thread looks for more before it sleeps.
  void set_spin_us(int spin_us);

  /// Registers the channel and greets its remote members until each has acknowledged. Returns at
  /// once.
  void attach(const UcxChannelPtr& channel);
  /// Ends it; afterwards no memory of the caller is used. Tells the members, unless we part in
  /// peace.
  void detach(const UcxChannelPtr& channel, bool graceful);
  /// Remote ranks that have not joined yet (U4).
  std::vector<int> unjoined_ranks(const UcxChannelPtr& channel);

  std::unique_ptr<Link> link(const UcxChannelPtr& channel, int peer, std::string peer_name);

  struct Impl;

 private:
  explicit UcxWorker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace simplescale::collective
