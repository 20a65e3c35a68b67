#include "tests/gpu/fake_gpu.hpp"

#include <nccl.h>
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
#include <thread>
#include <tuple>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "transport/nccl/tree_program.hpp"

using simplescale::fake_gpu::note;
using simplescale::fake_gpu::run_on;
using Flag = std::shared_ptr<std::atomic<bool>>;

struct CUstream_st {
  int priority = 0;
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
  Flag done;           // null: nothing was recorded
  bool asked = false;  // by cudaEventQuery() since then
};

namespace {

constexpr int kPolls = 3;  // polls until a call takes effect
constexpr int kLeastPriority = 0, kGreatestPriority = -5;
std::atomic<int> lost_rank = -1, early_calls = 0, allocations_to_fail = 0;
std::atomic<bool> aborts_hang = false, counting_only = false;
std::atomic<size_t> pieces_allowed = SIZE_MAX;

thread_local std::vector<std::string>* calls = nullptr;

std::mutex memory_mutex;  // guards the next three
std::vector<int> gpu_majors{9};
std::map<void*, size_t> device_blocks;
std::map<const char*, size_t> registered;

bool out_of_memory() {
  int left = allocations_to_fail;
  while (left > 0)
    if (allocations_to_fail.compare_exchange_weak(left, left - 1)) return true;
  return false;
}

/// Each byte of a copy is in the same registered piece, or none is in any.
bool can_copy(const void* host, size_t bytes) {
  const auto* begin = static_cast<const char*>(host);
  const std::lock_guard lock(memory_mutex);
  for (const auto& [piece, size] : registered)
    if (begin < piece + size && piece < begin + bytes)
      return piece <= begin && begin + bytes <= piece + size;
  return true;
}

/// Shared by the ranks of one ncclUniqueId: bytes in flight.
struct Network {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::tuple<int, int, bool>, std::deque<std::vector<char>>> mail;  // from, to, collective
  int joined = 0;
};
struct State {
  std::shared_ptr<Network> network;
  int rank = 0, size = 0;
  std::atomic<bool> aborted = false;
  int polls = kPolls;           // polls left for the call in progress
  std::function<void()> flush;  // enqueues that call on its stream

  void send(int to, bool collective, const void* data, size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    const std::lock_guard lock(network->mutex);
    network->mail[{rank, to, collective}].emplace_back(from, from + bytes);
    network->changed.notify_all();
  }
  void receive(int from, bool collective, void* data) {
    std::unique_lock lock(network->mutex);
    auto& mail = network->mail[{from, rank, collective}];
    network->changed.wait(lock, [&] { return aborted || !mail.empty(); });
    if (mail.empty()) return;
    std::memcpy(data, mail.front().data(), mail.front().size());
    mail.pop_front();
  }
};

std::mutex networks_mutex;
std::map<int, std::shared_ptr<Network>> networks;
thread_local bool grouping = false;
thread_local std::vector<std::function<void()>> group_sends, group_receives;
thread_local std::shared_ptr<State> group_state;
thread_local cudaStream_t group_stream;

ncclResult_t begin(const std::shared_ptr<State>& state, std::function<void()> flush) {
  if (state->polls > 0) {
    ++early_calls;
    return ncclInvalidUsage;
  }
  state->polls = kPolls;
  state->flush = std::move(flush);
  return ncclInProgress;
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

size_t size_of(ncclDataType_t type) {
  return type == ncclInt8 ? 1 : type == ncclBfloat16 ? 2 : 4;
}

/// sum += next, of fp32 or bf16.
void add(std::vector<char>& sum, const std::vector<char>& next, ncclDataType_t type) {
  auto* wide = reinterpret_cast<float*>(sum.data());
  auto* narrow = reinterpret_cast<uint16_t*>(sum.data());
  const auto* wide_next = reinterpret_cast<const float*>(next.data());
  const auto* narrow_next = reinterpret_cast<const uint16_t*>(next.data());
  for (size_t i = 0; i < sum.size() / size_of(type); ++i)
    if (type == ncclFloat32)
      wide[i] += wide_next[i];
    else
      narrow[i] = simplescale::f32_to_bf16(simplescale::bf16_to_f32(narrow[i]) +
                                           simplescale::bf16_to_f32(narrow_next[i]));
}

}  // namespace

struct ncclComm {
  std::shared_ptr<State> state;
};

namespace simplescale::fake_gpu {
void run_on(cudaStream_t stream, std::function<void()> work) {
  if (!counting_only) stream->push(std::move(work));
}
void lose_peer_of(int rank) {
  lost_rank = rank;
}
void record(std::vector<std::string>* log) {
  calls = log;
}
void note(const std::string& call) {
  if (calls) calls->push_back(call);
}
void note_kernel(const std::string& name, cudaStream_t stream) {
  note("kernel " + name +
       (stream->priority == kLeastPriority      ? ", at low priority"
        : stream->priority == kGreatestPriority ? ", at high priority"
                                                : ""));
}
void hang_aborts() {
  aborts_hang = true;
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
void fail_allocations(int number) {
  allocations_to_fail = number;
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
void count_only(bool wanted) {
  counting_only = wanted;
}
int calls_too_early() {
  return early_calls;
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
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Flag done = std::make_shared<std::atomic<bool>>(false);
  event->done = done;
  event->asked = false;
  stream->push([done] {
    *done = true;
    done->notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!std::exchange(event->asked, true)) note("the host waits for an event");
  return !event->done || *event->done ? cudaSuccess : cudaErrorNotReady;
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
  if ((kind == cudaMemcpyDeviceToHost && !can_copy(to, bytes)) ||
      (kind == cudaMemcpyHostToDevice && !can_copy(from, bytes)))
    return cudaErrorInvalidValue;
  note_copy(to, bytes, kind);
  run_on(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  note("the host waits for a stream");
  const Flag done = std::make_shared<std::atomic<bool>>(false);
  stream->push([done] {
    *done = true;
    done->notify_all();
  });
  done->wait(false);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->done) note("the host waits for an event");
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
  return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* data) {
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
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* devices) {
  const std::lock_guard lock(memory_mutex);
  *devices = static_cast<int>(gpu_majors.size());
  return gpu_majors.empty() ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (out_of_memory()) return cudaErrorMemoryAllocation;
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
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return out_of_memory() ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaDeviceReset() {
  note("a context ends");
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  note("the host waits for the device");
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) {
  return "cudaErrorFake";
}
const char* cudaGetErrorString(cudaError_t) {
  return "fake";
}

// --- NCCL ---

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error" : "fake";
}
const char* ncclGetLastError(ncclComm_t) {
  return "";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next = 1;
  const int number = next++;
  *id = {};
  std::memcpy(id->internal, &number, sizeof number);
  const std::lock_guard lock(networks_mutex);
  networks[number] = std::make_shared<Network>();
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  int number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  auto state = std::make_shared<State>();
  {
    const std::lock_guard lock(networks_mutex);
    state->network = networks.at(number);
  }
  state->rank = rank;
  state->size = size;
  const std::lock_guard lock(state->network->mutex);
  ++state->network->joined;
  *comm = new ncclComm{state};
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  State& state = *comm->state;
  *error = ncclSuccess;
  if (state.rank == lost_rank) {
    *error = ncclRemoteError;
  } else if (state.polls > 0) {
    *error = ncclInProgress;
    const std::lock_guard lock(state.network->mutex);
    if (state.network->joined < state.size || --state.polls > 0) return ncclSuccess;
    if (state.flush) std::exchange(state.flush, nullptr)();
  }
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  grouping = true;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  grouping = false;
  const auto state = std::exchange(group_state, nullptr);
  if (!state) return ncclSuccess;
  return begin(state, [stream = group_stream, sends = std::move(group_sends),
                       receives = std::move(group_receives)] {
    run_on(stream, [=] {
      for (const auto& send : sends) send();
      for (const auto& receive : receives) receive();
    });
  });
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  if (!grouping) return ncclInvalidUsage;
  note("nccl: send " + std::to_string(count * size_of(type)) + " bytes");
  group_state = comm->state;
  group_stream = stream;
  group_sends.push_back(
      [=, state = comm->state] { state->send(peer, false, data, count * size_of(type)); });
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* data, size_t, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (!grouping) return ncclInvalidUsage;
  group_state = comm->state;
  group_stream = stream;
  group_receives.push_back([=, state = comm->state] { state->receive(peer, false, data); });
  return ncclSuccess;
}
ncclResult_t ncclAllGather(const void* mine, void* all, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  note("nccl: all_gather of " + std::to_string(count * size_of(type)) + " bytes each");
  return begin(comm->state, [=, state = comm->state] {
    run_on(stream, [=] {
      const size_t bytes = count * size_of(type);
      auto* to = static_cast<char*>(all);
      for (int r = 0; r < state->size; ++r)
        if (r != state->rank) state->send(r, true, mine, bytes);
      std::memmove(to + static_cast<size_t>(state->rank) * bytes, mine, bytes);
      for (int r = 0; r < state->size; ++r)
        if (r != state->rank) state->receive(r, true, to + static_cast<size_t>(r) * bytes);
    });
  });
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  note("nccl: broadcast " + std::to_string(count * size_of(type)) + " bytes");
  return begin(comm->state, [=, state = comm->state] {
    run_on(stream, [=] {
      if (state->rank != root) return state->receive(root, true, to);
      for (int r = 0; r < state->size; ++r)
        if (r != root) state->send(r, true, from, count * size_of(type));
    });
  });
}
/// Adds in the order of a ring, from the rank after the one that gets the part, and rounds each sum
/// to the type.
ncclResult_t ncclReduceScatter(const void* full, void* part, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  if (operation != ncclSum) return ncclInvalidArgument;
  note("nccl: reduce_scatter of " + std::to_string(count * size_of(type)) + " bytes each");
  return begin(comm->state, [=, state = comm->state] {
    run_on(stream, [=] {
      const size_t bytes = count * size_of(type);
      const auto part_of = [&](int r) {
        return static_cast<const char*>(full) + static_cast<size_t>(r) * bytes;
      };
      for (int r = 0; r < state->size; ++r)
        if (r != state->rank) state->send(r, true, part_of(r), bytes);
      std::vector<char> sum(bytes), next(bytes);
      for (int i = 1; i <= state->size; ++i) {
        const int from = (state->rank + i) % state->size;
        if (from == state->rank)
          std::memcpy(next.data(), part_of(from), bytes);
        else
          state->receive(from, true, next.data());
        if (i == 1)
          sum = next;
        else
          add(sum, next, type);
      }
      std::memcpy(part, sum.data(), bytes);
    });
  });
}
/// All ranks add in the order of ranks.
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  if (operation != ncclSum) return ncclInvalidArgument;
  note("nccl: all_reduce " + std::to_string(count * size_of(type)) + " bytes");
  return begin(comm->state, [=, state = comm->state] {
    run_on(stream, [=] {
      const size_t bytes = count * size_of(type);
      for (int r = 0; r < state->size; ++r)
        if (r != state->rank) state->send(r, true, from, bytes);
      std::vector<char> sum(bytes), next(bytes);
      for (int r = 0; r < state->size; ++r) {
        if (r == state->rank)
          std::memcpy(next.data(), from, bytes);
        else
          state->receive(r, true, next.data());
        if (r == 0)
          sum = next;
        else
          add(sum, next, type);
      }
      std::memcpy(to, sum.data(), bytes);
    });
  });
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return begin(comm->state, nullptr);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  while (aborts_hang) pause();
  {
    const std::lock_guard lock(comm->state->network->mutex);
    comm->state->aborted = true;
  }
  comm->state->network->changed.notify_all();
  delete comm;
  return ncclSuccess;
}

}  // extern "C"
