// A fake of CUDA's streams and of NCCL, as far as transport/nccl and model/cuda use them, over host
// memory and threads; linked instead of the real ones. Each stream runs on a thread of its own.
// NCCL is as non-blocking as its interface allows: a call stays in progress until it has been
// polled several times, enqueues nothing on its stream before that, and another call meanwhile is
// refused.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace simplescale::fake_gpu {

/// Enqueues work on a stream, like a kernel that takes a microsecond of cudaEventElapsedTime().
void run_on(cudaStream_t stream, std::function<void()> work);
/// From now on note() and the fake's calls on this thread, in their order, are added to `log`; null:
/// no longer.
void record(std::vector<std::string>* log);
void note(const std::string& call);
/// Throws if an earlier call on this thread has left an error in cudaGetLastError(), as libtorch does
/// after each of its kernels.
void check_last_error();
/// note() of a kernel, with the stream's priority if it is the lowest or the highest.
void note_kernel(const std::string& name, cudaStream_t stream);
/// From now on communicators of this rank report a lost peer; -1: of no rank.
void lose_peer_of(int rank);
/// From now on ncclCommAbort does not return.
void hang_aborts();
/// While that many pieces of host memory are registered, cudaHostRegister does not return.
void allow_pinning(size_t pieces);
/// Number of pieces of host memory that are registered. A copy to or from memory of which only a
/// part, or parts of two pieces, are registered is refused, as by the driver. A copy to memory that
/// is not registered blocks until it is done, and so do the calls of other threads on its stream.
size_t registered_pieces();
/// The GPUs that have a context. cudaSetDevice() makes it, as it does since CUDA 12.
std::set<int> devices_with_contexts();
/// The GPUs of this machine, by the first number of their compute capability; {9} at first.
void set_gpus(std::vector<int> majors);
/// CUDA's version that the driver knows, as cudaDriverGetVersion(): 13000 is 13.0.
void set_driver(int version);
/// While true, all GPUs are slices of one (MIG).
void make_slices(bool wanted);
/// The next calls that allocate device memory find none: cudaMalloc, cublasLtCreate, and
/// cudaSetDevice, which creates a context.
void fail_allocations(int number);
/// One of these calls: true if it finds none, and then leaves the error in cudaGetLastError().
bool finds_no_memory();
/// How many of fail_allocations() have not failed yet.
int failures_left();
/// Device memory that is allocated now.
size_t device_bytes();
/// Memory of cudaMallocHost() that is allocated now.
size_t pinned_bytes();
/// While true, cuBLASLt makes no handle.
void fail_handles(bool wanted);
/// What cuBLASLt's four algorithms do, which it names in the order of their numbers. Algorithm 1 adds
/// parts of sums in the type of the result. An algorithm refuses operands that are aligned to less
/// than the preference said.
struct Algorithms {
  std::vector<int> ms = {4, 1, 3, 2};        ///< their times
  std::set<int> failing = {};                ///< cublasLtMatmul() fails
  std::set<int> refused = {};                ///< cublasLtMatmulAlgoCheck() refuses them
  std::set<int> large = {};                  ///< they need more workspace than there is
  std::set<int> invalid = {};                ///< named in a state other than success
  bool none = false;                         ///< cuBLASLt names none
  size_t version = 130100;                   ///< of cuBLASLt
  std::function<void()> on_product = [] {};  ///< called by cublasLtMatmul()
};
/// Change them only while no product is made.
void set_algorithms(Algorithms algorithms);
/// What attention's kernels do, libtorch's (flash) and cuDNN's.
struct Attention {
  int flash_ms = 3, cudnn_ms = 2;                     ///< their times
  bool cudnn_fails = false;                           ///< cuDNN does not take the shape
  std::vector<std::string> plans = {"eng0", "eng1"};  ///< cuDNN's, for each pass
  std::set<std::string> failing = {};                 ///< plans that cannot be built
  size_t cudnn_version = 91900;                       ///< 0: there is no cuDNN
};
/// Change it only while no attention is computed.
void set_attention(Attention attention);
/// The next plans that cuDNN builds find no memory.
void fail_plans(int number);
/// While true, streams only order events, and device memory is address space without memory: to
/// count the memory of models that are too large to compute here. Change it only while no device
/// memory is allocated.
void count_only(bool wanted);
/// Number of buffers that communicators have registered and not deregistered.
size_t registered_buffers();
/// Number of blocks of ncclMemAlloc that are not freed.
size_t shared_memory_blocks();
/// While true, ncclCommRegister and ncclMemAlloc fail.
void refuse_buffers(bool wanted);
/// What NCCL is asked to make and end since the last call, by all threads: "GPU 0: first communicator,
/// 1 rank", "GPU 0: communicator, 2 ranks", "GPU 0: finalized", "GPU 0: destroyed", "GPU 0: aborted".
std::vector<std::string> take_nccl_calls();
/// As in a new process: the next communicator of each GPU is the first one.
void forget_communicators();
enum class Inits { work, fail, hang };
/// What the calls that make a communicator do from now on. Those that hang end then, and work.
void set_inits(Inits inits);
/// Number of NCCL calls that were made while another was in progress.
int calls_too_early();

}  // namespace simplescale::fake_gpu
