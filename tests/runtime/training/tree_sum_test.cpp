#include "runtime/training/tree_sum.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "runtime/training/sharding.hpp"

using namespace simplescale;

namespace {

constexpr uint64_t kSeed = 20240607;

std::vector<float> random_floats(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values)
    value = std::ldexp(static_cast<float>(random() % 20001) - 10000.0f,
                       static_cast<int>(random() % 20) - 20);
  return values;
}

/// The definition as recursion: the left subtree has the largest power of two of leaves that is
/// smaller than their number.
float reference(const std::vector<std::vector<float>>& leaves, size_t element, size_t first,
                size_t count) {
  if (count == 1) return leaves[first][element];
  size_t left = 1;
  while (left * 2 < count) left *= 2;
  return reference(leaves, element, first, left) +
         reference(leaves, element, first + left, count - left);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// A PartialSum with its buffers.
struct Run {
  explicit Run(size_t elements) : storage(12) {
    std::vector<float*> buffers;
    for (auto& buffer : storage) {
      buffer.assign(elements, -1.0f);
      buffers.push_back(buffer.data());
    }
    sum = std::make_unique<PartialSum>(buffers, elements);
  }
  void sources(std::vector<TreeSource>& to) const {
    for (size_t i = 0; i < sum->nodes().size(); ++i)
      to.push_back({sum->nodes()[i], sum->data(i), DType::f32});
  }
  std::vector<std::vector<float>> storage;
  std::unique_ptr<PartialSum> sum;
};

}  // namespace

TEST_SUITE("tree_sum") {
  TEST_CASE("tree_sum: a run of leaves is divided into the fewest nodes") {
    CHECK(nodes_of_run(0, 0).empty());
    CHECK(nodes_of_run(0, 7) == std::vector<TreeNode>{{2, 0}, {1, 2}, {0, 6}});
    CHECK(nodes_of_run(3, 6) == std::vector<TreeNode>{{0, 3}, {2, 1}, {0, 8}});
    for (uint64_t first = 0; first < 20; ++first) {
      for (uint64_t count = 0; count < 40; ++count) {
        std::vector<TreeNode> leaves;
        for (uint64_t i = 0; i < count; ++i) leaves.push_back({0, first + i});
        CHECK(merged(leaves) == nodes_of_run(first, count));
      }
    }
  }

  TEST_CASE(
      "tree_sum: the total equals the definition for any number of leaves, type and odd size") {
    for (size_t count : {size_t{0}, size_t{1}, size_t{63}, size_t{1025}, size_t{5000}}) {
      for (size_t n = 1; n <= 20; ++n) {
        std::vector<std::vector<float>> leaves;
        std::vector<std::vector<uint16_t>> narrow(n);
        std::vector<TreeSource> sources;
        for (size_t i = 0; i < n; ++i) {
          leaves.push_back(random_floats(count, kSeed + i));
          const bool bf16 = i % 3 == 1;
          if (bf16) {
            for (float& value : leaves[i]) {
              narrow[i].push_back(f32_to_bf16(value));
              value = bf16_to_f32(narrow[i].back());
            }
          }
          sources.push_back({{0, i},
                             bf16 ? static_cast<const void*>(narrow[i].data()) : leaves[i].data(),
                             bf16 ? DType::bf16 : DType::f32});
        }
        std::vector<float> expected(count), total(count);
        std::vector<uint16_t> rounded(count), total_bf16(count);
        for (size_t e = 0; e < count; ++e) {
          expected[e] = reference(leaves, e, 0, n);
          rounded[e] = f32_to_bf16(expected[e]);
        }
        tree_total(sources, total.data(), DType::f32, count);
        CHECK(same_bits(total, expected));
        tree_total(sources, total_bf16.data(), DType::bf16, count);
        CHECK(total_bf16 == rounded);
      }
    }
  }

  TEST_CASE("tree_sum: partial sums of any division of the leaves give the same bits") {
    const size_t elements = 1500;
    std::mt19937_64 random(kSeed);
    for (size_t n : {size_t{1}, size_t{5}, size_t{12}, size_t{24}, size_t{31}}) {
      std::vector<std::vector<float>> leaves;
      for (size_t i = 0; i < n; ++i) leaves.push_back(random_floats(elements, kSeed + i));
      std::vector<float> expected(elements);
      for (size_t e = 0; e < elements; ++e) expected[e] = reference(leaves, e, 0, n);
      for (int trial = 0; trial < 20; ++trial) {
        std::vector<Run> runs;
        for (size_t first = 0; first < n;) {
          const size_t count = 1 + random() % (n - first);
          runs.emplace_back(elements);
          for (size_t i = 0; i < count;) {  // several leaves per add
            const size_t together = 1 + random() % (count - i);
            std::vector<TreeSource> sources;
            for (size_t k = 0; k < together; ++k)
              sources.push_back({{0, first + i + k}, leaves[first + i + k].data(), DType::f32});
            runs.back().sum->add(sources);
            i += together;
          }
          const auto nodes = runs.back().sum->nodes();
          CHECK(std::vector<TreeNode>(nodes.begin(), nodes.end()) == nodes_of_run(first, count));
          first += count;
        }
        std::vector<TreeSource> sources;
        for (const Run& run : runs) run.sources(sources);
        std::vector<float> total(elements);
        tree_total(sources, total.data(), DType::f32, elements);
        CHECK(same_bits(total, expected));
      }
    }
  }

  TEST_CASE("tree_sum: partial sums of shares with gaps give the same bits") {
    const size_t elements = 700;
    std::mt19937_64 random(kSeed);
    for (int trial = 0; trial < 100; ++trial) {
      std::vector<uint64_t> counts(1 + random() % 4);
      for (uint64_t& count : counts) count = random() % 15;
      counts[0] += 1;
      const Shares shares(counts, 1 + random() % 4);
      const size_t n = shares.leaves();
      std::vector<std::vector<float>> leaves;
      for (size_t i = 0; i < n; ++i) leaves.push_back(random_floats(elements, kSeed + i));
      std::vector<float> expected(elements);
      for (size_t e = 0; e < elements; ++e) expected[e] = reference(leaves, e, 0, n);
      std::vector<Run> runs;
      std::vector<TreeSource> sources;
      for (uint64_t group = 0; group < counts.size(); ++group) {
        runs.emplace_back(elements);
        for (uint64_t k = 0; k < shares.turns(group).size(); ++k) {
          std::vector<TreeSource> turn;
          for (const TreeNode& leaf : shares.turn(group, k))
            turn.push_back({leaf, leaves[leaf.index].data(), DType::f32});
          runs.back().sum->add(turn);
        }
        const auto nodes = runs.back().sum->nodes();
        CHECK(std::ranges::equal(nodes, shares.blocks()[group]));
        runs.back().sources(sources);
      }
      std::ranges::sort(sources, {}, [](const TreeSource& s) { return s.node.first(); });
      std::vector<float> total(elements);
      tree_total(sources, total.data(), DType::f32, elements);
      CHECK(same_bits(total, expected));
    }
  }

  TEST_CASE("tree_sum: a total may overwrite one of its sources") {
    const size_t elements = 3000;
    for (size_t at = 0; at < 5; ++at) {
      std::vector<std::vector<float>> leaves;
      std::vector<TreeSource> sources;
      for (size_t i = 0; i < 5; ++i) leaves.push_back(random_floats(elements, kSeed + i));
      for (size_t i = 0; i < 5; ++i) sources.push_back({{0, i}, leaves[i].data(), DType::f32});
      std::vector<float> expected(elements);
      for (size_t e = 0; e < elements; ++e) expected[e] = reference(leaves, e, 0, 5);
      tree_total(sources, leaves[at].data(), DType::f32, elements);
      CHECK(same_bits(leaves[at], expected));
    }
  }

  TEST_CASE("tree_sum: scalars follow the same tree") {
    const std::vector<double> values = {1e16, 1.0, -1e16, 1.0, 3.0, 0.5, 7.0};
    std::vector<TreeNode> leaves;
    for (uint64_t i = 0; i < values.size(); ++i) leaves.push_back({0, i});
    const double left = (values[0] + values[1]) + (values[2] + values[3]);
    const double right = (values[4] + values[5]) + values[6];
    CHECK(tree_total(leaves, values) == left + right);
    const std::vector<TreeNode> nodes = {{2, 0}, {0, 4}, {0, 5}, {0, 6}};
    CHECK(tree_total(nodes, std::vector<double>{left, values[4], values[5], values[6]}) ==
          left + right);
    // The remaining nodes are added from right to left.
    const std::vector<TreeNode> three = {{2, 0}, {1, 2}, {0, 6}};
    CHECK(tree_total(three, std::vector<double>{1e16, 1.0, 1.0}) == 1e16 + 2);
    CHECK(tree_total(std::span<const TreeNode>{}, std::span<const double>{}) == 0);
  }
}
