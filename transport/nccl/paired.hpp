// Two NCCL communicators of the same ranks as one collective: gathers and broadcasts run on one of
// them, sums on the other, so that the parameters of the next unit do not wait behind the gradient
// of the last one. Each has its own stream. All ranks start operations in the same order, as NCCL
// demands of a process with several communicators. Threads: as Collective.
#pragma once

#include <memory>
#include <utility>

#include "transport/nccl/communicator.hpp"

namespace simplescale::nccl {

class PairedCommunicator final : public Collective {
 public:
  /// Connected, with one collective over host memory, which that of the sums uses.
  PairedCommunicator(std::unique_ptr<NcclCommunicator> sums,
                     std::unique_ptr<NcclCommunicator> gathers)
      : sums_(std::move(sums)), gathers_(std::move(gathers)) {}

  int rank() const override { return sums_->rank(); }
  int size() const override { return sums_->size(); }
  bool native_sums() const override { return sums_->native_sums(); }
  Result<void*> allocate(size_t bytes) override {
    Result<void*> data = sums_->allocate(bytes);
    if (data.ok()) gathers_->register_buffer(*data, bytes);
    return data;
  }
  WorkPtr barrier() override { return sums_->barrier(); }
  WorkPtr all_gather_bytes(const void* mine, void* all, size_t bytes) override {
    return sums_->all_gather_bytes(mine, all, bytes);
  }

  WorkPtr all_gather(const void* shard, void* full, size_t count, DType dtype) override {
    return linked(gathers_->all_gather(shard, full, count, dtype), *sums_);
  }
  WorkPtr broadcast(void* data, size_t count, DType dtype, int root) override {
    return linked(gathers_->broadcast(data, count, dtype, root), *sums_);
  }
  WorkPtr reduce_scatter(const void* full, void* shard, size_t count, DType dtype) override {
    return linked(sums_->reduce_scatter(full, shard, count, dtype), *gathers_);
  }
  WorkPtr all_reduce(void* data, size_t count, DType dtype) override {
    return linked(sums_->all_reduce(data, count, dtype), *gathers_);
  }
  WorkPtr reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                std::span<const TreeNode> leaf_of_rank,
                                PartialSum& slice) override {
    return linked(sums_->reduce_scatter_leaves(full, count, dtype, leaf_of_rank, slice), *gathers_);
  }
  WorkPtr all_reduce_partials(const PartialSum& mine,
                              std::span<const std::vector<TreeNode>> nodes_of_rank,
                              float* total) override {
    return linked(sums_->all_reduce_partials(mine, nodes_of_rank, total), *gathers_);
  }

  void follow(void* stream) override {
    sums_->follow(stream);
    gathers_->follow(stream);
  }
  void abort(const std::string& reason) override {
    sums_->abort(reason);
    gathers_->abort(reason);
  }

 private:
  /// An operation of one of the two whose failure ends the other one.
  class Linked final : public Work {
   public:
    Linked(WorkPtr work, NcclCommunicator& other) : work_(std::move(work)), other_(other) {}
    ~Linked() override { (void)wait(); }
    Status wait() override {
      const Status status = work_->wait();
      if (!status.ok()) other_.abort(status.message());
      return status;
    }

   private:
    WorkPtr work_;
    NcclCommunicator& other_;
  };
  static WorkPtr linked(WorkPtr work, NcclCommunicator& other) {
    return std::make_unique<Linked>(std::move(work), other);
  }

  std::unique_ptr<NcclCommunicator> sums_, gathers_;
};

}  // namespace simplescale::nccl
