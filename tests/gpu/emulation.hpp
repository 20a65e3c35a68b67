// Runs device code on the CPU: the blocks of a grid one after the other, the threads of a block as
// fibers that switch at barriers and shuffles. Include it before a .cu file; it replaces
// runtime/training/gpu_launch.cuh and nvcc's built-ins. It tests indices, sizes, sums and barriers,
// but not a GPU's memory model. Threads run in ascending and descending order alternately, so that
// a missing barrier changes results. One host thread at a time.
#pragma once

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <ucontext.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef SIMPLESCALE_FAKE_STREAMS
#include "tests/gpu/fake_gpu.hpp"
#endif

#undef __shared__
#define __shared__ static       // shared by all threads of the running block
#define __launch_bounds__(...)  // registers, of which a CPU knows nothing

inline dim3 gridDim, blockDim;
inline uint3 blockIdx, threadIdx;

namespace simplescale::emulation {

enum class At { running, barrier, shuffle, done };

/// Where a fiber or its scheduler goes on.
struct Point {
  ucontext_t context;
  jmp_buf jump;
  bool jumps = false;  // `jump` is set
};

/// swapcontext() without its calls of the kernel for the signal mask. The address sanitizer does not
/// know jumps to another stack.
inline void switch_points(Point& from, Point& to) {
#ifdef __SANITIZE_ADDRESS__
  swapcontext(&from.context, &to.context);
#else
  from.jumps = true;
  if (_setjmp(from.jump) != 0) return;
  if (to.jumps) _longjmp(to.jump, 1);
  setcontext(&to.context);
#endif
}

struct Thread {
  std::unique_ptr<char[]> stack;  // set once the fiber was made
  Point point;
  uint3 index;
  At at = At::done;
};

/// The running block.
struct Machine {
  static constexpr size_t kThreadsMax = 1024, kStackBytes = size_t{64} << 10, kWarp = 32;
  std::vector<Thread> threads = std::vector<Thread>(kThreadsMax);
  size_t count = 0, current = 0;
  Point scheduler;
  std::function<void()> body;
  uint64_t exchanged[kThreadsMax];
  std::vector<float> shared;
};
inline Machine machine;

inline void pause(At at) {
  Thread& me = machine.threads[machine.current];
  me.at = at;
  switch_points(me.point, machine.scheduler);
}

/// A fiber: runs its thread of one block after the other.
inline void thread_main() {
  for (;;) {
    machine.body();
    pause(At::done);
  }
}

inline void make_fiber(Thread& thread) {
  thread.stack = std::make_unique<char[]>(Machine::kStackBytes);
  ucontext_t& context = thread.point.context;
  getcontext(&context);
  context.uc_stack.ss_sp = thread.stack.get();
  context.uc_stack.ss_size = Machine::kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, thread_main, 0);
  thread.point.jumps = false;
}

inline void resume(size_t thread) {
  machine.current = thread;
  threadIdx = machine.threads[thread].index;
  switch_points(machine.scheduler, machine.threads[thread].point);
}

/// Resumes the threads whose barrier or shuffle is complete; false: all threads are done.
inline bool release() {
  const auto all = [](size_t first, size_t end, At at) {
    for (size_t t = first; t < end; ++t)
      if (machine.threads[t].at != at) return false;
    return true;
  };
  const auto let_go = [](size_t first, size_t end) {
    for (size_t t = first; t < end; ++t) machine.threads[t].at = At::running;
  };
  if (all(0, machine.count, At::done)) return false;
  if (all(0, machine.count, At::barrier)) return let_go(0, machine.count), true;
  bool any = false;
  for (size_t first = 0; first < machine.count; first += Machine::kWarp) {
    const size_t end = std::min(machine.count, first + Machine::kWarp);
    if (!all(first, end, At::shuffle)) continue;
    let_go(first, end);
    any = true;
  }
  if (!any) throw std::logic_error("not all threads reach a barrier or shuffle");
  return true;
}

inline void run_block() {
  machine.count = size_t{blockDim.x} * blockDim.y;
  if (machine.count == 0 || machine.count > Machine::kThreadsMax)
    throw std::logic_error("a block of " + std::to_string(machine.count) + " threads");
  std::fill(machine.shared.begin(), machine.shared.end(), std::numeric_limits<float>::quiet_NaN());
  for (size_t t = 0; t < machine.count; ++t) {
    Thread& thread = machine.threads[t];
    // A fiber that is not at its end was given up in an earlier block.
    if (!thread.stack || thread.at != At::done) make_fiber(thread);
    thread.index = {static_cast<unsigned>(t % blockDim.x), static_cast<unsigned>(t / blockDim.x),
                    0};
    thread.at = At::running;
  }
  bool forwards = true;
  do {
    for (size_t i = 0; i < machine.count; ++i) {
      const size_t t = forwards ? i : machine.count - 1 - i;
      if (machine.threads[t].at == At::running) resume(t);
    }
    forwards = !forwards;
  } while (release());
}

inline void run_grid(dim3 blocks, dim3 threads, size_t shared, std::function<void()> body) {
  if (blocks.x == 0 || blocks.y == 0 || blocks.y > 65535 || shared > (size_t{227} << 10))
    throw std::logic_error("the grid exceeds a GPU's limits");
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  gridDim = blocks;
  blockDim = threads;
  machine.body = std::move(body);
  machine.shared.resize(shared / sizeof(float));
  for (blockIdx.y = 0; blockIdx.y < blocks.y; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x) run_block();
}

}  // namespace simplescale::emulation

inline void __syncthreads() {
  simplescale::emulation::pause(simplescale::emulation::At::barrier);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  using namespace simplescale::emulation;
  static_assert(sizeof(T) <= sizeof(uint64_t));
  std::memcpy(&machine.exchanged[machine.current], &value, sizeof value);
  pause(At::shuffle);
  std::memcpy(&value, &machine.exchanged[machine.current ^ static_cast<size_t>(mask)],
              sizeof value);
  pause(At::shuffle);
  return value;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  using namespace simplescale::emulation;
  machine.exchanged[machine.current] = value;
  pause(At::shuffle);
  const size_t first = machine.current / Machine::kWarp * Machine::kWarp;
  for (size_t t = first; t < first + Machine::kWarp; ++t)
    value = std::max(value, static_cast<unsigned>(machine.exchanged[t]));
  pause(At::shuffle);
  return value;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
}

namespace simplescale {

struct GpuGrid {
  cudaStream_t stream;
  dim3 blocks, threads;
  size_t shared = 0;
  std::source_location launcher = std::source_location::current();
};

/// The name of a function: "rms_norm" of "cudaError_t simplescale::cuda::rms_norm(int) [with ...]".
inline std::string name_of(const std::source_location& function) {
  std::string name = function.function_name();
  name = name.substr(0, name.find('('));
  name = name.substr(name.find_last_of(": ") + 1);
  return name.starts_with("launch_") ? name.substr(7) : name;
}

/// Runs at once, or on a stream of fake_gpu.hpp.
template <class... Parameter, class... Argument>
cudaError_t gpu_launch(const GpuGrid& grid, void (*kernel)(Parameter...),
                       const Argument&... arguments) {
  const auto run = [=] {
    emulation::run_grid(grid.blocks, grid.threads, grid.shared,
                        [&] { kernel(static_cast<Parameter>(arguments)...); });
  };
#ifdef SIMPLESCALE_FAKE_STREAMS
  fake_gpu::note_kernel(name_of(grid.launcher), grid.stream);
  fake_gpu::run_on(grid.stream, run);
#else
  run();
#endif
  return cudaSuccess;
}

inline float* dynamic_shared() {
  return emulation::machine.shared.data();
}

}  // namespace simplescale
