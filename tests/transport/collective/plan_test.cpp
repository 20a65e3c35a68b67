// The plans of all ranks of random layouts, executed together without links: every stream has one
// sender and one receiver, every operation ends, and its results are those of the serial reference.
#include "transport/collective/plan.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <tuple>
#include <utility>

#include "collective_ranks.hpp"

namespace simplescale::testing {
namespace {

using namespace collective;

/// The plans of all ranks, in which a stream is sent and received as a whole.
class Execution {
 public:
  Execution(const Hosts& hosts, std::vector<Plan> plans)
      : hosts_(hosts), plans_(std::move(plans)), ranks_(plans_.size()) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].sent.resize(plans_[rank].sends.size());
      ranks_[rank].copied.resize(plans_[rank].copies.size());
      ranks_[rank].host_sums.resize(plans_[rank].host_sums.size());
    }
  }

  /// What is wrong, or an empty text.
  std::string run() {
    for (bool moved = true; moved && wrong_.empty();) {
      moved = false;
      for (int rank = 0; rank < hosts_.size(); ++rank) moved |= advance(rank);
    }
    if (!wrong_.empty()) return wrong_;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Rank& r = ranks_[rank];
      const auto all = [](const auto& done) { return std::ranges::count(done, false) == 0; };
      if (!r.summed || !all(r.sent) || !all(r.copied))
        return "rank " + std::to_string(rank) + " never ends";
    }
    return streams_.empty() ? "" : "a stream that nobody receives";
  }

  /// Bytes that have crossed from one host to another.
  size_t crossed() const { return crossed_; }

 private:
  struct Rank {
    std::vector<bool> sent, copied;
    std::vector<std::optional<std::vector<float>>> host_sums;
    bool summed = false;
  };

  std::vector<int> receivers(int rank, const Outgoing& out) const {
    if (out.to >= 0) return {out.to};
    std::vector<int> to;
    for (int other = 0; other < hosts_.size(); ++other)
      if (other != rank &&
          (out.to == kOthers || (out.to == kNeighbours) == hosts_.together(rank, other)))
        to.push_back(other);
    return to;
  }

  bool is_ready(const Rank& rank, const Outgoing& out) const {
    return out.after == After::start || (out.after == After::sum && rank.summed) ||
           (out.after == After::copy && rank.copied[out.index]) ||
           (out.after == After::host_sum && rank.host_sums[out.index]);
  }

  bool advance(int number) {
    Rank& rank = ranks_[static_cast<size_t>(number)];
    Plan& plan = plans_[static_cast<size_t>(number)];
    bool moved = false;
    for (size_t i = 0; i < plan.sends.size(); ++i) {
      const Outgoing& out = plan.sends[i];
      if (rank.sent[i] || !is_ready(rank, out)) continue;
      rank.sent[i] = moved = true;
      const auto* data = out.after == After::host_sum
                             ? reinterpret_cast<const std::byte*>(rank.host_sums[out.index]->data())
                             : out.data;
      if (out.bytes == 0) continue;
      for (const int to : receivers(number, out)) {
        if (to == number) wrong_ = "a stream from a rank to itself";
        if (!streams_
                 .emplace(std::tuple(number, to, out.phase), std::vector(data, data + out.bytes))
                 .second)
          wrong_ = "two streams of the same name";
        if (!hosts_.together(number, to)) crossed_ += out.bytes;
      }
    }
    if (const size_t bytes = std::exchange(plan.local_bytes, 0); bytes > 0)
      std::memcpy(plan.local_to, plan.local_from, bytes);
    for (size_t i = 0; i < plan.host_sums.size(); ++i)
      if (!rank.host_sums[i]) moved |= add(number, plan.host_sums[i], &rank.host_sums[i]);
    if (!rank.summed) moved |= rank.summed = add(number, plan.sum, nullptr);
    for (size_t i = 0; i < plan.copies.size(); ++i) {
      const Incoming& in = plan.copies[i];
      if (rank.copied[i]) continue;
      const auto stream = take(in.from, number, in.phase, in.bytes);
      if (!stream) continue;
      if (in.bytes > 0) std::memcpy(in.to, stream->data(), in.bytes);
      rank.copied[i] = moved = true;
    }
    return moved;
  }

  /// A stream, if it has been sent; it can be taken once.
  std::optional<std::vector<std::byte>> take(int from, int to, uint32_t phase, size_t bytes) {
    if (bytes == 0) return std::vector<std::byte>();
    const auto found = streams_.find({from, to, phase});
    if (found == streams_.end()) return {};
    if (found->second.size() != bytes) wrong_ = "a stream of another length";
    std::vector<std::byte> data = std::move(found->second);
    streams_.erase(found);
    return data;
  }

  /// False: a summand has not come yet.
  bool add(int rank, Sum& sum, std::optional<std::vector<float>>* result) {
    for (const Summand& s : sum.summands)
      if (!s.data && sum.count > 0 && !streams_.contains({s.from, rank, s.phase})) return false;
    std::vector<std::vector<std::byte>> received;
    std::vector<TreeSource> sources;
    for (const Summand& s : sum.summands) {
      const void* data = s.data;
      if (!data) {
        received.push_back(*take(s.from, rank, s.phase, sum.count * bytes_of(s.dtype)));
        data = received.back().data();
      }
      sources.push_back({s.node, data, s.dtype});
    }
    if (result) {
      std::vector<TreeNode> nodes;
      for (const TreeSource& source : sources) nodes.push_back(source.node);
      if (merged(nodes).size() != 1) wrong_ = "a host's sum is no node";
      tree_total(sources, result->emplace(sum.count).data(), DType::f32, sum.count);
    } else if (sum.partial) {
      sum.partial->add(sources);
    } else if (!sources.empty()) {
      tree_total(sources, sum.total, sum.dtype, sum.count);
    }
    return true;
  }

  const Hosts& hosts_;
  std::vector<Plan> plans_;
  std::vector<Rank> ranks_;
  std::map<std::tuple<int, int, uint32_t>, std::vector<std::byte>> streams_;
  size_t crossed_ = 0;
  std::string wrong_;
};

/// A layout with a buffer of each rank, of which every element has its own value.
struct Case {
  Hosts hosts;
  DType dtype;
  size_t count;
  size_t ranks = static_cast<size_t>(hosts.size());
  std::vector<Buffer> from{}, to{};
  size_t crossed = 0;

  /// from[r]: the inputs of rank r, `of_from` elements; to[r]: zeros, `of_to` elements.
  void make(size_t of_from, size_t of_to, DType type_of_to) {
    for (int rank = 0; rank < hosts.size(); ++rank) {
      from.emplace_back(dtype, of_from);
      to.emplace_back(type_of_to, of_to);
      for (size_t i = 0; i < of_from; ++i) from.back().set(i, input(dtype, rank, i));
    }
  }
  template <class PlanOf>
  std::string run(PlanOf plan_of) {
    std::vector<Plan> plans;
    for (int rank = 0; rank < hosts.size(); ++rank) plans.push_back(plan_of(rank));
    Execution execution(hosts, std::move(plans));
    const std::string wrong = execution.run();
    crossed = execution.crossed();
    return wrong;
  }
  /// The sum of all ranks at one element; leaf: the first one.
  float sum(size_t element, uint64_t leaf = 0) const { return sum_of(hosts.size(), element, leaf); }
  /// Of the first ranks.
  float sum_of(int first_ranks, size_t element, uint64_t leaf) const {
    std::vector<float> leaves;
    for (int rank = 0; rank < first_ranks; ++rank) leaves.push_back(input(dtype, rank, element));
    return reference_sum(leaf, leaves);
  }
  size_t index(int rank) const { return static_cast<size_t>(rank); }

  std::string all_gather() {
    make(count, count * ranks, dtype);
    std::string wrong = run([&](int rank) {
      return plan_all_gather(rank, hosts, from[index(rank)].data, to[index(rank)].data,
                             from[0].bytes());
    });
    for (const Buffer& all : to)
      for (size_t i = 0; i < count * ranks && wrong.empty(); ++i)
        if (all.get(i) != input(dtype, static_cast<int>(i / count), i % count))
          wrong = "another slice";
    return wrong;
  }

  std::string broadcast(int root) {
    make(count, 0, dtype);
    std::string wrong = run([&](int rank) {
      return plan_broadcast(rank, hosts, from[index(rank)].data, from[0].bytes(), root);
    });
    for (const Buffer& each : from)
      for (size_t i = 0; i < count && wrong.empty(); ++i)
        if (each.get(i) != input(dtype, root, i)) wrong = "not what the root has";
    return wrong;
  }

  std::string reduce_scatter() {
    make(count * ranks, count, dtype);
    std::string wrong = run([&](int rank) {
      return plan_reduce_scatter(rank, hosts, from[index(rank)].data, to[index(rank)].data, count,
                                 dtype);
    });
    for (size_t rank = 0; rank < ranks; ++rank)
      for (size_t i = 0; i < count && wrong.empty(); ++i)
        if (to[rank].get(i) != rounded(dtype, sum(rank * count + i))) wrong = "another sum";
    return wrong;
  }

  std::string all_reduce() {
    make(count, 0, dtype);
    std::string wrong = run([&](int rank) {
      return plan_all_reduce(rank, hosts, from[index(rank)].data, count, dtype);
    });
    for (const Buffer& each : from)
      for (size_t i = 0; i < count && wrong.empty(); ++i)
        if (each.get(i) != rounded(dtype, sum(i))) wrong = "another sum";
    return wrong;
  }

  /// first: leaf of rank 0, to which no sum has been added yet. without: so many of the last ranks
  /// have no leaf.
  std::string reduce_scatter_leaves(uint64_t first, size_t without = 0) {
    make(count * ranks, count * 12, DType::f32);
    std::vector<TreeNode> leaves;
    for (size_t rank = 0; rank + without < ranks; ++rank) leaves.push_back({0, first + rank});
    std::vector<PartialSum> slices;
    for (const Buffer& digits : to) {
      std::vector<float*> buffers;
      for (size_t i = 0; i < 12; ++i)
        buffers.push_back(static_cast<float*>(digits.data) + i * count);
      slices.emplace_back(buffers, count);
    }
    std::string wrong = run([&](int rank) {
      return plan_reduce_scatter_leaves(rank, hosts, from[index(rank)].data, count, dtype, leaves,
                                        slices[index(rank)]);
    });
    for (size_t rank = 0; rank < ranks; ++rank) {
      const PartialSum& slice = slices[rank];
      if (wrong.empty() && !std::ranges::equal(slice.nodes(), merged(leaves)))
        wrong = "other nodes";
      if (!wrong.empty()) break;
      std::vector<TreeSource> sources;
      for (size_t i = 0; i < slice.nodes().size(); ++i)
        sources.push_back({slice.nodes()[i], slice.data(i), DType::f32});
      std::vector<float> total(count);
      tree_total(sources, total.data(), DType::f32, count);
      for (size_t i = 0; i < count && wrong.empty(); ++i)
        if (total[i] != sum_of(static_cast<int>(leaves.size()), rank * count + i, first))
          wrong = "another sum";
    }
    return wrong;
  }

  /// leaves: how many consecutive leaves each rank has; each is this rank's input.
  std::string all_reduce_partials(const std::vector<uint64_t>& leaves) {
    make(count, count, DType::f32);
    std::vector<std::vector<TreeNode>> nodes;
    std::vector<PartialSum> mine;
    std::vector<std::vector<float>> memory;
    std::vector<int> rank_of_leaf;
    for (size_t rank = 0; rank < ranks; ++rank) {
      nodes.push_back(nodes_of_run(rank_of_leaf.size(), leaves[rank]));
      std::vector<float*> buffers;
      for (int i = 0; i < 8; ++i) buffers.push_back(memory.emplace_back(count).data());
      mine.emplace_back(buffers, count);
      for (uint64_t i = 0; i < leaves[rank]; ++i) {
        const TreeSource leaf{{0, rank_of_leaf.size()}, from[rank].data, dtype};
        mine.back().add({&leaf, 1});
        rank_of_leaf.push_back(static_cast<int>(rank));
      }
    }
    std::string wrong = run([&](int rank) {
      return plan_all_reduce_partials(rank, hosts, mine[index(rank)], nodes,
                                      static_cast<float*>(to[index(rank)].data));
    });
    for (size_t i = 0; i < count && wrong.empty(); ++i) {
      std::vector<float> all;
      for (const int rank : rank_of_leaf) all.push_back(input(dtype, rank, i));
      for (const Buffer& total : to)
        if (total.get(i) != reference_sum(0, all)) wrong = "another sum";
    }
    return wrong;
  }
};

Hosts hosts_of(const std::vector<int>& numbers) {
  std::vector<std::string> names;
  for (const int number : numbers) names.push_back("h" + std::to_string(number));
  return Hosts(names);
}

/// `each` ranks on each of `count` hosts, the ranks of a host one after the other.
Hosts even_hosts(int count, int each) {
  std::vector<int> numbers;
  for (int rank = 0; rank < count * each; ++rank) numbers.push_back(rank / each);
  return hosts_of(numbers);
}

}  // namespace

TEST_SUITE("collective") {
  TEST_CASE("collective: plans of random layouts end, with each slice once and each leaf once") {
    const unsigned seed =
        std::getenv("SEED") ? static_cast<unsigned>(atoi(std::getenv("SEED"))) : 1;
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](unsigned limit) { return static_cast<int>(random() % limit); };
    for (int round = 0; round < 150; ++round) {
      const unsigned hosts = 1 + random() % 5, ranks = 1 + random() % 10;
      std::vector<int> host_of_rank;
      for (unsigned rank = 0; rank < ranks; ++rank) host_of_rank.push_back(below(hosts));
      if (below(2)) std::ranges::sort(host_of_rank);  // else a host's ranks lie anywhere
      const DType dtype = below(2) ? DType::f32 : DType::bf16;
      constexpr size_t kCounts[] = {0, 1, 37, 3000, 20'011};
      const size_t count = kCounts[below(5)];
      CAPTURE(host_of_rank);
      CAPTURE(count);
      CAPTURE(static_cast<int>(dtype));
      const auto fresh = [&] { return Case{hosts_of(host_of_rank), dtype, count}; };
      CHECK(fresh().all_gather() == "");
      CHECK(fresh().broadcast(below(ranks)) == "");
      CHECK(fresh().reduce_scatter() == "");
      CHECK(fresh().all_reduce() == "");
      CHECK(fresh().reduce_scatter_leaves(random() % 40, random() % ranks) == "");
      std::vector<uint64_t> leaves;
      for (unsigned rank = 0; rank < ranks; ++rank) leaves.push_back(random() % 5);
      leaves[random() % ranks] = 1;  // not all have none
      CHECK(fresh().all_reduce_partials(leaves) == "");
    }
  }

  TEST_CASE("collective: a host sends as much as in a ring of hosts") {
    constexpr size_t kCount = 16'384;
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int count : {2, 4, 8})
        for (const int each : {2, 4}) {
          CAPTURE(count);
          CAPTURE(each);
          CAPTURE(static_cast<int>(dtype));
          const Hosts hosts = even_hosts(count, each);
          // What crosses in all: each slice to count - 1 hosts.
          const auto elements = static_cast<size_t>(hosts.size() * (count - 1)) * kCount;
          const auto presence = static_cast<size_t>(hosts.size() * (hosts.size() - each));
          Case gather{hosts, dtype, kCount};
          CHECK(gather.all_gather() == "");
          CHECK(gather.crossed == elements * bytes_of(dtype) + presence);
          Case leaves{hosts, dtype, kCount};
          CHECK(leaves.reduce_scatter_leaves(0) == "");
          // In bf16 two leaves are as short as their sum, and cross without another hop.
          const bool adds = dtype == DType::f32 || each > 2;
          CHECK(leaves.crossed == elements * sizeof(float) + (adds ? presence : 0));
        }
  }

  TEST_CASE("collective: a host whose leaves make several nodes sends each") {
    constexpr size_t kCount = 20'000;
    // Hosts of leaves 0..2 and 3..5: their nodes are (0..1) 2 and 3 (4..5).
    Case leaves{even_hosts(2, 3), DType::f32, kCount};
    CHECK(leaves.reduce_scatter_leaves(0) == "");
    CHECK(leaves.crossed == 6 * 2 * kCount * sizeof(float) + 6 * 3);
    // Of ranks in turns no two leaves of a host are siblings.
    Case turns{hosts_of({0, 1, 0, 1}), DType::f32, kCount};
    CHECK(turns.reduce_scatter_leaves(0) == "");
    CHECK(turns.crossed == 4 * 2 * kCount * sizeof(float));
  }

  TEST_CASE("collective: what is small takes one hop") {
    Case gather{even_hosts(2, 2), DType::f32, 1000};
    CHECK(gather.all_gather() == "");
    CHECK(gather.crossed == 4 * 2 * 1000 * sizeof(float));
  }
}

}  // namespace simplescale::testing
