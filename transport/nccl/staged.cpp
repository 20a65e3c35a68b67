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

/// An operation between mirrors; wait() then runs `after`, which copies the results.
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
    : DeviceCollective(std::move(host), std::move(stream)),
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

Status StagedCommunicator::copy_to_host(const void* device, size_t bytes) {
  SS_RETURN_IF_ERROR(stream_->after(followed_));
  return SS_CUDA_STATUS(
      cudaMemcpyAsync(mirror(device), device, bytes, cudaMemcpyDeviceToHost, stream_->handle()));
}

Status StagedCommunicator::copy_to_device(void* device, size_t bytes) {
  return SS_CUDA_STATUS(
      cudaMemcpyAsync(device, mirror(device), bytes, cudaMemcpyHostToDevice, stream_->handle()));
}

Status StagedCommunicator::finish_copies() {
  const Status status = stream_->finish(Clock::now() + std::chrono::milliseconds(timeout_ms_));
  if (status.code() != Code::deadline) return status;
  return Status(Code::deadline,
                "the GPU did not copy within " + std::to_string(timeout_ms_) + " ms");
}

/// A PartialSum with the same nodes in the mirrors. Queues the copies of their contents.
Result<std::unique_ptr<PartialSum>> StagedCommunicator::mirror_of(const PartialSum& sum) {
  std::vector<float*> buffers;
  for (size_t i = 0; i < sum.buffers(); ++i)
    buffers.push_back(reinterpret_cast<float*>(mirror(sum.data(i))));
  auto mirrored = std::make_unique<PartialSum>(std::move(buffers), sum.count());
  mirrored->added(sum.nodes());
  for (size_t i = 0; i < sum.nodes().size(); ++i)
    SS_RETURN_IF_ERROR(copy_to_host(sum.data(i), sum.count() * sizeof(float)));
  return mirrored;
}

/// Waits for the copies to the mirrors, then starts the operation between the mirrors. copies: the
/// status of queueing those copies. copy_results: queues the copies back after the operation.
WorkPtr StagedCommunicator::start(Status copies, const std::function<WorkPtr()>& start_on_host,
                                  std::function<Status()> copy_results) {
  if (copies.ok()) copies = finish_copies();
  if (!copies.ok()) return std::make_unique<StagedWork>(copies);
  return std::make_unique<StagedWork>(start_on_host(),
                                      [this, copy_results = std::move(copy_results)]() -> Status {
                                        SS_RETURN_IF_ERROR(copy_results());
                                        return finish_copies();
                                      });
}

WorkPtr StagedCommunicator::all_gather(const void* shard, void* full, size_t count, DType dtype) {
  const size_t bytes = count * bytes_of(dtype);
  return start(
      copy_to_host(shard, bytes),
      [&] { return host_->all_gather(mirror(shard), mirror(full), count, dtype); },
      [=, this] { return copy_to_device(full, bytes * static_cast<size_t>(size())); });
}

WorkPtr StagedCommunicator::reduce_scatter(const void* full, void* shard, size_t count,
                                           DType dtype) {
  const size_t bytes = count * bytes_of(dtype);
  return start(
      copy_to_host(full, bytes * static_cast<size_t>(size())),
      [&] { return host_->reduce_scatter(mirror(full), mirror(shard), count, dtype); },
      [=, this] { return copy_to_device(shard, bytes); });
}

WorkPtr StagedCommunicator::all_reduce(void* data, size_t count, DType dtype) {
  const size_t bytes = count * bytes_of(dtype);
  return start(
      copy_to_host(data, bytes), [&] { return host_->all_reduce(mirror(data), count, dtype); },
      [=, this] { return copy_to_device(data, bytes); });
}

WorkPtr StagedCommunicator::broadcast(void* data, size_t count, DType dtype, int root) {
  const size_t bytes = count * bytes_of(dtype);
  return start(
      rank() == root ? copy_to_host(data, bytes) : stream_->after(followed_),
      [&] { return host_->broadcast(mirror(data), count, dtype, root); },
      [=, this] { return copy_to_device(data, bytes); });
}

WorkPtr StagedCommunicator::reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                                  std::span<const TreeNode> leaf_of_rank,
                                                  PartialSum& slice) {
  Status copies = copy_to_host(full, count * bytes_of(dtype) * static_cast<size_t>(size()));
  auto mirrored = mirror_of(slice);
  if (copies.ok()) copies = mirrored.status();
  const std::shared_ptr<PartialSum> sum = mirrored.ok() ? mirrored.take() : nullptr;
  return start(
      copies,
      [&] { return host_->reduce_scatter_leaves(mirror(full), count, dtype, leaf_of_rank, *sum); },
      [this, sum, &slice]() -> Status {
        for (size_t i = 0; i < sum->nodes().size(); ++i)
          SS_RETURN_IF_ERROR(copy_to_device(slice.buffer(i), sum->count() * sizeof(float)));
        slice.clear();
        slice.added(sum->nodes());
        return {};
      });
}

WorkPtr StagedCommunicator::all_reduce_partials(
    const PartialSum& mine, std::span<const std::vector<TreeNode>> nodes_of_rank, float* total) {
  auto mirrored = mirror_of(mine);
  Status copies = mirrored.status();
  if (copies.ok()) copies = stream_->after(followed_);
  const std::shared_ptr<PartialSum> sum = mirrored.ok() ? mirrored.take() : nullptr;
  return start(
      copies,
      [&] {
        return host_->all_reduce_partials(*sum, nodes_of_rank,
                                          reinterpret_cast<float*>(mirror(total)));
      },
      [=, this] { return copy_to_device(total, sum->count() * sizeof(float)); });
}

}  // namespace simplescale::nccl
