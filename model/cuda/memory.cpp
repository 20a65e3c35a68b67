#include "model/cuda/memory.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

#include "model/cuda/check.hpp"

namespace simplescale::cuda {
namespace {

/// Calls call(), and again with DeviceMemoryRetry while the device has no memory.
template <class Call>
cudaError_t with_patience(DeviceMemoryRetry& patience, Call call) {
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
  SS_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
  Event owner(event);
  SS_CUDA(cudaEventRecord(event, stream));
  return owner;
}

}  // namespace

void use_device(int index) {
  DeviceMemoryRetry patience;
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
  constexpr auto kLongestPause = std::chrono::milliseconds(250);  // the destructor waits for it
  cudaError_t error = cudaSetDevice(device);
  for (size_t at = 0, piece; at < bytes_ && error == cudaSuccess; at += piece) {
    if (stop.stop_requested()) return;
    piece =
        std::min(bytes_ - at, kPieceBytes - reinterpret_cast<uintptr_t>(begin_ + at) % kPieceBytes);
    const auto begun = std::chrono::steady_clock::now();
    error = cudaHostRegister(begin_ + at, piece, cudaHostRegisterPortable);
    if (error == cudaSuccess) pieces_.push_back(begin_ + at);
    // The compute thread's calls wait for this one: they have the driver most of the time.
    const auto took = std::chrono::steady_clock::now() - begun;
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(4 * took, kLongestPause));
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

void SideStream::lead(cudaStream_t other) {
  SS_CUDA(cudaStreamWaitEvent(other, event_after(stream_).get(), 0));
}

namespace {

/// Of host memory that is pinned, or short.
void copy_pinned(cudaStream_t stream, void* to, const void* from, size_t bytes,
                 cudaMemcpyKind kind) {
  // So that a copy by another stream need not wait for all of it. None crosses an end of a
  // PinnedRange's piece.
  constexpr size_t kCopyBytes = size_t{16} << 20;
  static_assert(PinnedRange::kPieceBytes % kCopyBytes == 0);
  const auto host = reinterpret_cast<uintptr_t>(kind == cudaMemcpyDeviceToHost ? to : from);
  for (size_t at = 0, piece; at < bytes; at += piece) {
    piece = std::min(bytes - at, kCopyBytes - (host + at) % kCopyBytes);
    SS_CUDA(cudaMemcpyAsync(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, piece,
                            kind, stream));
  }
}

constexpr size_t kStagedBytes = size_t{2} << 20;  // the fastest of 2, 8 and 32 MiB

/// A thread of copy_unpinned(): copies pieces while there are any. `next`: where the next one begins.
void copy_pieces(cudaEvent_t after, char* to, const char* from, size_t bytes, bool to_host,
                 std::atomic<size_t>& next) {
  struct Turn {
    PinnedBuffer buffer;
    Event done;
    size_t at = 0, bytes = 0;  // of the piece that is on its way; 0 bytes: none
  } turns[2];
  SideStream stream;
  SS_CUDA(cudaStreamWaitEvent(stream.get(), after, 0));
  const auto finish = [&](Turn& turn) {
    if (turn.bytes == 0) return;
    SS_CUDA(cudaEventSynchronize(turn.done.get()));
    if (to_host) std::memcpy(to + turn.at, turn.buffer.reserve(0), turn.bytes);
    turn.bytes = 0;
  };
  size_t at, count = 0;
  while ((at = next.fetch_add(kStagedBytes)) < bytes) {
    Turn& turn = turns[count++ % 2];
    finish(turn);
    void* const buffer = turn.buffer.reserve(kStagedBytes);
    turn.at = at;
    turn.bytes = std::min(kStagedBytes, bytes - at);
    if (to_host) {
      SS_CUDA(cudaMemcpyAsync(buffer, from + at, turn.bytes, cudaMemcpyDeviceToHost, stream.get()));
    } else {
      std::memcpy(buffer, from + at, turn.bytes);
      SS_CUDA(cudaMemcpyAsync(to + at, buffer, turn.bytes, cudaMemcpyHostToDevice, stream.get()));
    }
    turn.done = event_after(stream.get());
  }
  for (Turn& turn : turns) finish(turn);
}

/// Copies between device memory and host memory that is not pinned, once `after` is reached, and
/// returns when all is copied. The driver makes such copies with one thread, 8 to 14 GB/s on the host
/// of an H200; this makes them with `threads`, each with a stream and two small pinned buffers: 46
/// GB/s with eight.
void copy_unpinned(cudaEvent_t after, void* to, const void* from, size_t bytes, bool to_host,
                   int threads) {
  int device = 0;
  SS_CUDA(cudaGetDevice(&device));
  std::atomic<size_t> next = 0;
  std::vector<std::future<void>> parts;
  const auto work = [=, &next] {
    SS_CUDA(cudaSetDevice(device));
    copy_pieces(after, static_cast<char*>(to), static_cast<const char*>(from), bytes, to_host,
                next);
  };
  try {
    for (int i = 0; i < threads; ++i) parts.push_back(std::async(std::launch::async, work));
  } catch (const std::system_error&) {
    // No more threads are allowed: those that there are do the work.
  }
  if (parts.empty()) work();
  for (std::future<void>& part : parts) part.wait();  // they use `next`
  for (std::future<void>& part : parts) part.get();
}

}  // namespace

bool HostCopies::is_pinned(const void* host, size_t bytes) const {
  const auto covers = [&](const auto& memory) { return memory.second.covers(host, bytes); };
  return std::ranges::any_of(reserved_, covers) || std::ranges::any_of(pinned_, covers);
}

void* HostCopies::reserve(size_t use, size_t bytes) {
  return reserved_[use].reserve(bytes);
}

namespace {

HostCopies::Pending end_of(cudaStream_t copies) {
  return [made = std::shared_ptr(event_after(copies))](cudaStream_t stream) {
    SS_CUDA(cudaStreamWaitEvent(stream, made.get(), 0));
  };
}

}  // namespace

HostCopies::Pending HostCopies::upload(cudaStream_t after, void* device, const void* host,
                                       size_t bytes) {
  uploads_.follow(after);
  copy_pinned(uploads_.get(), device, host, bytes, cudaMemcpyHostToDevice);
  return end_of(uploads_.get());
}

HostCopies::Pending HostCopies::download(cudaStream_t after, void* host, const void* device,
                                         size_t bytes) {
  stream_.follow(after);
  copy_pinned(stream_.get(), host, device, bytes, cudaMemcpyDeviceToHost);
  return end_of(stream_.get());
}

void HostCopies::start(cudaStream_t after, void* host, const void* device, size_t bytes) {
  if (is_pinned(host, bytes)) {
    stream_.follow(after);
    return copy_pinned(stream_.get(), host, device, bytes, cudaMemcpyDeviceToHost);
  }
  int index = 0;
  SS_CUDA(cudaGetDevice(&index));
  const auto copy = [=, this, made = std::shared_ptr(event_after(after))] {
    SS_CUDA(cudaSetDevice(index));
    const std::lock_guard one_at_a_time(threads_lock_);
    copy_unpinned(made.get(), host, device, bytes, true, threads_);
  };
  try {
    begun_.push_back(std::async(std::launch::async, copy));
  } catch (const std::system_error&) {  // no more threads are allowed
    copy();
  }
}

void HostCopies::finish() {
  for (std::future<void>& copy : std::exchange(begun_, {})) copy.get();
  stream_.finish();
}

void HostCopies::copy(cudaStream_t after, void* to, const void* from, size_t bytes, bool to_host) {
  if (bytes > kStagedBytes && !is_pinned(to_host ? to : from, bytes))
    return copy_unpinned(event_after(after).get(), to, from, bytes, to_host, threads_);
  copy_pinned(after, to, from, bytes, to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice);
  SS_CUDA(cudaStreamSynchronize(after));
}

}  // namespace simplescale::cuda
