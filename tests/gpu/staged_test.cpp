// Collectives of GPUs through host memory, over a fake CUDA (fake_gpu.hpp), between two hosts that
// trust no network, so that all bytes go over encrypted TCP. Ranks are threads.
// The poll() that NCCL's service threads call. That it ends them soon: the checklist's part `nccl`.
// Sums inside each host first: which layouts have them, and what crosses between hosts. That the bits
// stay the same: communicator_test.cpp.
#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <chrono>

#include "tests/model/thread_collective.hpp"
#include "tests/must.hpp"
#include "tests/transport/collective/collective_ranks.hpp"
#include "transport/nccl/host_sums.hpp"
#include "transport/nccl/program/poll.hpp"
#include "transport/nccl/staged.hpp"

using namespace simplescale;
using namespace simplescale::nccl;

namespace {

/// Device memory with values of this rank.
void* device(Collective& c, int rank, size_t count, DType dtype) {
  const auto memory = must(c.allocate(count * bytes_of(dtype)));
  testing::Buffer values(dtype, count);
  for (size_t i = 0; i < count; ++i) values.set(i, testing::input(dtype, rank, i));
  std::memcpy(*memory, values.data, values.bytes());
  return *memory;
}

}  // namespace

TEST_SUITE("staged") {
  TEST_CASE("staged: between hosts every operation has the bits of the tests' own collective") {
    constexpr int kRanks = 3;
    testing::RankPlanes planes("staged", {0, 1, 1});
    ThreadCommunicator references(kRanks, 60'000);
    std::barrier together(kRanks);  // mirrors are freed only after all ranks have read them
    const std::string errors = testing::on_ranks(kRanks, [&](int rank) -> std::string {
      auto host = planes.join(rank, kRanks, 1);
      auto stream = nccl::Stream::create(0);
      if (!host.ok() || !stream.ok()) return host.status().message() + stream.status().message();
      nccl::StagedCommunicator staged(host.take(), stream.take(), std::make_shared<nccl::Mirrors>(),
                                      20'000);
      std::string error;
      for (const size_t count : {size_t{1}, size_t{37}, size_t{50'000}})  // the last in two levels
        for (const DType dtype : {DType::f32, DType::bf16}) {
          const size_t all = count * kRanks, bytes = all * bytes_of(dtype);
          const auto both = [&](auto operation) {
            std::vector<char> results[2];
            for (Collective* c : {static_cast<Collective*>(&staged), &references.rank(rank)}) {
              void *in = device(*c, rank, all, dtype), *out = device(*c, rank + 7, all, dtype);
              const Status status = operation(*c, in, out)->wait();
              if (!status.ok()) error += status.message();
              const char* begin = static_cast<const char*>(out);
              results[c != &staged].assign(begin, begin + bytes);
            }
            if (results[0] != results[1]) error += "other bits, count " + std::to_string(count);
          };
          both([&](Collective& c, void* in, void* out) {
            return c.all_gather(in, out, count, dtype);
          });
          both([&](Collective& c, void* in, void* out) {
            return c.reduce_scatter(in, out, count, dtype);
          });
          both([&](Collective& c, void*, void* out) { return c.all_reduce(out, all, dtype); });
          both([&](Collective& c, void*, void* out) { return c.broadcast(out, all, dtype, 1); });
        }
      together.arrive_and_wait();
      return error;
    });
    CHECK(errors == "");
  }
}

TEST_SUITE("poll") {
  TEST_CASE(
      "poll: only NCCL waits more shortly than it asks for, and only where it looks for aborts") {
    CHECK(poll_timeout_ms(500, "/venv/nvidia/nccl/lib/libnccl.so.2") == 10);
    for (const int other : {-1, 0, 499, 60'000})
      CHECK(poll_timeout_ms(other, "/venv/nvidia/nccl/lib/libnccl.so.2") == other);
    CHECK(poll_timeout_ms(500, "/usr/lib/libucs.so.0") == 500);
    CHECK(poll_timeout_ms(500, "") == 500);
  }

  TEST_CASE("poll: the program's own does what the C library's does") {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pollfd reads{.fd = ends[0], .events = POLLIN, .revents = 0};
    CHECK(poll(&reads, 1, 0) == 0);
    const auto begun = std::chrono::steady_clock::now();
    CHECK(poll(&reads, 1, 30) == 0);
    CHECK(std::chrono::steady_clock::now() - begun >= std::chrono::milliseconds(30));
    REQUIRE(write(ends[1], "x", 1) == 1);
    for (const int timeout_ms : {-1, 0, 500, 2'001}) {
      reads.revents = 0;
      CHECK(poll(&reads, 1, timeout_ms) == 1);
      CHECK(reads.revents == POLLIN);
    }
    pollfd* volatile nowhere = nullptr;  // the compiler would refuse it
    errno = 0;
    CHECK(poll(nowhere, 1, 0) == -1);
    CHECK(errno == EFAULT);
    close(ends[0]);
    close(ends[1]);
  }
}

namespace {

std::vector<TreeNode> leaves(uint64_t first, size_t count) {
  std::vector<TreeNode> nodes;
  for (size_t i = 0; i < count; ++i) nodes.push_back({0, first + i});
  return nodes;
}

size_t sent(const std::vector<Message>& messages) {
  size_t bytes = 0;
  for (const Message& message : messages)
    if (message.from) bytes += message.bytes;
  return bytes;
}

}  // namespace

TEST_SUITE("host sums") {
  TEST_CASE("host sums: hosts need equally many ranks, a power of two, that follow each other") {
    const auto of = [](std::vector<uint64_t> hosts) { return ranks_per_host(hosts); };
    CHECK(of({7, 7, 9, 9}) == 2);
    CHECK(of({1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}) == 4);
    CHECK(of({5, 5, 5, 5}) == 1);        // one host
    CHECK(of({1, 2, 3}) == 1);           // one rank each
    CHECK(of({1, 1, 1, 2, 2, 2}) == 1);  // no power of two
    CHECK(of({1, 1, 2, 2, 2, 2}) == 1);
    CHECK(of({1, 1, 2}) == 1);
    CHECK(of({1, 1, 2, 3}) == 1);
    CHECK(of({1, 1, 2, 2, 1, 1}) == 1);
    CHECK(of({1, 2, 1, 2}) == 1);
  }

  TEST_CASE("host sums: the leaves of a host must be one node") {
    CHECK(leaves_fit(leaves(8, 8), 8, 4));
    CHECK_FALSE(leaves_fit(leaves(6, 8), 8, 4));
    CHECK_FALSE(leaves_fit(leaves(8, 7), 8, 4));  // the last rank has none
    auto gap = leaves(8, 8);
    gap[7].index = 17;
    CHECK_FALSE(leaves_fit(gap, static_cast<int>(gap.size()), 4));
    auto nodes = leaves(8, 8);
    for (TreeNode& node : nodes) node.level = 1;  // of waves
    CHECK(leaves_fit(nodes, 8, 4));
    nodes[5].level = 0;
    CHECK_FALSE(leaves_fit(nodes, 8, 4));
  }

  TEST_CASE("host sums: a partial sum for each other host crosses, and what is received is apart") {
    constexpr int size = 32, per_host = 8;
    constexpr size_t count = 1000;
    const std::vector<std::byte> full(size * count * 2);
    std::vector<std::byte> scratch(host_sums_bytes(size, per_host, count, DType::bf16));
    const HostSums plan = plan_host_sums(13, size, per_host, full.data(), count, DType::bf16,
                                         leaves(64, size), scratch.data());
    CHECK(sent(plan.near) == 7 * 4 * count * 2);
    CHECK(sent(plan.far) == 3 * count * 4);  // without: 24 leaves of bf16, 6 times as many bytes
    std::vector<std::pair<const std::byte*, size_t>> written;
    for (const auto* messages : {&plan.near, &plan.far})
      for (const Message& message : *messages)
        if (message.to) written.emplace_back(static_cast<std::byte*>(message.to), message.bytes);
    for (const float* result : plan.results)
      written.emplace_back(reinterpret_cast<const std::byte*>(result), count * sizeof(float));
    std::ranges::sort(written);
    for (size_t i = 0; i < written.size(); ++i)
      CHECK(written[i].first + written[i].second <=
            (i + 1 < written.size() ? written[i + 1].first : scratch.data() + scratch.size()));
    CHECK(written.front().first == scratch.data());
    std::vector<TreeNode> nodes;
    for (const TreeSource& summand : plan.summands) nodes.push_back(summand.node);
    CHECK(nodes == std::vector<TreeNode>{{3, 8}, {3, 9}, {3, 10}, {3, 11}});
  }
}
