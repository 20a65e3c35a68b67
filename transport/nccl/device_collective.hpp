// What the collectives over device memory have in common: each keeps a Collective over host memory
// beside it. The ranks meet there, and barriers and small host records go over it.
#pragma once

#include <memory>
#include <utility>

#include "runtime/training/collective.hpp"
#include "transport/nccl/stream.hpp"

namespace simplescale::nccl {

class DeviceCollective : public Collective {
 public:
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  WorkPtr barrier() override { return host_->barrier(); }
  WorkPtr all_gather_bytes(const void* mine, void* all, size_t bytes) override {
    return host_->all_gather_bytes(mine, all, bytes);
  }
  void follow(void* stream) override { followed_ = static_cast<cudaStream_t>(stream); }

 protected:
  DeviceCollective(std::unique_ptr<Collective> host, std::unique_ptr<Stream> stream)
      : host_(std::move(host)), stream_(std::move(stream)) {}

  std::unique_ptr<Collective> host_;
  std::unique_ptr<Stream> stream_;
  cudaStream_t followed_ = nullptr;  // null: no stream is followed
};

}  // namespace simplescale::nccl
