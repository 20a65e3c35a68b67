#include "transport/nccl/staged.hpp"

#include <algorithm>
#include <utility>

namespace simplescale::nccl {

void Mirrors::add(const Pair& pair) {
  const std::lock_guard guard(lock_);
  pairs_.push_back(pair);
}

void Mirrors::remove(const std::byte* device) {
  const std::lock_guard guard(lock_);
  std::erase_if(pairs_, [&](const Pair& pair) { return pair.device == device; });
}

std::byte* Mirrors::of(const void* device) const {
  const std::lock_guard guard(lock_);
  const auto* at = static_cast<const std::byte*>(device);
  const auto found = std::ranges::find_if(
      pairs_, [&](const Pair& pair) { return at >= pair.device && at < pair.device + pair.bytes; });
  SS_ASSERT(found != pairs_.end());
  return found->host + (at - found->device);
}

/// An operation between mirrors, and what is to be done with its results.
class StagedCommunicator::StagedWork final : public Work {
 public:
  explicit StagedWork(Status failed) : status_(std::move(failed)), finished_(true) {}
  StagedWork(WorkPtr work, std::function<Status()> after)
      : work_(std::move(work)), after_(std::move(after)) {}
  ~StagedWork() override { (void)wait(); }
  Status wait() override {
    if (finished_) return status_;
    finished_ = true;
    status_ = work_->wait();
    if (status_.ok()) status_ = after_();
    return status_;
  }

 private:
  WorkPtr work_;
  std::function<Status()> after_;
  Status status_;
  bool finished_ = false;
};

StagedCommunicator::StagedCommunicator(std::unique_ptr<Collective> host,
                                       std::unique_ptr<Stream> stream,
                                       std::shared_ptr<Mirrors> mirrors, int timeout_ms)
    : host_(std::move(host)),
      stream_(std::move(stream)),
      mirrors_(std::move(mirrors)),
      timeout_ms_(timeout_ms) {}

StagedCommunicator::~StagedCommunicator() {
  for (const std::byte* block : blocks_) mirrors_->remove(block);
  if (!finish_copies().ok()) return;  // the device may still use the memory
  for (std::byte* block : blocks_) (void)cudaFree(block);
}

Result<void*> StagedCommunicator::allocate(size_t bytes) {
  SS_ASSIGN(void* host, host_->allocate(bytes));
  SS_ASSIGN(void* device,
            stream_->allocate(bytes, Clock::now() + std::chrono::milliseconds(timeout_ms_)));
  blocks_.push_back(static_cast<std::byte*>(device));
  mirrors_->add({blocks_.back(), static_cast<std::byte*>(host), bytes});
  return device;
}

Status StagedCommunicator::down(const void* device, size_t bytes) {
  SS_RETURN_IF_ERROR(stream_->after(followed_));
  return SS_CUDA_STATUS(
      cudaMemcpyAsync(mirror(device), device, bytes, cudaMemcpyDeviceToHost, stream_->handle()));
}

Status StagedCommunicator::up(void* device, size_t bytes) {
  return SS_CUDA_STATUS(
      cudaMemcpyAsync(device, mirror(device), bytes, cudaMemcpyHostToDevice, stream_->handle()));
}

Status StagedCommunicator::finish_copies() {
  const Status status = stream_->finish(Clock::now() + std::chrono::milliseconds(timeout_ms_));
  if (status.code() != Code::deadline) return status;
  return Status(Code::deadline,
                "the GPU did not copy within " + std::to_string(timeout_ms_) + " ms");
}

/// The same nodes in the mirrors of its buffers; their contents are on their way down.
Result<std::unique_ptr<PartialSum>> StagedCommunicator::mirror_of(const PartialSum& sum) {
  std::vector<float*> buffers;
  for (size_t i = 0; i < sum.buffers(); ++i)
    buffers.push_back(reinterpret_cast<float*>(mirror(sum.data(i))));
  auto mirrored = std::make_unique<PartialSum>(std::move(buffers), sum.count());
  mirrored->added(sum.nodes());
  for (size_t i = 0; i < sum.nodes().size(); ++i)
    SS_RETURN_IF_ERROR(down(sum.data(i), sum.count() * sizeof(float)));
  return mirrored;
}

WorkPtr StagedCommunicator::all_gather(const void* shard, void* full, size_t count, DType dtype) {
  const size_t bytes = count * bytes_of(dtype);
  Status status = down(shard, bytes);
  if (status.ok()) status = finish_copies();
  if (!status.ok()) return std::make_unique<StagedWork>(status);
  return std::make_unique<StagedWork>(
      host_->all_gather(mirror(shard), mirror(full), count, dtype), [this, full, bytes] {
        SS_RETURN_IF_ERROR(up(full, bytes * static_cast<size_t>(size())));
        return finish_copies();
      });
}

WorkPtr StagedCommunicator::reduce_scatter(const void* full, void* shard, size_t count,
                                           DType dtype) {
  const size_t bytes = count * bytes_of(dtype);
  Status status = down(full, bytes * static_cast<size_t>(size()));
  if (status.ok()) status = finish_copies();
  if (!status.ok()) return std::make_unique<StagedWork>(status);
  return std::make_unique<StagedWork>(
      host_->reduce_scatter(mirror(full), mirror(shard), count, dtype), [this, shard, bytes] {
        SS_RETURN_IF_ERROR(up(shard, bytes));
        return finish_copies();
      });
}

WorkPtr StagedCommunicator::all_reduce(void* data, size_t count, DType dtype) {
  const size_t bytes = count * bytes_of(dtype);
  Status status = down(data, bytes);
  if (status.ok()) status = finish_copies();
  if (!status.ok()) return std::make_unique<StagedWork>(status);
  return std::make_unique<StagedWork>(host_->all_reduce(mirror(data), count, dtype),
                                      [this, data, bytes] {
                                        SS_RETURN_IF_ERROR(up(data, bytes));
                                        return finish_copies();
                                      });
}

WorkPtr StagedCommunicator::broadcast(void* data, size_t count, DType dtype, int root) {
  const size_t bytes = count * bytes_of(dtype);
  Status status = rank() == root ? down(data, bytes) : stream_->after(followed_);
  if (status.ok()) status = finish_copies();
  if (!status.ok()) return std::make_unique<StagedWork>(status);
  return std::make_unique<StagedWork>(host_->broadcast(mirror(data), count, dtype, root),
                                      [this, data, bytes] {
                                        SS_RETURN_IF_ERROR(up(data, bytes));
                                        return finish_copies();
                                      });
}

WorkPtr StagedCommunicator::reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                                  std::span<const TreeNode> leaf_of_rank,
                                                  PartialSum& slice) {
  Status status = down(full, count * bytes_of(dtype) * static_cast<size_t>(size()));
  auto mirrored = mirror_of(slice);
  if (status.ok()) status = mirrored.status();
  if (status.ok()) status = finish_copies();
  if (!status.ok()) return std::make_unique<StagedWork>(status);
  std::shared_ptr<PartialSum> sum = mirrored.take();
  WorkPtr work = host_->reduce_scatter_leaves(mirror(full), count, dtype, leaf_of_rank, *sum);
  return std::make_unique<StagedWork>(std::move(work), [this, sum, &slice]() -> Status {
    for (size_t i = 0; i < sum->nodes().size(); ++i)
      SS_RETURN_IF_ERROR(up(slice.buffer(i), sum->count() * sizeof(float)));
    slice.clear();
    slice.added(sum->nodes());
    return finish_copies();
  });
}

WorkPtr StagedCommunicator::all_reduce_partials(
    const PartialSum& mine, std::span<const std::vector<TreeNode>> nodes_of_rank, float* total) {
  auto mirrored = mirror_of(mine);
  Status status = mirrored.status();
  if (status.ok()) status = stream_->after(followed_);
  if (status.ok()) status = finish_copies();
  if (!status.ok()) return std::make_unique<StagedWork>(status);
  std::shared_ptr<PartialSum> sum = mirrored.take();
  WorkPtr work =
      host_->all_reduce_partials(*sum, nodes_of_rank, reinterpret_cast<float*>(mirror(total)));
  return std::make_unique<StagedWork>(std::move(work), [this, sum, total]() -> Status {
    SS_RETURN_IF_ERROR(up(total, sum->count() * sizeof(float)));
    return finish_copies();
  });
}

}  // namespace simplescale::nccl
