// The UCX worker of a data plane: one context, one worker, one thread that sleeps on the worker's
// event descriptor. It exchanges active messages with processes on other hosts. Each communicator
// has a channel.
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
// * A message whose channel is not registered, for example of an older generation, is dropped, and
//   so is one without the channel's secret: it is not of a member.
// * A member has joined once it has acknowledged this process's hello: the member has registered
//   the channel, and the connection to it works.
#pragma once

#include <array>
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

/// Known to the members of one communicator, and in each of their messages.
using Secret = std::array<uint64_t, 2>;
/// A hash of the run's key, the generation and the communicator's name. key: see DataPlaneOptions.
Secret make_secret(const std::string& key, uint64_t generation, uint64_t name_hash);

using UcxAddress = std::vector<uint8_t>;

/// A piece of a stream that has arrived, or that UCX is receiving into `data`.
struct UcxPiece {
  std::unique_ptr<std::byte[]> data;
  size_t bytes = 0;
  bool complete = false;
  bool pooled = false;  ///< data is one of the worker's buffers for large pieces
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
};

/// A part of the caller's memory that is sent as one message.
struct UcxFragment {
  uint64_t key;
  uint64_t offset;
  Bytes data;
  uint64_t ticket;
};

/// One remote member of a channel.
struct UcxMember {
  UcxAddress address;  ///< empty: on this host, or this rank
  bool acknowledged = false;
  Status broken;
  std::unordered_map<uint64_t, UcxStream> streams;  ///< by key
  /// Fragments to send, and the number in flight. [0]: of later operations; [1]: of the oldest.
  struct Queue {
    std::deque<UcxFragment> waiting;
    size_t under_way = 0;
  } queues[2];
  std::unordered_map<uint64_t, size_t> uncopied;  ///< ticket -> fragments still to be copied

  /// Marks the member as broken; the first reason stays.
  void fail(const std::string& why) {
    if (broken.ok()) broken = Status(Code::unavailable, why);
  }
};

/// One communicator's members. The worker's lock guards `members` and `tickets`.
struct UcxChannel {
  uint64_t generation = 0;
  uint64_t name_hash = 0;
  Secret secret{};
  int rank = 0;
  std::vector<UcxMember> members;  ///< by rank
  uint64_t tickets = 0;
};
using UcxChannelPtr = std::shared_ptr<UcxChannel>;

class UcxWorker {
 public:
  /// ring: called on the worker's thread when data arrived, or a send completed or failed.
  static Result<std::unique_ptr<UcxWorker>> create(std::function<void()> ring);
  ~UcxWorker();

  const UcxAddress& address() const;
  /// How long the thread polls before it sleeps.
  void set_spin_us(int spin_us);

  /// Registers the channel and sends hellos to its remote members until each has acknowledged.
  /// Returns at once.
  void attach(const UcxChannelPtr& channel);
  /// Ends the channel; returns once the caller's memory is no longer used. Sends a bye to the
  /// members unless `graceful`.
  void detach(const UcxChannelPtr& channel, bool graceful);
  /// Remote ranks that have not joined yet.
  std::vector<int> unjoined_ranks(const UcxChannelPtr& channel);

  std::unique_ptr<Link> link(const UcxChannelPtr& channel, int peer, std::string peer_name);

  struct Impl;

 private:
  explicit UcxWorker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace simplescale::collective
