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
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/status.hpp"
#include "transport/collective/remote.hpp"

namespace simplescale::collective {

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

/// One remote member of a channel.
struct UcxMember {
  WorkerAddress address;  ///< empty: not reached by this worker
  bool acknowledged = false;
  Status broken;
  std::unordered_map<uint64_t, UcxStream> streams;  ///< by key
  size_t early = 0;  ///< cost of the small pieces that have not been read
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

/// The worker's lock guards `members` and `tickets`.
struct UcxChannel final : Channel {
  explicit UcxChannel(const ChannelSpec& spec) : Channel(spec), members(spec.addresses.size()) {
    for (size_t i = 0; i < members.size(); ++i) members[i].address = spec.addresses[i];
  }
  std::vector<UcxMember> members;  ///< by rank
  uint64_t tickets = 0;
};
using UcxChannelPtr = std::shared_ptr<UcxChannel>;

class UcxWorker final : public RemoteWorker {
 public:
  /// ring: called on the worker's thread when data arrived, or a send completed or failed.
  /// interfaces: of this host; UCX uses no other.
  static Result<std::unique_ptr<UcxWorker>> create(std::function<void()> ring,
                                                   const std::vector<std::string>& interfaces);
  ~UcxWorker() override;

  const WorkerAddress& address() const override;
  void set_spin_us(int spin_us) override;
  ChannelPtr attach(const ChannelSpec& spec) override;
  void detach(const ChannelPtr& channel, bool graceful) override;
  std::vector<Unjoined> unjoined(const ChannelPtr& channel) override;
  std::unique_ptr<Link> link(const ChannelPtr& channel, int peer, std::string peer_name) override;

  struct Impl;

 private:
  explicit UcxWorker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace simplescale::collective
