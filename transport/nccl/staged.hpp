// A Collective over device memory that goes through host memory, for several trainers on one GPU,
// which NCCL does not support. Every allocation is a pair: device memory, and its mirror of the
// same size in the host communicator's arena. An operation copies its sources to the mirrors, runs
// between the mirrors, and copies its results to the device in wait(). Slow and simple. Threads: as
// Collective.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/nccl/device_collective.hpp"

namespace simplescale::nccl {

/// Maps device memory to its host mirror, for all communicators of a plane: a communicator may work
/// on memory that another communicator has allocated. Any thread.
class Mirrors {
 public:
  struct Pair {
    std::byte *device, *host;
    size_t bytes;
  };
  void add(const Pair& pair);
  void remove(const std::byte* device);
  /// The mirror of a device address. Asserts that it exists.
  std::byte* of(const void* device) const;

 private:
  mutable std::mutex lock_;
  std::vector<Pair> pairs_;
};

class StagedCommunicator final : public DeviceCollective {
 public:
  StagedCommunicator(std::unique_ptr<Collective> host, std::unique_ptr<Stream> stream,
                     std::shared_ptr<Mirrors> mirrors, int timeout_ms);
  ~StagedCommunicator() override;

  /// The operations' buffers must lie in memory from allocate() of this or another living
  /// communicator of the plane (except for all_gather_bytes).
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
  void abort(const std::string& reason) override { host_->abort(reason); }

 private:
  class StagedWork;
  std::byte* mirror(const void* device) const { return mirrors_->of(device); }
  Status copy_to_host(const void* device, size_t bytes);
  Status copy_to_device(void* device, size_t bytes);
  Status finish_copies();
  Result<std::unique_ptr<PartialSum>> mirror_of(const PartialSum& sum);
  WorkPtr start(Status copies, const std::function<WorkPtr()>& start_on_host,
                std::function<Status()> copy_results);

  const std::shared_ptr<Mirrors> mirrors_;
  const int timeout_ms_;
  std::vector<std::byte*> blocks_;  // device memory of allocate()
};

}  // namespace simplescale::nccl
