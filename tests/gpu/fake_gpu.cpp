#include "tests/gpu/fake_gpu.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "transport/nccl/tree_program.hpp"

using simplescale::fake_gpu::note;
using simplescale::fake_gpu::run_on;
using Flag = std::shared_ptr<std::atomic<bool>>;

struct CUstream_st {
  int priority = 0;
  std::recursive_mutex calling;  // held by a thread during its call on this stream
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> queue;
  bool ending = false;
  std::thread worker{[this] {
    for (;;) {
      std::unique_lock lock(mutex);
      wake.wait(lock, [this] { return ending || !queue.empty(); });
      if (queue.empty()) return;
      const auto work = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      work();
    }
  }};
  void push(std::function<void()> work) {
    const std::lock_guard call(calling);
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(work));
    wake.notify_one();
  }
  ~CUstream_st() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    wake.notify_one();
    worker.join();
  }
};
struct CUevent_st {
  const bool blocking;                        // a thread that waits for it sleeps
  Flag done{};                                // null: nothing was recorded
  std::shared_ptr<std::atomic<int>> works{};  // that had run when the stream passed it
  bool asked = false;                         // by cudaEventQuery() since then
};

namespace {

constexpr int kLeastPriority = 0, kGreatestPriority = -5;
std::atomic<int> allocations_to_fail = 0;
std::atomic<bool> counting_only = false;
std::atomic<size_t> pieces_allowed = SIZE_MAX;

std::atomic<unsigned> flags = 0;
std::atomic<int> works = 0;  // of run_on() that have run; each takes a microsecond

thread_local std::vector<std::string>* calls = nullptr;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

/// Some calls leave what they return in cudaGetLastError(). cudaErrorNotReady may be left there:
/// libtorch clears it.
cudaError_t left(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

std::mutex memory_mutex;  // guards the next six
std::vector<int> gpu_majors{9};
int driver_version = CUDART_VERSION;
bool slices = false;
std::set<int> contexts;
std::map<void*, size_t> device_blocks;
std::map<const char*, size_t> registered, pinned_blocks;  // of cudaMallocHost()

bool out_of_memory() {
  int left = allocations_to_fail;
  while (left > 0)
    if (allocations_to_fail.compare_exchange_weak(left, left - 1)) return true;
  return false;
}

enum class Pinned { no, yes, partly };

/// Whether each byte of a copy is in the same registered piece, or none is in any.
Pinned pinned(const void* host, size_t bytes) {
  const auto* begin = static_cast<const char*>(host);
  const std::lock_guard lock(memory_mutex);
  for (const auto* blocks : {&registered, &pinned_blocks})
    for (const auto& [piece, size] : *blocks)
      if (begin < piece + size && piece < begin + bytes)
        return piece <= begin && begin + bytes <= piece + size ? Pinned::yes : Pinned::partly;
  return Pinned::no;
}

void wait_for(cudaStream_t stream) {
  const Flag done = std::make_shared<std::atomic<bool>>(false);
  stream->push([done] {
    *done = true;
    done->notify_all();
  });
  done->wait(false);
}

const char* direction(cudaMemcpyKind kind) {
  return kind == cudaMemcpyDeviceToHost   ? "to the host"
         : kind == cudaMemcpyHostToDevice ? "to the device"
                                          : "on the device";
}

/// Pieces of one copy, one after the other, are noted as one copy.
void note_copy(void* to, size_t bytes, cudaMemcpyKind kind) {
  if (!calls) return;
  thread_local const char* end = nullptr;  // of the copy that `last` tells of
  thread_local std::string last;
  thread_local size_t total = 0;
  const bool piece = to == end && !calls->empty() && calls->back() == last;
  if (piece) calls->pop_back();
  total = bytes + (piece ? total : 0);
  end = static_cast<const char*>(to) + bytes;
  last = "copy " + std::to_string(total) + " bytes " + direction(kind);
  note(last);
}

}  // namespace

namespace simplescale::fake_gpu {
void run_on(cudaStream_t stream, std::function<void()> work) {
  if (counting_only) return;
  stream->push([work = std::move(work)] {
    work();
    ++works;
  });
}
std::set<int> devices_with_contexts() {
  const std::lock_guard lock(memory_mutex);
  return contexts;
}
void record(std::vector<std::string>* log) {
  calls = log;
}
void note(const std::string& call) {
  if (calls) calls->push_back(call);
}
void check_last_error() {
  if (const cudaError_t error = std::exchange(last_error, cudaSuccess); error != cudaSuccess)
    throw std::runtime_error("an earlier call has left the error " + std::to_string(error));
}
void note_kernel(const std::string& name, cudaStream_t stream) {
  note("kernel " + name +
       (stream->priority == kLeastPriority      ? ", at low priority"
        : stream->priority == kGreatestPriority ? ", at high priority"
                                                : ""));
}
void allow_pinning(size_t pieces) {
  pieces_allowed = pieces;
  pieces_allowed.notify_all();
}
size_t registered_pieces() {
  const std::lock_guard lock(memory_mutex);
  return registered.size();
}
void set_gpus(std::vector<int> majors) {
  const std::lock_guard lock(memory_mutex);
  gpu_majors = std::move(majors);
}
void set_driver(int version) {
  driver_version = version;
}
void make_slices(bool wanted) {
  const std::lock_guard lock(memory_mutex);
  slices = wanted;
}
void fail_allocations(int number) {
  allocations_to_fail = number;
}
bool finds_no_memory() {
  return out_of_memory() && left(cudaErrorMemoryAllocation) != cudaSuccess;
}
int failures_left() {
  return allocations_to_fail;
}
size_t device_bytes() {
  const std::lock_guard lock(memory_mutex);
  size_t bytes = 0;
  for (const auto& [_, size] : device_blocks) bytes += size;
  return bytes;
}
size_t pinned_bytes() {
  const std::lock_guard lock(memory_mutex);
  size_t bytes = 0;
  for (const auto& [_, size] : pinned_blocks) bytes += size;
  return bytes;
}
void count_only(bool wanted) {
  counting_only = wanted;
}
}  // namespace simplescale::fake_gpu

// --- The sum in tree order as plain loops (kernels_test.cpp tests the kernel) ---

cudaError_t simplescale::nccl::run_tree_program(cudaStream_t stream, const TreeProgram& program,
                                                int64_t count) {
  fake_gpu::note_kernel("run_tree_program", stream);
  run_on(stream, [p = std::make_shared<TreeProgram>(program), count] {
    for (int64_t i = 0; i < count; ++i) {
      std::vector<float> stack;
      auto merge = [&] {
        const float top = stack.back();
        stack.pop_back();
        stack.back() += top;
      };
      for (int s = 0; s < p->sources; ++s) {
        stack.push_back(p->bf16[s] ? bf16_to_f32(static_cast<const uint16_t*>(p->source[s])[i])
                                   : static_cast<const float*>(p->source[s])[i]);
        for (int m = 0; m < p->merges[s]; ++m) merge();
      }
      while (p->total && stack.size() > 1) merge();
      for (size_t s = 0; s < stack.size(); ++s)
        if (p->narrow_sinks)
          static_cast<uint16_t*>(p->sink[s])[i] = f32_to_bf16(stack[s]);
        else
          static_cast<float*>(p->sink[s])[i] = stack[s];
    }
  });
  return cudaSuccess;
}

extern "C" {

// --- CUDA ---

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  *stream = new CUstream_st{priority};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = kLeastPriority;
  *greatest = kGreatestPriority;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned wanted) {
  *event = new CUevent_st{(wanted & cudaEventBlockingSync) != 0};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Flag done = std::make_shared<std::atomic<bool>>(false);
  event->done = done;
  event->works = std::make_shared<std::atomic<int>>(0);
  event->asked = false;
  stream->push([done, at = event->works] {
    *at = works.load();
    *done = true;
    done->notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!std::exchange(event->asked, true)) note("the host waits for an event");
  return left(!event->done || *event->done ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  note("a stream waits for another");
  stream->push([done = event->done] {
    if (done) done->wait(false);
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  note("set " + std::to_string(bytes) + " bytes");
  run_on(stream, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool to_host = kind == cudaMemcpyDeviceToHost;
  const Pinned host = to_host                          ? pinned(to, bytes)
                      : kind == cudaMemcpyHostToDevice ? pinned(from, bytes)
                                                       : Pinned::yes;
  if (host == Pinned::partly) return cudaErrorInvalidValue;
  note_copy(to, bytes, kind);
  const std::lock_guard call(stream->calling);
  run_on(stream, [=] { std::memcpy(to, from, bytes); });
  if (to_host && host == Pinned::no) wait_for(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  note("the host waits for a stream");
  wait_for(stream);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = static_cast<float>(*end->works - *begin->works) / 1000;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->done)
    note(event->blocking ? "the host waits for an event" : "the host spins until an event");
  if (const Flag done = event->done) done->wait(false);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  if (!counting_only) std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, size_t bytes) {
  note("allocate " + std::to_string(bytes) + " bytes of pinned memory");
  *data = std::calloc(bytes, 1);
  const std::lock_guard lock(memory_mutex);
  pinned_blocks[static_cast<const char*>(*data)] = bytes;
  return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* data) {
  const std::lock_guard lock(memory_mutex);
  pinned_blocks.erase(static_cast<const char*>(data));
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* host, size_t bytes, unsigned) {
  for (size_t allowed; simplescale::fake_gpu::registered_pieces() >= (allowed = pieces_allowed);)
    pieces_allowed.wait(allowed);
  const std::lock_guard lock(memory_mutex);
  registered[static_cast<const char*>(host)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* host) {
  const std::lock_guard lock(memory_mutex);
  return registered.erase(static_cast<const char*>(host)) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* devices) {
  const std::lock_guard lock(memory_mutex);
  *devices = static_cast<int>(gpu_majors.size());
  if (driver_version < CUDART_VERSION) return cudaErrorInsufficientDriver;
  return gpu_majors.empty() ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (out_of_memory()) return left(cudaErrorMemoryAllocation);
  note("allocate " + std::to_string(bytes) + " bytes");
  const size_t size = (bytes + 255) / 256 * 256;
  *data = counting_only ? mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                        : std::aligned_alloc(256, size);
  if (!*data || *data == MAP_FAILED) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(memory_mutex);
  device_blocks[*data] = size;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  const std::lock_guard lock(memory_mutex);
  const auto block = device_blocks.extract(data);
  if (!block) return data ? cudaErrorInvalidValue : cudaSuccess;
  if (counting_only) return munmap(data, block.mapped()), cudaSuccess;
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  const std::lock_guard lock(memory_mutex);
  // The ranks of a test may each have a GPU, without set_gpus().
  const auto index = std::min(static_cast<size_t>(device), gpu_majors.size() - 1);
  properties->major = gpu_majors[index];
  std::strcpy(properties->name, slices ? "Fake GPU MIG 1g.10gb" : "Fake GPU");
  properties->multiProcessorCount = 8;
  properties->totalGlobalMem = size_t{80} << 30;
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  properties->pciBusID = 16 * (slices ? 1 : device + 1) + 10;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (out_of_memory()) return left(cudaErrorMemoryAllocation);
  const std::lock_guard lock(memory_mutex);
  contexts.insert(current_device = device);
  return cudaSuccess;
}
cudaError_t cudaSetDeviceFlags(unsigned wanted) {
  flags = wanted;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceFlags(unsigned* now) {
  *now = flags;
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() {
  note("a context ends");
  const std::lock_guard lock(memory_mutex);
  contexts.erase(current_device);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  note("the host waits for the device");
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorName(cudaError_t) {
  return "cudaErrorFake";
}
const char* cudaGetErrorString(cudaError_t) {
  return "fake";
}

}  // extern "C"
