// Times the collectives between processes of this host, and a plain memcpy by two processes for
// comparison. Prints one JSON line per operation and size. `./simplescale bench collectives` runs
// this program.
//
//   collective_bench RANKS [--heap] [--stream | --ucx] [--pin] [--repeats N] [--sizes BYTES...]
//                    [--namespaces NAMES...]
//
//   --heap     buffers outside the arena
//   --stream   every rank claims to be on a host of its own, so that they use encrypted TCP
//   --ucx      the same, and trusts the loopback device, so that they use UCX
//   --pin      binds each process to one core
//   --repeats  timed repetitions, at most 400; default: 200 up to 1 MiB, 20 above
//   --sizes    of the whole buffer
//   --namespaces  one network namespace for each rank, whose interface eth0 --ucx trusts
//
// Definitions, as in gloo_bench.py, for n ranks:
//   bytes      size of the whole buffer
//   us         time t of the slowest rank, the median over the repetitions
//   bus_gb_s   size/t * 2(n-1)/n for all_reduce, size/t * (n-1)/n for the other operations
//
// The two processes of the plain copy together copy what the ranks must read: n * size bytes, twice
// that for all_reduce, between buffers of `size` bytes.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/network_namespace.hpp"
#include "transport/collective/data_plane.hpp"

using namespace simplescale;

namespace {

constexpr int kMaxRepeats = 400;
constexpr int kMaxRanks = 16;

/// Memory that the processes of a measurement share.
struct Board {
  std::atomic<int> arrived[2];
  std::atomic<int> addresses;
  uint32_t address_bytes[kMaxRanks];
  uint8_t address[kMaxRanks][4096];
  double seconds[kMaxRanks][kMaxRepeats];
};

struct Options {
  int ranks = 2;
  bool heap = false, stream = false, ucx = false, pin = false;
  int repeats = 0;
  std::vector<size_t> sizes{64 << 10, 1 << 20, 16 << 20, 64 << 20};
  std::vector<std::string> namespaces;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void pin(int rank) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(rank) % std::thread::hardware_concurrency(), &set);
  sched_setaffinity(0, sizeof(set), &set);
}

int repeats_for(const Options& options, size_t size) {
  return options.repeats ? std::min(options.repeats, kMaxRepeats) : size <= (1 << 20) ? 200 : 20;
}

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  _exit(1);
}

double median_of_slowest(const Board& board, int ranks, int repeats) {
  std::vector<double> slowest;
  for (int i = 0; i < repeats; ++i) {
    double most = 0;
    for (int r = 0; r < ranks; ++r) most = std::max(most, board.seconds[r][i]);
    slowest.push_back(most);
  }
  std::nth_element(slowest.begin(), slowest.begin() + repeats / 2, slowest.end());
  return slowest[static_cast<size_t>(repeats) / 2];
}

const char* const kOperations[] = {"all_reduce", "all_gather", "reduce_scatter"};

void run_rank(const Options& options, int rank, Board& board) {
  if (options.pin) pin(rank);
  if (!options.namespaces.empty())
    enter_network_namespace(options.namespaces[static_cast<size_t>(rank)]);
  DataPlaneOptions plane_options;
  plane_options.shm_prefix = "ss-bench-" + std::to_string(getppid()) + "-" + std::to_string(rank);
  plane_options.arena_bytes =
      options.heap ? 1 << 20 : 3 * *std::ranges::max_element(options.sizes) + (1 << 20);
  plane_options.communicators = 1;
  plane_options.key = std::string(32, 'k');
  if (options.stream || options.ucx) plane_options.host_id = std::to_string(rank);
  if (options.ucx) plane_options.trusted_networks = options.namespaces.empty() ? "lo" : "eth0";
  auto plane = DataPlane::create(plane_options);
  check(plane.status());
  const auto mine = (*plane)->address();
  board.address_bytes[rank] = static_cast<uint32_t>(mine.size());
  std::memcpy(board.address[rank], mine.data(), mine.size());
  for (++board.addresses; board.addresses < options.ranks;) std::this_thread::yield();
  CommunicatorSpec spec{1, "bench", rank, {}, 60'000};
  for (int r = 0; r < options.ranks; ++r)
    spec.members.emplace_back(board.address[r], board.address[r] + board.address_bytes[r]);
  auto joined = (*plane)->join(spec);
  check(joined.status());
  Collective& c = **joined;

  const size_t most = *std::ranges::max_element(options.sizes);
  auto allocate = [&](size_t bytes) -> float* {
    void* data = options.heap ? std::aligned_alloc(4096, bytes) : nullptr;
    if (!data) {
      auto memory = c.allocate(bytes);
      check(memory.status());
      data = *memory;
    }
    for (size_t i = 0; i < bytes / sizeof(float); ++i) static_cast<float*>(data)[i] = 1.0f;
    return static_cast<float*>(data);
  };
  float *whole = allocate(most), *received = allocate(most),
        *part = allocate(most / static_cast<size_t>(options.ranks));
  for (const size_t size : options.sizes) {
    const size_t count = size / sizeof(float), share = count / static_cast<size_t>(options.ranks);
    const std::function<WorkPtr()> starts[] = {
        [&] { return c.all_reduce(whole, count, DType::f32); },
        [&] { return c.all_gather(part, received, share, DType::f32); },
        [&] { return c.reduce_scatter(received, part, share, DType::f32); },
    };
    for (int op = 0; op < 3; ++op) {
      const int repeats = repeats_for(options, size);
      // Zeros stay zero. Other values would overflow in repeated sums, and denormals are slow.
      std::fill_n(whole, count, 0.0f);
      std::fill_n(received, count, 0.0f);
      for (int i = -3; i < repeats; ++i) {
        check(c.barrier()->wait());
        const double begin = now();
        check(starts[op]()->wait());
        if (i >= 0) board.seconds[rank][i] = now() - begin;
      }
      check(c.barrier()->wait());
      if (rank == 0) {
        const double seconds = median_of_slowest(board, options.ranks, repeats);
        const double factor = (op == 0 ? 2.0 : 1.0) * (options.ranks - 1) / options.ranks;
        std::printf(
            "{\"operation\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"us\":%.1f,\"bus_gb_s\":%.3f,"
            "\"pinned\":%s}\n",
            kOperations[op], options.ranks, size, seconds * 1e6,
            static_cast<double>(size) / seconds * factor / 1e9, options.pin ? "true" : "false");
        std::fflush(stdout);
      }
      check(c.barrier()->wait());
    }
  }
}

/// The body of one of the two copying processes, which copies half of the bytes in chunks of at
/// most 1 MiB.
void run_copy(const Options& options, int which, Board& board) {
  if (options.pin) pin(which);
  const size_t most = *std::ranges::max_element(options.sizes);
  auto* from = static_cast<std::byte*>(
      mmap(nullptr, 2 * most, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  madvise(from, 2 * most, MADV_HUGEPAGE);
  std::memset(from, 1, 2 * most);
  std::byte* to = from + most;
  int round = 0;
  auto barrier = [&] {
    const int target = 2 * ++round;
    ++board.arrived[0];
    while (board.arrived[0] < target) std::this_thread::yield();
  };
  for (const size_t size : options.sizes) {
    for (const int op : {0, 1}) {
      const size_t total = (op == 0 ? 2 : 1) * static_cast<size_t>(options.ranks) * size / 2;
      const size_t chunk = std::min(size, size_t{1} << 20);
      const int repeats = repeats_for(options, size);
      for (int i = -3; i < repeats; ++i) {
        barrier();
        const double begin = now();
        for (size_t done = 0; done < total; done += chunk) {
          const size_t at = done % size;
          std::memcpy(to + at, from + at, std::min(chunk, total - done));
        }
        if (i >= 0) board.seconds[which][i] = now() - begin;
      }
      barrier();
      if (which == 0)
        std::printf(
            "{\"operation\":\"copy_for_%s\",\"ranks\":%d,\"bytes\":%zu,\"us\":%.1f,\"pinned\":%s}"
            "\n",
            op == 0 ? "all_reduce" : "all_gather", options.ranks, size,
            median_of_slowest(board, 2, repeats) * 1e6, options.pin ? "true" : "false");
      std::fflush(stdout);
      barrier();
    }
  }
}

int run_processes(int count, const std::function<void(int)>& body) {
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      body(i);
      std::fflush(stdout);
      _exit(0);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed |= status;
  }
  return failed ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (argc < 2) return 64;
  options.ranks = std::atoi(argv[1]);
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--heap") options.heap = true;
    if (flag == "--stream") options.stream = true;
    if (flag == "--ucx") options.ucx = true;
    if (flag == "--pin") options.pin = true;
    if (flag == "--repeats" && i + 1 < argc) options.repeats = std::atoi(argv[++i]);
    if (flag == "--namespaces")
      while (i + 1 < argc && argv[i + 1][0] != '-') options.namespaces.push_back(argv[++i]);
    if (flag == "--sizes") {
      options.sizes.clear();
      while (i + 1 < argc && argv[i + 1][0] != '-') options.sizes.push_back(std::stoull(argv[++i]));
    }
  }
  if (options.ranks < 1 || options.ranks > kMaxRanks || options.sizes.empty()) return 64;
  const size_t spaces = options.namespaces.size();
  if (spaces != 0 && spaces != static_cast<size_t>(options.ranks)) return 64;
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* board = new (memory) Board{};
  int failed = run_processes(options.ranks, [&](int rank) { run_rank(options, rank, *board); });
  failed |= run_processes(2, [&](int which) { run_copy(options, which, *board); });
  return failed;
}
