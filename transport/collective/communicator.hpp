// The Collective of a data plane: links to every other rank, the operations in flight, and the only
// place that waits for them.
//
// Shared memory has no thread of its own: starting an operation publishes its sources, waiting
// reads the peers' memory. A thread that starts or waits advances every operation of every
// communicator of the plane, so ranks may wait for operations in any order. Every function takes
// the plane's lock, except abort(), which any thread may call.
//
//   COLLECTIVE-1  A dead communicator (aborted, deadline, a rank lost) stays dead. No rank uses its
//                 memory afterwards.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/training/collective.hpp"
#include "transport/collective/operation.hpp"
#include "transport/collective/remote.hpp"
#include "transport/collective/segment.hpp"
#include "transport/collective/shm_link.hpp"

namespace simplescale::collective {

class Communicator;

/// State that the communicators of one process share.
struct Shared {
  std::mutex lock;                           ///< the plane's lock; taken by start() and wait()
  std::vector<Communicator*> communicators;  ///< guarded by lock
  std::deque<std::byte*> old_boards;         ///< of closed communicators; peers may still read them
  std::unique_ptr<Segment> segment;
  std::vector<std::unique_ptr<RemoteWorker>> workers;  ///< that reach other hosts
  /// An injected fault (NetworkFault): its end on the steady clock, and its delay; 0 for no delay.
  std::atomic<int64_t> network_fault_until_ns{0}, network_fault_delay_ns{0};

  /// Advances every operation once. Returns whether one made progress. Call it under the lock.
  bool advance();
};

/// A communicator's members that one worker reaches.
struct Attached {
  RemoteWorker* worker;
  ChannelPtr channel;
};

/// This rank's memory in the arena for one communicator.
struct Boards {
  std::byte* board = nullptr;    ///< a Lane for every rank (shm_link.hpp)
  std::byte* blocks = nullptr;   ///< kBlocks of kBlockBytes (operation.hpp)
  std::span<std::byte> staging;  ///< for sources outside the arena
  size_t slot = 0;               ///< index in SegmentHeader::slots
};

class Communicator final : public Collective {
 public:
  struct Spec {
    std::string name;  ///< "shard@7", for messages
    uint64_t generation;
    int rank;
    Hosts hosts;
    int timeout_ms, spin_us;
    bool between_nodes = false;
  };
  Communicator(Shared& shared, Spec spec, Boards boards, std::vector<std::unique_ptr<Link>> links,
               std::vector<std::shared_ptr<PeerSegment>> peers, std::vector<Attached> channels,
               std::function<void(Communicator*)> forget);
  ~Communicator() override;

  int rank() const override { return spec_.rank; }
  int size() const override { return spec_.hosts.size(); }
  uint64_t generation() const { return spec_.generation; }
  Result<void*> allocate(size_t bytes) override;
  WorkPtr all_gather(const void* shard, void* full, size_t count, DType dtype) override;
  WorkPtr reduce_scatter(const void* full, void* shard, size_t count, DType dtype) override;
  WorkPtr all_reduce(void* data, size_t count, DType dtype) override;
  WorkPtr broadcast(void* data, size_t count, DType dtype, int root) override;
  WorkPtr barrier() override;
  WorkPtr all_gather_bytes(const void* mine, void* all, size_t bytes) override;
  WorkPtr exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) override;
  WorkPtr reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                std::span<const TreeNode> leaf_of_rank, PartialSum& slice) override;
  WorkPtr all_reduce_partials(const PartialSum& mine,
                              std::span<const std::vector<TreeNode>> nodes_of_rank,
                              float* total) override;
  void abort(const std::string& reason) override;

  // --- For Shared and Work: wait() takes the lock, advance() is called under it ---
  Status wait(Operation& operation);
  bool advance();

 private:
  using Clock = std::chrono::steady_clock;
  WorkPtr start(Plan plan);
  Status wait(Operation& operation, std::unique_lock<std::mutex>& turn);
  void fail(Status status);
  void shut_down(Status status, bool graceful);
  Status check_aborted();
  Status check_peers(Operation& operation, bool thorough);
  Status deadline_error(Operation& operation) const;
  void notify_all();
  bool has_network_fault() const;
  void wait_for_readers(std::unique_lock<std::mutex>& turn);
  void wait_for_doorbell(uint32_t seen, int limit_ms, std::unique_lock<std::mutex>& turn);

  Shared& shared_;
  Spec spec_;
  Boards boards_;
  Outbox outbox_;
  std::vector<std::unique_ptr<Link>> links_;         // by rank; null at this rank
  std::vector<std::shared_ptr<PeerSegment>> peers_;  // of the other ranks on this host
  std::vector<Attached> channels_;                   // empty: all ranks are on this host
  std::function<void(Communicator*)> forget_;
  std::vector<std::byte*> allocations_;
  std::deque<std::shared_ptr<Operation>> active_;  // in order of their start
  uint64_t operations_ = 0;
  Clock::time_point last_progress_{};  // of any operation
  Clock::time_point last_start_{};     // of any operation
  Status dead_;
  std::atomic<bool> aborted_{false};
  std::mutex reason_lock_;
  std::string reason_;
};

}  // namespace simplescale::collective
