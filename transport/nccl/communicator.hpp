// A Collective over device memory, by NCCL. The host collective beside it connects the ranks and
// carries small records.
//
// Sums follow the tree (runtime/training/tree_sum.hpp), which NCCL's own reductions do not: ranks
// exchange slices by grouped sends and receives, then a kernel (tree_sum.cu) adds them in leaf
// order. A rank transfers as many bytes as in a ring; in a group that spans hosts each host adds its
// own leaves first (host_sums.hpp), since all its ranks would load the network as much.
// transport/collective/plan.hpp says which bytes go where, as on CPUs. With Spec::native_sums NCCL's own reductions are used instead: they take fewer
// messages, but the bits depend on the layout and on NCCL's choice of an algorithm. The sums of
// micro-batches are in fp32 also then.
//
// Operations run on one stream in the order of their start, each after the work that the followed
// stream had been given by then. The compute thread starts and waits; any thread may call abort().
// NCCL calls on the communicator are made under comm_lock_ and return at once (it is non-blocking),
// so abort() waits for one at most a moment. ncclCommAbort may take long and runs on its own thread.
// The process ends if a call keeps abort() waiting for some seconds, or if ncclCommAbort has not
// returned some seconds after the communicator's end.
//
// A dead communicator (aborted, deadline, a rank or the device lost) stays dead. Device memory is
// freed only once the stream is idle; if the stream does not become idle in time, it is leaked.
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/collective/plan.hpp"
#include "transport/nccl/device_collective.hpp"
#include "transport/nccl/host_sums.hpp"

namespace simplescale::nccl {

class NcclCommunicator final : public DeviceCollective {
 public:
  struct Spec {
    std::string name;  ///< "shard@7", for messages
    uint64_t generation;
    int timeout_ms;
    int abort_timeout_ms = 10'000;  ///< so long may NCCL keep abort() and the destructor waiting
    uint64_t host = 0;              ///< a number that its ranks share; 0: of this host (for tests)
    bool native_sums = false;  ///< by ncclReduceScatter and ncclAllReduce; a slice has one node
  };
  /// forget: called once, at the start of the destructor. No abort() may follow it.
  NcclCommunicator(Spec spec, std::shared_ptr<Collective> host, std::unique_ptr<Stream> stream,
                   std::function<void(NcclCommunicator*)> forget);
  /// Ends the process with code 75 if ncclCommAbort hangs.
  ~NcclCommunicator() override;

  uint64_t generation() const { return spec_.generation; }
  /// Distributes NCCL's identifier, creates the NCCL communicator and connects the ranks, without
  /// native_sums each pair, so that no later start waits for a connection. Call it once, before anything but abort().
  Status connect();

  Result<void*> allocate(size_t bytes) override;
  /// With Spec::native_sums, tells NCCL of a buffer that operations will use, as allocate() does of
  /// its own, so that NCCL need not copy it piece by piece. Does nothing if the loaded NCCL cannot
  /// (before 2.19) or will not. The buffer must outlive the communicator.
  void register_buffer(void* data, size_t bytes);
  bool native_sums() const override { return spec_.native_sums; }
  WorkPtr all_gather(const void* shard, void* full, size_t count, DType dtype) override;
  WorkPtr reduce_scatter(const void* full, void* shard, size_t count, DType dtype) override;
  WorkPtr all_reduce(void* data, size_t count, DType dtype) override;
  WorkPtr broadcast(void* data, size_t count, DType dtype, int root) override;
  WorkPtr reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                std::span<const TreeNode> leaf_of_rank, PartialSum& slice) override;
  WorkPtr all_reduce_partials(const PartialSum& mine,
                              std::span<const std::vector<TreeNode>> nodes_of_rank,
                              float* total) override;
  /// Ends the process with code 75 if another thread's call to NCCL hangs.
  void abort(const std::string& reason) override;

 private:
  class Handle;

  WorkPtr start(const char* name, const std::function<Status()>& enqueue);
  WorkPtr start(const collective::Plan& plan);
  Status run(const collective::Plan& plan);
  Status exchange(const collective::Plan& plan, bool after_sum, std::byte* received);
  Status transfer(const char* what, std::span<const Message> messages);
  Status sum(const collective::Plan& plan, std::byte* received);
  Status add(std::span<const TreeSource> summands, PartialSum& to);
  Status leaves_by_host(const void* full, size_t count, DType dtype,
                        std::span<const TreeNode> leaf_of_rank, PartialSum& slice);
  Status native_leaves(const void* full, size_t count, DType dtype, TreeNode first,
                       PartialSum& slice);
  Status native_total(const PartialSum& mine, float* total);
  Status total_of(std::span<const TreeSource> sources, float* total, size_t count);
  Status wait(const char* name, uint64_t number, const Event& event);

  Status call(const char* what, Clock::time_point limit,
              const std::function<ncclResult_t(ncclComm_t)>& function);
  Status call(const char* what, const std::function<ncclResult_t(ncclComm_t)>& function) {
    return call(what, limit(), function);
  }
  Status wait_until_ready(const char* what, Clock::time_point limit);
  Result<bool> check_ready(const char* what);
  void wait_for_memory(Clock::time_point limit) const;
  Status connect_pairs(std::byte* data, size_t bytes);
  Status use_first(Clock::time_point limit);
  Result<std::byte*> scratch(size_t bytes);
  bool registers_buffers() const;

  Clock::time_point limit() const {
    return Clock::now() + std::chrono::milliseconds(spec_.timeout_ms);
  }
  Status dead() const;
  Status fail(Status status);
  void abort_nccl();
  [[noreturn]] void end_process(const char* hangs) const;
  void close();

  const Spec spec_;
  std::function<void(NcclCommunicator*)> forget_;
  std::vector<void*> blocks_, shared_blocks_;  // of allocate(): of CUDA, of ncclMemAlloc
  std::vector<void*> registrations_;
  std::byte* scratch_ = nullptr;  // one of blocks_; operations use it in turn
  size_t scratch_bytes_ = 0;
  uint64_t operations_ = 0;
  int per_host_ = 1;  // ranks_per_host()

  mutable std::mutex lock_;  // guards the next two
  Status dead_;
  std::future<void> aborted_;  // ready once ncclCommAbort has returned
  std::atomic<bool> is_dead_{false};
  std::timed_mutex comm_lock_;
  ncclComm_t comm_ = nullptr;  // guarded by comm_lock_
};

}  // namespace simplescale::nccl
