// Sums inside each host first: which layouts have them, and what crosses between hosts. That the bits
// stay the same: communicator_test.cpp.
#include "transport/nccl/host_sums.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace simplescale;
using namespace simplescale::nccl;

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
    CHECK(leaves_fit(leaves(8, 8), 4));
    CHECK_FALSE(leaves_fit(leaves(6, 8), 4));
    auto gap = leaves(8, 8);
    gap[7].index = 17;
    CHECK_FALSE(leaves_fit(gap, 4));
    auto nodes = leaves(8, 8);
    for (TreeNode& node : nodes) node.level = 1;
    CHECK_FALSE(leaves_fit(nodes, 4));
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
