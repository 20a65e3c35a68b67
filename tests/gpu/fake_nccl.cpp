// The fake's NCCL (fake_gpu.hpp).
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "tests/gpu/fake_gpu.hpp"

using simplescale::fake_gpu::note;
using simplescale::fake_gpu::run_on;

namespace {

constexpr int kPolls = 3;  // polls until a call takes effect
std::atomic<int> lost_rank = -1, early_calls = 0;
std::atomic<bool> aborts_hang = false, buffers_refused = false;
std::atomic<size_t> buffers = 0, shared_blocks = 0;
std::atomic<simplescale::fake_gpu::Inits> inits = simplescale::fake_gpu::Inits::work;

std::mutex log_mutex;  // guards the next two
std::vector<std::string> lifecycle;
std::set<int> with_communicators;  // GPUs

void log_call(int device, const std::string& call) {
  const std::lock_guard lock(log_mutex);
  lifecycle.push_back("GPU " + std::to_string(device) + ": " + call);
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
  int rank = 0, size = 0, device = 0;
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

/// Adds what the ranks have sent, in the order of a ring from rank `first` on. This rank's part is
/// `own`.
void sum_from(State& state, int first, const void* own, void* to, size_t bytes,
              ncclDataType_t type) {
  std::vector<char> sum, next(bytes);
  for (int i = 0; i < state.size; ++i) {
    const int from = (first + i) % state.size;
    if (from == state.rank)
      std::memcpy(next.data(), own, bytes);
    else
      state.receive(from, true, next.data());
    if (i == 0)
      sum = next;
    else
      add(sum, next, type);
  }
  std::memcpy(to, sum.data(), bytes);
}

}  // namespace

struct ncclComm {
  std::shared_ptr<State> state;
};

namespace simplescale::fake_gpu {
void lose_peer_of(int rank) {
  lost_rank = rank;
}
void hang_aborts() {
  aborts_hang = true;
}
size_t registered_buffers() {
  return buffers;
}
size_t shared_memory_blocks() {
  return shared_blocks;
}
void refuse_buffers(bool wanted) {
  buffers_refused = wanted;
}
int calls_too_early() {
  return early_calls;
}
std::vector<std::string> take_nccl_calls() {
  const std::lock_guard lock(log_mutex);
  return std::exchange(lifecycle, {});
}
void forget_communicators() {
  const std::lock_guard lock(log_mutex);
  with_communicators.clear();
}
void set_inits(Inits wanted) {
  inits = wanted;
  inits.notify_all();
}
}  // namespace simplescale::fake_gpu

extern "C" {

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
  int device = 0;
  (void)cudaGetDevice(&device);
  {
    const std::lock_guard lock(log_mutex);
    lifecycle.push_back("GPU " + std::to_string(device) +
                        (with_communicators.insert(device).second ? ": first " : ": ") +
                        "communicator, " + std::to_string(size) + (size == 1 ? " rank" : " ranks"));
  }
  inits.wait(simplescale::fake_gpu::Inits::hang);
  if (inits == simplescale::fake_gpu::Inits::fail) return ncclSystemError;
  int number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  auto state = std::make_shared<State>();
  {
    const std::lock_guard lock(networks_mutex);
    state->network = networks.at(number);
  }
  state->rank = rank;
  state->size = size;
  state->device = device;
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
      sum_from(*state, (state->rank + 1) % state->size, part_of(state->rank), part, bytes, type);
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
      sum_from(*state, 0, from, to, bytes, type);
    });
  });
}
ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  if (buffers_refused) return ncclSystemError;
  ++shared_blocks;
  return cudaMalloc(data, bytes) == cudaSuccess ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclMemFree(void* data) {
  --shared_blocks;
  return cudaFree(data) == cudaSuccess ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void*, size_t, void** handle) {
  if (buffers_refused || comm->state->polls > 0) return ncclInvalidUsage;
  ++buffers;
  *handle = new int;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  if (comm->state->polls > 0) return ncclInvalidUsage;
  --buffers;
  delete static_cast<int*>(handle);
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  log_call(comm->state->device, "finalized");
  return begin(comm->state, nullptr);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  log_call(comm->state->device, "destroyed");
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  while (aborts_hang) pause();
  log_call(comm->state->device, "aborted");
  {
    const std::lock_guard lock(comm->state->network->mutex);
    comm->state->aborted = true;
  }
  comm->state->network->changed.notify_all();
  delete comm;
  return ncclSuccess;
}

}  // extern "C"
