// The NCCL communicator over a fake NCCL whose calls take effect late (fake_gpu.hpp): same bits as
// the tests' own collective, aborts, deadlines and lost peers. Ranks are threads.
#include "transport/nccl/communicator.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <future>
#include <random>

#include "tests/gpu/fake_gpu.hpp"
#include "tests/model/thread_collective.hpp"
#include "tests/must.hpp"
#include "transport/nccl/greeting.hpp"

using namespace simplescale;
using nccl::NcclCommunicator;

namespace {

/// per_host: as if so many ranks were on each host; 0: all are on this one.
std::unique_ptr<NcclCommunicator> communicator(Collective& host, int timeout_ms,
                                               int abort_timeout_ms = 60'000,
                                               bool native_sums = false, int per_host = 0) {
  auto stream = must(nccl::Stream::create(host.rank()));
  return std::make_unique<NcclCommunicator>(
      NcclCommunicator::Spec{
          .name = "shard@1",
          .generation = 1,
          .timeout_ms = timeout_ms,
          .abort_timeout_ms = abort_timeout_ms,
          .host = per_host > 0 ? 1 + static_cast<uint64_t>(host.rank() / per_host) : 0,
          .native_sums = native_sums},
      std::make_unique<ForwardingCollective>(host), stream.take(), [](NcclCommunicator*) {});
}

/// Runs body(rank, NCCL communicator, reference collective) for each rank on a thread of its own.
template <class Body>
void on_ranks(int ranks, int timeout_ms, Body body, bool native_sums = false, int per_host = 0) {
  ThreadCommunicator hosts(ranks, 60'000), references(ranks, 60'000);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      auto made = communicator(hosts.rank(rank), timeout_ms, 60'000, native_sums, per_host);
      const Status connected = made->connect();
      INFO(connected.message());
      CHECK(connected.ok());
      if (connected.ok()) body(rank, *made, references.rank(rank));
    });
  for (std::thread& thread : threads) thread.join();
}

std::vector<float> some(int rank, size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 100);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

std::vector<TreeNode> nodes_of_leaves(uint64_t count) {
  std::vector<TreeNode> leaves;
  for (uint64_t leaf = 0; leaf < count; ++leaf) leaves.push_back({0, leaf});
  return leaves;
}

/// How a process ends that calls `body` and then exit(0).
template <class Body>
int exit_code_of(Body body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

/// Device memory with these values as dtype.
void* device(Collective& c, const std::vector<float>& values, DType dtype) {
  const auto memory = must(c.allocate(values.size() * 4));
  for (size_t i = 0; i < values.size(); ++i)
    if (dtype == DType::f32)
      static_cast<float*>(*memory)[i] = values[i];
    else
      static_cast<uint16_t*>(*memory)[i] = f32_to_bf16(values[i]);
  return *memory;
}

}  // namespace

TEST_SUITE("nccl") {
  TEST_CASE("nccl: ranks that NCCL takes for hosts may share a GPU, all others may not") {
    nccl::Greeting one{.host = 7, .nccl_host = 1, .version = 22809};
    nccl::Greeting other = one;
    CHECK(nccl::check_greetings("shard", std::array{one, other}).code() == Code::bad_config);
    other.nccl_host = 2;
    CHECK(nccl::check_greetings("shard", std::array{one, other}).ok());
    other.version = 22700;
    CHECK(nccl::check_greetings("shard", std::array{one, other}).code() == Code::unavailable);
  }

  TEST_CASE("nccl: a wait for an event leaves no error that libtorch or a launch could find") {
    auto stream = must(nccl::Stream::create(0));
    std::promise<void> end;
    fake_gpu::run_on((*stream)->handle(), [&] { end.get_future().wait(); });
    const auto event = must(nccl::Event::record((*stream)->handle()));
    const Result<bool> early = must(event->done());
    CHECK_FALSE(*early);
    CHECK(cudaGetLastError() == cudaSuccess);
    end.set_value();
    CHECK((*stream)->finish(nccl::Clock::now() + std::chrono::minutes(1)).ok());
  }

  TEST_CASE("nccl: a stream waits for memory that the device frees after its process has started") {
    fake_gpu::fail_allocations(1);
    const auto stream = nccl::Stream::create(0);
    CHECK(stream.ok());
    CHECK(fake_gpu::failures_left() == 0);
    fake_gpu::fail_allocations(2);
    const auto memory = (*stream)->allocate(100, nccl::Clock::now() + std::chrono::minutes(1));
    CHECK(memory.ok());
    CHECK(fake_gpu::failures_left() == 0);
    fake_gpu::fail_allocations(1);
    CHECK((*stream)->allocate(100, nccl::Clock::now()).status().code() == Code::io);
    if (memory.ok()) (void)cudaFree(*memory);
  }

  TEST_CASE("nccl: every operation has the bits of the tests' own collective") {
    for (const auto& [ranks, per_host] : {std::pair{1, 0},
                                          {2, 0},
                                          {3, 0},
                                          {5, 0},
                                          {4, 2},
                                          {8, 2},
                                          {8, 4},
                                          {6, 2},
                                          {6, 3},
                                          {6, 4},
                                          {66, 0}})
      for (const size_t count : {size_t{1}, size_t{37}, size_t{9000}})
        for (const DType dtype : {DType::f32, DType::bf16}) {
          if (ranks > 8 && count > 1) continue;
          INFO("ranks = ", ranks, ", per_host = ", per_host, ", count = ", count);
          const auto size = static_cast<size_t>(ranks);
          on_ranks(
              ranks, 60'000,
              [&](int rank, Collective& ours, Collective& reference) {
                const auto values = some(rank, count * size);
                const size_t bytes = count * bytes_of(dtype),
                             own = static_cast<size_t>(rank) * bytes;
                auto both = [&](size_t compared, auto operation) {
                  std::vector<char> results[2];
                  for (Collective* c : {&ours, &reference}) {
                    auto* full = static_cast<char*>(device(*c, values, dtype));
                    auto* out = static_cast<char*>(device(*c, values, dtype));
                    CHECK(operation(*c, full, out)->wait().ok());
                    results[c == &reference].assign(out, out + compared);
                  }
                  CHECK(results[0] == results[1]);
                };
                both(bytes * size, [&](Collective& c, char*, char* out) {
                  return c.all_gather(out + own, out, count, dtype);
                });
                both(bytes, [&](Collective& c, char* full, char* out) {
                  return c.reduce_scatter(full, out, count, dtype);
                });
                both(bytes, [&](Collective& c, char*, char* out) {
                  return c.all_reduce(out, count, dtype);
                });
                both(bytes, [&](Collective& c, char*, char* out) {
                  return c.broadcast(out, count, dtype, ranks - 1);
                });
                // Three rows of nodes are reduced into a slice; then the ranks act as groups and sum
                // their partial sums.
                std::vector<float> totals[2];
                for (Collective* c : {&ours, &reference}) {
                  std::vector<float*> digits;
                  for (size_t i = 0; i < 8; ++i)
                    digits.push_back(static_cast<float*>(device(*c, some(0, count), DType::f32)));
                  PartialSum slice(digits, count);
                  void* full = device(*c, values, dtype);
                  for (uint64_t row = 0; row < 3; ++row) {
                    std::vector<TreeNode> leaves;
                    // Of four micro-batches of a rank, of two, and of one.
                    const auto level = static_cast<uint32_t>(2 - row);
                    const uint64_t first = row == 0 ? 0 : (row == 1 ? 4 : 6) * size;
                    for (uint64_t r = 0; r < size; ++r)
                      leaves.push_back({level, (first >> level) + r});
                    CHECK(c->reduce_scatter_leaves(full, count, dtype, leaves, slice)->wait().ok());
                  }
                  std::vector<float>& all = totals[c == &reference];
                  for (size_t i = 0; i < slice.nodes().size(); ++i)
                    all.insert(all.end(), slice.data(i), slice.data(i) + count);
                  PartialSum mine(digits, count);
                  const auto first = static_cast<uint64_t>(rank) * 3;
                  std::vector<std::vector<TreeNode>> nodes;
                  for (uint64_t r = 0; r < size; ++r) nodes.push_back(nodes_of_run(3 * r, 3));
                  for (uint64_t leaf = first; leaf < first + 3; ++leaf) {
                    const auto summand = some(static_cast<int>(leaf) + 50, count);
                    const TreeSource source{{0, leaf}, summand.data(), DType::f32};
                    mine.add({&source, 1});
                  }
                  auto* total = static_cast<float*>(device(*c, some(1, count), DType::f32));
                  CHECK(c->all_reduce_partials(mine, nodes, total)->wait().ok());
                  all.insert(all.end(), total, total + count);
                }
                CHECK(totals[0] == totals[1]);
              },
              false, per_host);
        }
    CHECK(fake_gpu::calls_too_early() == 0);
  }

  TEST_CASE("nccl: in a group that spans hosts, a partial sum of each host crosses") {
    for (const int per_host : {0, 4}) {
      CAPTURE(per_host);
      on_ranks(
          8, 60'000,
          [&](int rank, Collective& ours, Collective&) {
            void* full = device(ours, some(rank, 800), DType::bf16);
            PartialSum slice({static_cast<float*>(device(ours, some(0, 100), DType::f32))}, 100);
            std::vector<std::string> calls;
            fake_gpu::record(&calls);
            CHECK(ours.reduce_scatter_leaves(full, 100, DType::bf16, nodes_of_leaves(8), slice)
                      ->wait()
                      .ok());
            fake_gpu::record(nullptr);
            CHECK(std::ranges::count(calls, "nccl: send 200 bytes") == (per_host > 0 ? 6 : 7));
            CHECK(std::ranges::count(calls, "nccl: send 400 bytes") == (per_host > 0 ? 1 : 0));
          },
          false, per_host);
    }
  }

  TEST_CASE("nccl: native sums are NCCL's own, and micro-batches are added in fp32") {
    constexpr uint64_t kRows = 5;
    constexpr size_t kCount = 300;
    for (const int ranks : {1, 2, 3})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        INFO("ranks = ", ranks, ", to_string(dtype) = ", to_string(dtype));
        const auto size = static_cast<size_t>(ranks);
        // What the ranks' values add up to, in double.
        std::vector<double> sums(kCount * size);
        for (int r = 0; r < ranks; ++r) {
          const auto values = some(r, kCount * size);
          for (size_t i = 0; i < sums.size(); ++i)
            sums[i] +=
                double{dtype == DType::f32 ? values[i] : bf16_to_f32(f32_to_bf16(values[i]))};
        }
        // A sum of bf16 over ranks is rounded to bf16; sums over rows are not.
        const double of_ranks = dtype == DType::f32 || ranks == 1 ? 1e-5 : 3e-2;
        const auto body = [&](int rank, Collective& ours, Collective&) {
          const auto near = [&](const float* found, double factor) {
            double worst = 0;
            for (size_t i = 0; i < kCount; ++i)
              worst =
                  std::max(worst, std::abs(double{found[i]} -
                                           factor * sums[static_cast<size_t>(rank) * kCount + i]));
            return worst < factor * of_ranks;
          };
          std::vector<std::string> calls;
          void* full = device(ours, some(rank, kCount * size), dtype);
          PartialSum slice({static_cast<float*>(device(ours, some(0, kCount), DType::f32))},
                           kCount);
          fake_gpu::record(&calls);
          for (uint64_t row = 0; row < kRows; ++row) {
            std::vector<TreeNode> leaves;
            for (uint64_t r = 0; r < size; ++r) leaves.push_back({0, row * size + r});
            CHECK(ours.reduce_scatter_leaves(full, kCount, dtype, leaves, slice)->wait().ok());
            CHECK(slice.nodes().size() == 1);
          }
          fake_gpu::record(nullptr);
          CHECK(near(slice.data(0), kRows));
          const std::string scatter =
              "nccl: reduce_scatter of " + std::to_string(kCount * bytes_of(dtype)) + " bytes each";
          CHECK(std::ranges::count(calls, scatter) == (ranks > 1 ? ptrdiff_t{kRows} : 0));
          CHECK(std::ranges::none_of(
              calls, [](const std::string& call) { return call.starts_with("nccl: send"); }));

          // Ranks as groups; the last one has no leaves. All get the same bits.
          PartialSum mine({static_cast<float*>(device(ours, some(rank, kCount), DType::f32))},
                          kCount);
          std::vector<std::vector<TreeNode>> nodes;
          for (int r = 0; r < ranks; ++r)
            nodes.push_back(r > 0 && r == ranks - 1 ? std::vector<TreeNode>()
                                                    : nodes_of_run(static_cast<uint64_t>(r), 1));
          mine.added(nodes[static_cast<size_t>(rank)]);
          auto* total = static_cast<float*>(device(ours, some(1, kCount), DType::f32));
          calls.clear();
          fake_gpu::record(&calls);
          CHECK(ours.all_reduce_partials(mine, nodes, total)->wait().ok());
          fake_gpu::record(nullptr);
          std::vector<float> expected(kCount);
          for (int r = 0; r < std::max(1, ranks - 1); ++r)
            for (size_t i = 0; i < kCount; ++i) expected[i] += some(r, kCount)[i];
          CHECK(std::equal(expected.begin(), expected.end(), total));
          CHECK(std::ranges::count(calls, "nccl: all_reduce 1200 bytes") == (ranks > 1 ? 1 : 0));

          auto* part = static_cast<float*>(device(ours, some(0, kCount), DType::f32));
          void* wide = device(ours, some(rank, kCount * size), DType::f32);
          CHECK(ours.reduce_scatter(wide, part, kCount, DType::f32)->wait().ok());
          if (dtype == DType::f32) CHECK(near(part, 1));
          CHECK(ours.all_reduce(wide, kCount, DType::f32)->wait().ok());
          if (dtype == DType::f32 && rank == 0) CHECK(near(static_cast<float*>(wide), 1));
        };
        on_ranks(ranks, 60'000, body, true);
      }
    CHECK(fake_gpu::calls_too_early() == 0);
  }

  TEST_CASE("nccl: ranks on slices of one GPU are refused before NCCL is asked") {
    fake_gpu::make_slices(true);
    (void)fake_gpu::take_nccl_calls();
    for (const int per_host : {0, 1}) {  // 1: GPUs at the same address, but of two hosts
      ThreadCommunicator hosts(2, 60'000);
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < 2; ++rank)
        threads.emplace_back([&, rank] {
          const Status connected =
              communicator(hosts.rank(rank), 60'000, 60'000, false, per_host)->connect();
          INFO(connected.message());
          CHECK(connected.ok() == (per_host == 1));
          if (connected.ok()) return;
          CHECK(says(connected, Code::bad_config, "ranks 0 and 1 share one GPU"));
        });
      threads.clear();
      CHECK(fake_gpu::take_nccl_calls().empty() == (per_host == 0));
    }
    fake_gpu::make_slices(false);
  }

  TEST_CASE("nccl: operations wait for earlier work of the followed stream, the host does not") {
    on_ranks(2, 60'000, [](int rank, Collective& ours, Collective&) {
      const auto compute = must(nccl::Stream::create(rank));
      ours.follow((*compute)->handle());
      auto* full = static_cast<float*>(device(ours, {0, 0}, DType::f32));
      std::promise<void> gate;
      fake_gpu::run_on((*compute)->handle(), [full, rank, opened = gate.get_future().share()] {
        opened.wait();
        full[rank] = static_cast<float>(rank + 1);
      });
      WorkPtr work = ours.all_gather(full + rank, full, 1, DType::f32);
      gate.set_value();
      CHECK(work->wait().ok());
      CHECK(full[0] == 1);
      CHECK(full[1] == 2);
      CHECK((*compute)->finish(nccl::Clock::now() + std::chrono::seconds(60)).ok());
    });
  }

  TEST_CASE("nccl: abort() from another thread ends an operation whose peer never starts it") {
    on_ranks(2, 60'000, [](int rank, Collective& ours, Collective& reference) {
      void* data = device(ours, {1, 2}, DType::f32);
      if (rank == 0) {
        std::promise<void> started;
        std::thread other([&] {
          started.get_future().wait();
          ours.abort("fenced");
        });
        WorkPtr work = ours.all_gather(data, data, 1, DType::f32);
        started.set_value();
        const Status status = work->wait();
        CHECK(status.code() == Code::aborted);
        CHECK(status.message() == "shard@1: fenced");
        CHECK(ours.all_reduce(data, 1, DType::f32)->wait().code() == Code::aborted);
        other.join();
      }
      CHECK(reference.barrier()->wait().ok());  // rank 1 starts no operation and ends after rank 0
    });
  }

  TEST_CASE(
      "nccl: a peer that starts nothing causes a deadline, a peer that NCCL has lost an error") {
    on_ranks(2, 300, [](int rank, Collective& ours, Collective& reference) {
      void* data = device(ours, {1, 2}, DType::f32);
      if (rank == 0) CHECK(ours.all_reduce(data, 1, DType::f32)->wait().code() == Code::deadline);
      CHECK(reference.barrier()->wait().ok());
    });
    on_ranks(2, 60'000, [](int rank, Collective& ours, Collective& reference) {
      void* data = device(ours, {1, 2}, DType::f32);
      if (rank == 0) {
        WorkPtr work = ours.all_reduce(data, 1, DType::f32);
        fake_gpu::lose_peer_of(0);
        CHECK(work->wait().code() == Code::unavailable);
        fake_gpu::lose_peer_of(-1);
      }
      CHECK(reference.barrier()->wait().ok());
    });
  }

  TEST_CASE("nccl: the process ends if ncclCommAbort hangs") {
    CHECK(exit_code_of([] {
            fake_gpu::hang_aborts();
            ThreadCommunicator hosts(1, 60'000);
            auto made = communicator(hosts.rank(0), 60'000, 1);
            (void)made->connect();
            made->abort("fenced");
            made.reset();
          }) == 75);
  }

  TEST_CASE("nccl: the process ends if a call to NCCL hangs while another thread aborts") {
    CHECK(exit_code_of([] {
            (void)fake_gpu::take_nccl_calls();  // of other cases
            fake_gpu::set_inits(fake_gpu::Inits::hang);
            ThreadCommunicator hosts(1, 60'000);
            auto made = communicator(hosts.rank(0), 60'000, 1);
            std::thread connecting([&] { (void)made->connect(); });
            while (fake_gpu::take_nccl_calls().empty()) std::this_thread::yield();
            made->abort("fenced");
            fake_gpu::set_inits(fake_gpu::Inits::work);
            connecting.join();
          }) == 75);
  }
}
