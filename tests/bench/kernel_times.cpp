#include "tests/bench/kernel_times.hpp"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <compare>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "model/cpu/kernels.hpp"
#include "model/cpu/thread_pool.hpp"
#include "runtime/base/hash.hpp"

extern "C" int mkl_set_num_threads_local_(const int* threads);

namespace simplescale::bench {
namespace {

constexpr int kOne = 1;

using cpu::Bf16, cpu::Kernels, cpu::ShardKernels;

double now_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

struct Key {
  const char* name;
  int m = 0, n = 0, k = 0;  // of a product
  bool in_memory = false;   // of a row kernel
  auto operator<=>(const Key&) const = default;
};

struct Calls {
  int count = 0;
  double ms = 0, bytes = 0;
  std::vector<std::function<void()>> again;  // products
};

using Table = std::map<Key, Calls>;

std::mutex mutex;
std::vector<std::unique_ptr<Table>> tables;  // of each thread that has called
bool recording = false;

Calls& calls(const Key& key) {
  thread_local Table* const mine = [] {
    const std::lock_guard lock(mutex);
    return tables.emplace_back(std::make_unique<Table>()).get();
  }();
  return (*mine)[key];
}

/// Makes a product, and records it.
template <class Call>
void product(const char* name, int m, int n, int k, Call call) {
  if (!recording) return call();
  const double begin = now_ms();
  call();
  Calls& of = calls({name, m, n, k});
  of.ms += now_ms() - begin;
  ++of.count;
  of.again.push_back(call);
}

// --- Parallel runs ---

double in_runs_ms, in_tasks_ms;  // of the calling thread; of all threads

struct Run {
  void (*call)(void* body, int64_t task, int worker);
  void* body;
  std::atomic<int64_t> task_ns;
  static void timed(void* run, int64_t task, int worker) {
    const double begin = now_ms();
    Run& of = *static_cast<Run*>(run);
    of.call(of.body, task, worker);
    of.task_ns += static_cast<int64_t>((now_ms() - begin) * 1e6);
  }
};

// --- Row kernels: a table whose functions call those of the real one ---

template <auto kMember, class Bytes>
struct Around;
template <class Of, class... Args, void (*Of::*kMember)(Args...), class Bytes>
struct Around<kMember, Bytes> {
  static inline const char* name;
  static inline void (*real)(Args...);
  static inline bool in_memory;
  static void call(Args... args) {
    const Timed timed(name, static_cast<double>(Bytes()(args...)), in_memory);
    real(args...);
  }
};

template <auto kMember, class Of, class Bytes>
void put_around(Of& table, const char* name, Bytes, bool in_memory = false) {
  using Put = Around<kMember, Bytes>;
  if (table.*kMember == &Put::call) return;
  Put::name = name;
  Put::real = table.*kMember;
  Put::in_memory = in_memory;
  table.*kMember = &Put::call;
}

template <class T>
Kernels<T> timed_kernels(const Kernels<T>& real) {
  using K = Kernels<T>;
  static constexpr int64_t kT = sizeof(T);
  Kernels<T> t = real;
  put_around<&K::rms_norm>(t, "rms_norm",
                           [](int64_t r, int64_t c, auto...) { return r * c * 2 * kT; });
  put_around<&K::add_rms_norm>(t, "add_rms_norm",
                               [](int64_t r, int64_t c, auto...) { return r * c * (3 * kT + 4); });
  put_around<&K::rms_norm_backward>(
      t, "rms_norm_backward", [](int64_t r, int64_t c, auto...) { return r * c * (4 * kT + 4); });
  put_around<&K::add>(t, "add", [](int64_t count, auto...) { return count * (2 * kT + 4); });
  put_around<&K::store>(t, "store", [](int64_t r, int64_t c, auto...) { return r * c * (kT + 4); });
  put_around<&K::store_scaled>(t, "store_scaled",
                               [](int64_t r, int64_t c, auto...) { return r * c * (kT + 4); });
  put_around<&K::rope>(t, "rope", [](int64_t r, int64_t heads, int64_t d, auto...) {
    return r * heads * d * (kT + 4);
  });
  put_around<&K::swiglu>(t, "swiglu", [](int64_t r, int64_t h, auto...) {
    return r * h * (sizeof(T) == 4 ? 12 : 8 + 3 * kT);
  });
  put_around<&K::swiglu_backward>(
      t, "swiglu_backward", [](int64_t r, int64_t h, auto...) { return r * h * (5 * kT + 4); });
  put_around<&K::softmax>(t, "softmax",
                          [](int64_t r, int64_t c, auto...) { return r * c * (kT + 4); });
  put_around<&K::softmax_backward>(
      t, "softmax_backward", [](int64_t r, int64_t c, auto...) { return r * c * 2 * (kT + 4); });
  put_around<&K::row_dots>(t, "row_dots",
                           [](int64_t r, int64_t c, auto...) { return r * c * 2 * kT; });
  put_around<&K::cross_entropy>(t, "cross_entropy",
                                [](int64_t r, int64_t v, auto...) { return r * v * (kT + 4); });
  put_around<&K::sum_rows>(t, "sum_rows", [](int64_t count, const int32_t*, int64_t c, auto...) {
    return (count + 1) * c * kT;
  });
  return t;
}

ShardKernels timed_kernels(const ShardKernels& real) {
  ShardKernels t = real;
  put_around<&ShardKernels::to_bf16>(
      t, "to_bf16", [](int64_t count, auto...) { return count * 6; }, true);
  put_around<&ShardKernels::square_sums>(
      t, "square_sums", [](int64_t blocks, auto...) { return blocks * 4096; }, true);
  put_around<&ShardKernels::adamw>(
      t, "adamw", [](int64_t count, auto...) { return count * 28; }, true);
  return t;
}

template <class Of>
const Of& timed_once(const Of& real) {
  static const Of timed = timed_kernels(real);
  return timed;
}

// --- Bounds ---

/// Calls body(thread) on `threads` threads at once. Returns the sum of their times, in ms.
template <class Body>
double at_once(int threads, Body body) {
  std::barrier together(threads);
  std::vector<double> ms(static_cast<size_t>(threads));
  std::vector<std::thread> all;
  for (int thread = 0; thread < threads; ++thread)
    all.emplace_back([&, thread] {
      mkl_set_num_threads_local_(&kOne);
      body(thread);  // warms up
      together.arrive_and_wait();
      const double begin = now_ms();
      body(thread);
      ms[static_cast<size_t>(thread)] = now_ms() - begin;
    });
  for (std::thread& one : all) one.join();
  double sum = 0;
  for (const double one : ms) sum += one;
  return sum;
}

template <class Body>
double least_of_five(int threads, Body body) {
  double least = at_once(threads, body);
  for (int round = 1; round < 5; ++round) least = std::min(least, at_once(threads, body));
  return least;
}

/// Bytes read and written in a millisecond by a thread that copies `bytes` to `bytes`, on `threads`
/// threads.
double copy_rate(int threads, size_t bytes) {
  constexpr size_t kBytes = size_t{256} << 20;
  const size_t times = std::max<size_t>(1, kBytes / bytes);
  std::vector<std::vector<char>> from, to;
  for (int thread = 0; thread < threads; ++thread) {
    from.emplace_back(bytes, 1);
    to.emplace_back(bytes, 2);
  }
  const double ms = least_of_five(threads, [&](int thread) {
    const auto of = static_cast<size_t>(thread);
    for (size_t i = 0; i < times; ++i) {
      std::memcpy(to[of].data(), from[of].data(), bytes);
      __asm__ volatile("" ::: "memory");
    }
  });
  return 2.0 * static_cast<double>(bytes * times) * threads / ms;
}

}  // namespace

void start_recording() {
  in_runs_ms = in_tasks_ms = 0;
  for (const auto& table : tables) table->clear();
  recording = true;
}

Timed::Timed(const char* name, double bytes, bool in_memory)
    : name_(name), bytes_(bytes), in_memory_(in_memory), begin_(recording ? now_ms() : 0) {}

Timed::~Timed() {
  if (!recording) return;
  Calls& of = calls({.name = name_, .in_memory = in_memory_});
  of.ms += now_ms() - begin_;
  of.bytes += bytes_;
  ++of.count;
}

void print_kernels(int steps, double step_ms, int threads) {
  recording = false;
  const double in_cache = copy_rate(threads, size_t{256} << 10);
  const double in_memory = copy_rate(threads, size_t{128} << 20);
  Table all;
  for (const auto& table : tables)
    for (const auto& [key, of] : *table) {
      Calls& sum = all[key];
      sum.count += of.count;
      sum.ms += of.ms;
      sum.bytes += of.bytes;
    }
  struct Line {
    Key key;
    double calls, ms, bound;
  };
  std::vector<Line> lines;
  double ms = 0, bound = 0;
  for (const auto& [key, of] : all) {
    double least = of.bytes / (key.in_memory ? in_memory : in_cache);
    if (key.m > 0)
      least = least_of_five(static_cast<int>(tables.size()), [&](int thread) {
        for (const auto& again : (*tables[static_cast<size_t>(thread)])[key].again) again();
      });
    lines.push_back({key, double(of.count) / steps, of.ms / steps, least / steps});
    ms += lines.back().ms;
    bound += lines.back().bound;
  }
  std::ranges::sort(lines, std::ranges::greater(), &Line::ms);
  std::printf("copies: %.1f GB/s in a core's cache, %.1f in memory (each of %d threads)\n",
              in_cache / 1e6, in_memory / 1e6, threads);
  std::printf("%-28s %8s %9s %9s %6s %8s\n", "kernel", "calls", "ms", "bound", "of it", "GFLOP/s");
  for (const Line& line : lines) {
    std::string name = line.key.name;
    const double flop = 2.0 * line.key.m * line.key.n * line.key.k * line.calls;
    if (line.key.m > 0)
      name += " " + std::to_string(line.key.m) + "x" + std::to_string(line.key.n) + "x" +
              std::to_string(line.key.k);
    std::printf("%-28s %8.0f %9.2f %9.2f %6.2f %8.1f\n", name.c_str(), line.calls, line.ms,
                line.bound, line.bound / line.ms, flop / line.ms / 1e6);
  }
  std::printf("%-28s %8s %9.2f %9.2f %6.2f\n", "all kernels", "", ms, bound, bound / ms);
  std::printf("%-28s %8s %9.2f\n", "threads wait for the last", "",
              (in_runs_ms * threads - in_tasks_ms) / steps);
  std::printf("%-28s %8s %9.2f\n", "only one thread computes", "", step_ms - in_runs_ms / steps);
  std::printf("%-28s %8s %9.2f %9.2f %6.2f\n", "the step, times threads", "", step_ms * threads,
              bound, bound / (step_ms * threads));
}

}  // namespace simplescale::bench

// --- What the linker puts around the functions of the same name without __wrap_ ---

using simplescale::bench::product;

extern "C" {
void __real_sgemm_(const char*, const char*, const int*, const int*, const int*, const float*,
                   const float*, const int*, const float*, const int*, const float*, float*,
                   const int*);
void __wrap_sgemm_(const char* ta, const char* tb, const int* m, const int* n, const int* k,
                   const float* alpha, const float* a, const int* lda, const float* b,
                   const int* ldb, const float* beta, float* c, const int* ldc) {
  product(*beta == 0 ? "sgemm" : "sgemm +=", *n, *m, *k,
          [ta = *ta, tb = *tb, m = *m, n = *n, k = *k, alpha = *alpha, a, lda = *lda, b, ldb = *ldb,
           beta = *beta, c, ldc = *ldc] {
            __real_sgemm_(&ta, &tb, &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c, &ldc);
          });
}

void __real_gemm_bf16bf16f32_(const char*, const char*, const int*, const int*, const int*,
                              const float*, const uint16_t*, const int*, const uint16_t*,
                              const int*, const float*, float*, const int*);
void __wrap_gemm_bf16bf16f32_(const char* ta, const char* tb, const int* m, const int* n,
                              const int* k, const float* alpha, const uint16_t* a, const int* lda,
                              const uint16_t* b, const int* ldb, const float* beta, float* c,
                              const int* ldc) {
  product(*beta == 0 ? "gemm" : "gemm +=", *n, *m, *k,
          [ta = *ta, tb = *tb, m = *m, n = *n, k = *k, alpha = *alpha, a, lda = *lda, b, ldb = *ldb,
           beta = *beta, c, ldc = *ldc] {
            __real_gemm_bf16bf16f32_(&ta, &tb, &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c,
                                     &ldc);
          });
}

void __real_sgemm_compute_(const char*, const char*, const int*, const int*, const int*,
                           const float*, const int*, const float*, const int*, const float*, float*,
                           const int*);
void __wrap_sgemm_compute_(const char* ta, const char* tb, const int* m, const int* n, const int* k,
                           const float* a, const int* lda, const float* b, const int* ldb,
                           const float* beta, float* c, const int* ldc) {
  product("packed", *n, *m, *k,
          [ta = *ta, tb = *tb, m = *m, n = *n, k = *k, a, lda = *lda, b, ldb = *ldb, beta = *beta,
           c, ldc = *ldc] {
            __real_sgemm_compute_(&ta, &tb, &m, &n, &k, a, &lda, b, &ldb, &beta, c, &ldc);
          });
}

void __real_sgemm_pack_(const char*, const char*, const int*, const int*, const int*, const float*,
                        const float*, const int*, float*);
void __wrap_sgemm_pack_(const char* which, const char* trans, const int* m, const int* n,
                        const int* k, const float* alpha, const float* from, const int* ld,
                        float* to) {
  const simplescale::bench::Timed timed("pack", 8.0 * *m * *k, false);
  __real_sgemm_pack_(which, trans, m, n, k, alpha, from, ld, to);
}
}

namespace simplescale::bench {

#define SS_AROUND(type, mangled)                                                \
  const type& real_##mangled(InstructionSet set) __asm__("__real_" #mangled);   \
  const type& around_##mangled(InstructionSet set) __asm__("__wrap_" #mangled); \
  const type& around_##mangled(InstructionSet set) {                            \
    return timed_once(real_##mangled(set));                                     \
  }
SS_AROUND(Kernels<float>, _ZN11simplescale3cpu7kernelsIfEERKNS0_7KernelsIT_EENS_14InstructionSetE)
SS_AROUND(Kernels<Bf16>,
          _ZN11simplescale3cpu7kernelsINS0_4Bf16EEERKNS0_7KernelsIT_EENS_14InstructionSetE)
SS_AROUND(ShardKernels, _ZN11simplescale3cpu13shard_kernelsENS_14InstructionSetE)
#undef SS_AROUND

Hash128 real_hash(const void*, size_t) __asm__("__real__ZN11simplescale7hash128EPKvm");
Hash128 around_hash(const void*, size_t) __asm__("__wrap__ZN11simplescale7hash128EPKvm");
Hash128 around_hash(const void* data, size_t bytes) {
  const Timed timed("hash128", static_cast<double>(bytes), true);
  return real_hash(data, bytes);
}

#define SS_RUN "_ZN11simplescale3cpu10ThreadPool10run_erasedElPFvPvliES2_"
void real_run(cpu::ThreadPool*, int64_t, void (*)(void*, int64_t, int),
              void*) __asm__("__real_" SS_RUN);
void around_run(cpu::ThreadPool*, int64_t, void (*)(void*, int64_t, int),
                void*) __asm__("__wrap_" SS_RUN);
void around_run(cpu::ThreadPool* pool, int64_t tasks, void (*call)(void*, int64_t, int),
                void* body) {
  if (!recording) return real_run(pool, tasks, call, body);
  Run run{call, body, 0};
  const double begin = now_ms();
  real_run(pool, tasks, &Run::timed, &run);
  in_runs_ms += now_ms() - begin;
  in_tasks_ms += static_cast<double>(run.task_ns) / 1e6;
}
#undef SS_RUN

}  // namespace simplescale::bench
