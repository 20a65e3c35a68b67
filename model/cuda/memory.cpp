#include "model/cuda/memory.hpp"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "model/cuda/check.hpp"

namespace simplescale::cuda {
namespace {

constexpr std::chrono::seconds kPatience{10};
// Copies are cut into pieces: short copies (losses, norms) need not wait for a whole one.
constexpr size_t kPieceBytes = size_t{16} << 20;

}  // namespace

DeviceMemory::~DeviceMemory() {
  for (void* block : blocks_) (void)cudaFree(block);
}

Result<void*> DeviceMemory::allocate(size_t bytes) {
  void* block = nullptr;
  cudaError_t error;
  while ((error = cudaMalloc(&block, bytes > 0 ? bytes : 1)) == cudaErrorMemoryAllocation) {
    if (!give_up_) give_up_ = Clock::now() + kPatience;
    if (Clock::now() >= *give_up_) break;
    (void)cudaGetLastError();  // clears the error; out of memory leaves the context usable
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (error == cudaSuccess) {
    blocks_.push_back(block);
    error = cudaMemset(block, 0, bytes);
    // cudaMemset is asynchronous, and our streams do not wait for the default stream.
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
  }
  if (error == cudaSuccess) return block;
  (void)cudaGetLastError();
  size_t free = 0, total = 0;
  (void)cudaMemGetInfo(&free, &total);
  return Status(Code::io, "no device memory for " + std::to_string(bytes) + " bytes (" +
                              std::to_string(free) + " of " + std::to_string(total) +
                              " are free): " + cudaGetErrorName(error) + ", " +
                              cudaGetErrorString(error));
}

PinnedBuffer::~PinnedBuffer() {
  if (data_) (void)cudaFreeHost(data_);
}

void* PinnedBuffer::reserve(size_t bytes) {
  if (bytes <= bytes_) return data_;
  if (data_) SS_CUDA(cudaFreeHost(data_));
  data_ = nullptr;
  bytes_ = 0;
  SS_CUDA(cudaMallocHost(&data_, bytes));
  bytes_ = bytes;
  return data_;
}

HostCopies::HostCopies() {
  SS_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  SS_CUDA(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming));
}

HostCopies::~HostCopies() {
  if (stream_) (void)cudaStreamSynchronize(stream_);
  for (void* host : pinned_) (void)cudaHostUnregister(host);
  if (ready_) (void)cudaEventDestroy(ready_);
  if (stream_) (void)cudaStreamDestroy(stream_);
}

void HostCopies::pin(void* host, size_t bytes) {
  const cudaError_t error = cudaHostRegister(host, bytes, cudaHostRegisterPortable);
  if (error == cudaSuccess) {
    pinned_.insert(host);
    return;
  }
  (void)cudaGetLastError();
  // Not by runtime/base/log.hpp: libtorch contains another version of fmt.
  std::fprintf(
      stderr,
      "cannot pin %zu bytes of shared memory (%s): each step waits for the copy of the state\n",
      bytes, cudaGetErrorString(error));
}

void HostCopies::unpin(void* host) {
  if (pinned_.erase(host) > 0) SS_CUDA(cudaHostUnregister(host));
}

void HostCopies::start(cudaStream_t after, void* host, const void* device, size_t bytes) {
  SS_CUDA(cudaEventRecord(ready_, after));
  SS_CUDA(cudaStreamWaitEvent(stream_, ready_, 0));
  auto* to = static_cast<char*>(host);
  const auto* from = static_cast<const char*>(device);
  for (size_t at = 0; at < bytes; at += kPieceBytes)
    SS_CUDA(cudaMemcpyAsync(to + at, from + at, std::min(kPieceBytes, bytes - at),
                            cudaMemcpyDeviceToHost, stream_));
}

void HostCopies::finish() {
  SS_CUDA(cudaStreamSynchronize(stream_));
}

}  // namespace simplescale::cuda
