// The common base of the collectives over device memory. It owns a stream and a collective over
// host memory, which carries barriers and small records. Threads: as Collective.
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
  DeviceCollective(std::shared_ptr<Collective> host, std::unique_ptr<Stream> stream)
      : host_(std::move(host)), stream_(std::move(stream)) {}

  std::shared_ptr<Collective> host_;  // PairedCommunicator's two share it
  std::unique_ptr<Stream> stream_;
  cudaStream_t followed_ = nullptr;  // see follow(); null: none
};

}  // namespace simplescale::nccl
