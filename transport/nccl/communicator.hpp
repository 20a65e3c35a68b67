// A Collective over device memory by NCCL, beside a Collective over host memory by which its ranks
// first met and which carries what is small.
//
// Sums follow the tree (runtime/training/tree_sum.hpp), which NCCL's own reductions do not: slices are
// exchanged by grouped sends and receives, then added by our kernel in leaf order. That moves the
// bytes of a ring. What goes where is transport/collective/plan.hpp's, as on CPUs.
//
// One stream; operations run on it in the order of their start, after what the followed stream has
// been given by then. The compute thread starts and
// waits; abort() may come from any thread. NCCL calls on a communicator are made under comm_lock_
// and return at once (it is non-blocking), so abort() never waits for one; ncclCommAbort itself,
// which may take its time, has a thread of its own.
//
// N1: a dead communicator (aborted, deadline, a rank or the device lost) stays dead.
// N2: memory is freed only when the stream is idle; a stream that does not come to rest keeps it.
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "transport/collective/plan.hpp"
#include "transport/nccl/device_collective.hpp"

namespace simplescale::nccl {

class NcclCommunicator final : public DeviceCollective {
 public:
  struct Spec {
    std::string name;  ///< "shard@7", for messages
    uint64_t generation;
    int timeout_ms;
  };
  /// forget: called once, when it is about to be destroyed and takes no more abort().
  NcclCommunicator(Spec spec, std::unique_ptr<Collective> host, std::unique_ptr<Stream> stream,
                   std::function<void(NcclCommunicator*)> forget);
  ~NcclCommunicator() override;

  uint64_t generation() const { return spec_.generation; }
  /// Hands round the identifier, creates the NCCL communicator and uses it once with every rank, so
  /// that later no start waits for a connection. Call it once, before anything but abort().
  Status connect();

  Result<void*> allocate(size_t bytes) override;
  WorkPtr all_gather(const void* shard, void* full, size_t count, DType dtype) override;
  WorkPtr reduce_scatter(const void* full, void* shard, size_t count, DType dtype) override;
  WorkPtr all_reduce(void* data, size_t count, DType dtype) override;
  WorkPtr broadcast(void* data, size_t count, DType dtype, int root) override;
  WorkPtr reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                std::span<const TreeNode> leaf_of_rank, PartialSum& slice) override;
  WorkPtr all_reduce_partials(const PartialSum& mine,
                              std::span<const std::vector<TreeNode>> nodes_of_rank,
                              float* total) override;
  void abort(const std::string& reason) override;

 private:
  class Handle;

  WorkPtr start(const char* name, const std::function<Status()>& enqueue);
  WorkPtr start(const collective::Plan& plan);
  Status run(const collective::Plan& plan);
  Status exchange(const collective::Plan& plan, bool after_sum, std::byte* received);
  Status sum(const collective::Plan& plan, std::byte* received);
  Status wait(const char* name, uint64_t number, const Event& event);

  Status call(const char* what, Clock::time_point limit,
              const std::function<ncclResult_t(ncclComm_t)>& function);
  Status call(const char* what, const std::function<ncclResult_t(ncclComm_t)>& function) {
    return call(what, limit(), function);
  }
  Status wait_until_ready(const char* what, Clock::time_point limit);
  Result<bool> check_ready(const char* what);
  Status connect_all_pairs(Clock::time_point limit);
  Result<std::byte*> scratch(size_t bytes);

  Clock::time_point limit() const {
    return Clock::now() + std::chrono::milliseconds(spec_.timeout_ms);
  }
  Status dead() const;
  Status fail(Status status);
  void abort_nccl();
  void close();

  const Spec spec_;
  std::function<void(NcclCommunicator*)> forget_;
  std::vector<void*> blocks_;     // of device memory
  std::byte* scratch_ = nullptr;  // one of blocks_; operations use it one after the other
  size_t scratch_bytes_ = 0;
  uint64_t operations_ = 0;

  mutable std::mutex lock_;  // of the next two
  Status dead_;
  std::thread aborter_;
  std::atomic<bool> is_dead_{false};
  std::mutex comm_lock_;
  ncclComm_t comm_ = nullptr;  // guarded by comm_lock_
};

}  // namespace simplescale::nccl
