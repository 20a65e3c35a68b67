#include "transport/nccl/stream.hpp"

#include "runtime/base/device_memory_retry.hpp"

namespace simplescale::nccl {

Status cuda_status(cudaError_t error, const char* expression, const char* file, int line) {
  if (error == cudaSuccess) return {};
  return Status(Code::unavailable, std::string(file) + ":" + std::to_string(line) + ": " +
                                       expression + ": " + cudaGetErrorName(error) + ", " +
                                       cudaGetErrorString(error));
}

Result<Event> Event::record(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  SS_RETURN_IF_ERROR(SS_CUDA_STATUS(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
  Handle handle(event);
  SS_RETURN_IF_ERROR(SS_CUDA_STATUS(cudaEventRecord(event, stream)));
  return Event(std::move(handle));
}

Result<bool> Event::done() const {
  const cudaError_t error = cudaEventQuery(event_.get());
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();  // libtorch throws what it finds there after its next kernel
    return false;
  }
  SS_RETURN_IF_ERROR(SS_CUDA_STATUS(error));
  return true;
}

Result<std::unique_ptr<Stream>> Stream::create(int device_index) {
  std::unique_ptr<Stream> stream(new Stream(device_index));
  cudaError_t error;
  DeviceMemoryRetry patience;  // the first call creates the device's context, which needs memory
  while ((error = cudaSetDevice(device_index)) == cudaErrorMemoryAllocation && patience.again())
    (void)cudaGetLastError();  // resets the error
  SS_RETURN_IF_ERROR(cuda_status(error, "cudaSetDevice", __FILE__, __LINE__));
  int least = 0, greatest = 0;
  SS_RETURN_IF_ERROR(SS_CUDA_STATUS(cudaDeviceGetStreamPriorityRange(&least, &greatest)));
  SS_RETURN_IF_ERROR(SS_CUDA_STATUS(
      cudaStreamCreateWithPriority(&stream->stream_, cudaStreamNonBlocking, greatest)));
  SS_RETURN_IF_ERROR(
      SS_CUDA_STATUS(cudaEventCreateWithFlags(&stream->other_, cudaEventDisableTiming)));
  return stream;
}

Stream::~Stream() {
  if (other_) (void)cudaEventDestroy(other_);
  if (stream_) (void)cudaStreamDestroy(stream_);
}

Status Stream::after(cudaStream_t other) const {
  if (!other) return {};
  SS_RETURN_IF_ERROR(SS_CUDA_STATUS(cudaEventRecord(other_, other)));
  return SS_CUDA_STATUS(cudaStreamWaitEvent(stream_, other_, 0));
}

Status Stream::finish(Clock::time_point limit) const {
  SS_ASSIGN(const Event event, Event::record(stream_));
  return poll(limit, [&] { return event.done(); });
}

Result<void*> Stream::allocate(size_t bytes, Clock::time_point limit) const {
  void* data = nullptr;
  cudaError_t error;
  DeviceMemoryRetry patience;
  while ((error = cudaMalloc(&data, bytes > 0 ? bytes : 1)) == cudaErrorMemoryAllocation &&
         patience.again(limit))
    (void)cudaGetLastError();  // resets the error
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return Status(Code::io, "no device memory for " + std::to_string(bytes) + " bytes: " +
                                cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
  }
  Status zeroed = SS_CUDA_STATUS(cudaMemsetAsync(data, 0, bytes, stream_));
  if (zeroed.ok()) zeroed = finish(limit);
  if (zeroed.ok()) return data;
  (void)cudaFree(data);
  return zeroed;
}

}  // namespace simplescale::nccl
