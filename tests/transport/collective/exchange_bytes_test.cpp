#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "runtime/training/sharding.hpp"
#include "transport/collective/plan.hpp"

using namespace simplescale;
using namespace simplescale::collective;

namespace {

/// Bytes that a trainer sends for each element that it sends to another group, in the exchange of
/// partial sums across groups; the mean of all groups.
double bytes_across_groups(uint64_t leaves, int groups, uint64_t shards) {
  const Shares shares = Shares::even(leaves, static_cast<uint64_t>(groups), shards);
  const size_t count = size_t{4096} * static_cast<size_t>(groups);  // equal slices of whole lines
  std::vector<float> memory(count);
  size_t bytes = 0;
  for (int rank = 0; rank < groups; ++rank) {
    const std::vector<TreeNode>& nodes = shares.blocks()[static_cast<size_t>(rank)];
    PartialSum mine(std::vector<float*>(nodes.size(), memory.data()), count);
    mine.added(nodes);
    for (const Outgoing& send :
         plan_all_reduce_partials(rank, groups, mine, shares.blocks(), memory.data()).sends)
      bytes += send.bytes * (send.to == kOthers ? static_cast<size_t>(groups) - 1 : 1);
  }
  return static_cast<double>(bytes) /
         (static_cast<double>(count) * static_cast<double>(groups - 1));
}

}  // namespace

TEST_SUITE("exchange bytes") {
  TEST_CASE("exchange bytes: losing one of G groups costs as few bytes more as a division can") {
    struct Row {
      int groups;
      uint64_t leaves;  // of a shard
      double after, growth;
    };
    for (const Row& row : {Row{4, 16, 12.0, 1.50}, Row{8, 32, 10.3, 1.29}, Row{16, 128, 10.1, 1.27},
                           Row{128, 1024, 8.3, 1.03}})
      for (const uint64_t shards : {1, 2, 8}) {
        INFO("groups = ", row.groups, ", shards = ", shards);
        const double before = bytes_across_groups(row.leaves * shards, row.groups, shards),
                     after = bytes_across_groups(row.leaves * shards, row.groups - 1, shards);
        CHECK(before == 8.0);
        CHECK(std::round(after * 10) == std::round(row.after * 10));
        CHECK(std::round(after / before * 100) == std::round(row.growth * 100));
      }
  }
}
