#include "model/cuda/memory.hpp"

#include "model/cuda/check.hpp"

namespace simplescale::cuda {

DeviceMemory::~DeviceMemory() {
  for (void* block : blocks_) (void)cudaFree(block);
}

Result<void*> DeviceMemory::allocate(size_t bytes) {
  void* block = nullptr;
  cudaError_t error = cudaMalloc(&block, bytes > 0 ? bytes : 1);
  if (error == cudaSuccess) {
    blocks_.push_back(block);
    error = cudaMemset(block, 0, bytes);
    // Asynchronous to the host, and streams of ours do not wait for the default one.
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
  }
  if (error == cudaSuccess) return block;
  (void)cudaGetLastError();  // out of memory does not stick
  size_t free = 0, total = 0;
  (void)cudaMemGetInfo(&free, &total);
  return Status(Code::io, "no device memory for " + std::to_string(bytes) + " bytes (" +
                              std::to_string(free) + " of " + std::to_string(total) +
                              " are free): " + cudaGetErrorString(error));
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

}  // namespace simplescale::cuda
