#include "model/cuda/memory.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include "model/cuda/check.hpp"

namespace simplescale::cuda {
namespace {

/// Calls call(), and again with Patience while the device has no memory.
template <class Call>
cudaError_t with_patience(Patience& patience, Call call) {
  cudaError_t error;
  while ((error = call()) == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // clears the error; out of memory leaves the context usable
    if (!patience.again()) break;
  }
  return error;
}

struct DestroyEvent {
  void operator()(cudaEvent_t event) const { (void)cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;

/// Reached once all work enqueued on `stream` so far is done.
Event event_after(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  SS_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  Event owner(event);
  SS_CUDA(cudaEventRecord(event, stream));
  return owner;
}

}  // namespace

void use_device(int index) {
  Patience patience;
  SS_CUDA(with_patience(patience, [index] { return cudaSetDevice(index); }));
  // By default a thread that waits for the GPU spins, which is most of a step. It only costs CPU
  // time, so a driver may refuse this.
  if (cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync) != cudaSuccess) (void)cudaGetLastError();
}

DeviceMemory::~DeviceMemory() {
  for (void* block : blocks_) (void)cudaFree(block);
}

Result<void*> DeviceMemory::allocate(size_t bytes) {
  void* block = nullptr;
  cudaError_t error =
      with_patience(patience_, [&] { return cudaMalloc(&block, bytes > 0 ? bytes : 1); });
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

PinnedRange::PinnedRange(void* host, size_t bytes)
    : begin_(static_cast<char*>(host)), bytes_(bytes) {
  int device = 0;
  SS_CUDA(cudaGetDevice(&device));
  thread_ = std::jthread([=, this](std::stop_token stop) { pin(std::move(stop), device); });
}

PinnedRange::~PinnedRange() {
  thread_.request_stop();
  thread_.join();
  for (void* piece : pieces_) (void)cudaHostUnregister(piece);
}

void PinnedRange::pin(std::stop_token stop, int device) {
  cudaError_t error = cudaSetDevice(device);
  for (size_t at = 0, piece; at < bytes_ && error == cudaSuccess; at += piece) {
    if (stop.stop_requested()) return;
    piece =
        std::min(bytes_ - at, kPieceBytes - reinterpret_cast<uintptr_t>(begin_ + at) % kPieceBytes);
    error = cudaHostRegister(begin_ + at, piece, cudaHostRegisterPortable);
    if (error == cudaSuccess) pieces_.push_back(begin_ + at);
  }
  complete_ = error == cudaSuccess;
  if (complete_) return;
  (void)cudaGetLastError();
  // Not by runtime/base/log.hpp: libtorch contains another version of fmt.
  std::fprintf(stderr,
               "cannot pin %zu bytes of shared memory (%s): copies of the state are slow, and "
               "steps may wait for them\n",
               bytes_, cudaGetErrorString(error));
}

SideStream::SideStream() {
  int least = 0, greatest = 0;
  SS_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  SS_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, least));
}

SideStream::~SideStream() {
  (void)cudaStreamSynchronize(stream_);
  (void)cudaStreamDestroy(stream_);
}

void SideStream::follow(cudaStream_t other) {
  SS_CUDA(cudaStreamWaitEvent(stream_, event_after(other).get(), 0));
}

void SideStream::finish() {
  SS_CUDA(cudaStreamSynchronize(stream_));
}

void HostCopies::start(cudaStream_t after, void* host, const void* device, size_t bytes) {
  const auto copy = [this, host, device, bytes] {
    auto* to = static_cast<char*>(host);
    const auto* from = static_cast<const char*>(device);
    for_each_piece(host, bytes, [&](size_t at, size_t piece) {
      SS_CUDA(cudaMemcpyAsync(to + at, from + at, piece, cudaMemcpyDeviceToHost, stream_.get()));
    });
  };
  const auto covers = [&](const auto& range) { return range.second.covers(host, bytes); };
  if (begins_.empty() && std::ranges::any_of(pinned_, covers)) {
    stream_.follow(after);
    return copy();
  }
  int index = 0;
  SS_CUDA(cudaGetDevice(&index));
  begins_.push_back(std::async(std::launch::async, [this, copy, index, made = event_after(after)] {
    SS_CUDA(cudaSetDevice(index));
    SS_CUDA(cudaStreamWaitEvent(stream_.get(), made.get(), 0));
    copy();
  }));
}

void HostCopies::finish() {
  for (std::future<void>& begin : std::exchange(begins_, {})) begin.get();
  stream_.finish();
}

}  // namespace simplescale::cuda
