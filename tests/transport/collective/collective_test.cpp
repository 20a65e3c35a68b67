// Compares the results of every collective with the serial reference, bit for bit, over shared
// memory, over UCX, and over both.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "collective_ranks.hpp"
#include "runtime/training/sharding.hpp"

namespace simplescale::testing {
namespace {

std::string at(const char* what, size_t index) {
  return std::string(what) + " differs at " + std::to_string(index);
}

#define RUN(work)                                           \
  do {                                                      \
    const Status status = (work)->wait();                   \
    if (!status.ok()) return std::string(status.message()); \
  } while (false)

/// Runs each operation on one rank and compares its result with the serial reference. Each check
/// returns what is wrong, or an empty text. Buffers lie in the arena or on the heap.
struct OperationChecks {
  Collective& c;
  const DType dtype;
  const size_t count;
  const bool arena;
  const int rank = c.rank(), size = c.size();
  const size_t ranks = static_cast<size_t>(size);
  std::vector<std::unique_ptr<Buffer>> buffers;

  Buffer& make(DType type, size_t elements) {
    buffers.push_back(arena ? std::make_unique<Buffer>(c, type, elements)
                            : std::make_unique<Buffer>(type, elements));
    return *buffers.back();
  }

  /// `count` elements, this rank's input.
  Buffer& make_input(DType type, size_t elements) {
    Buffer& buffer = make(type, elements);
    for (size_t i = 0; i < elements; ++i) buffer.set(i, input(type, rank, i));
    return buffer;
  }

  /// The reference sum of one element over `leaf_rank`, the rank of each leaf.
  float sum_over(uint64_t first_leaf, const std::vector<int>& leaf_rank, size_t index) const {
    static thread_local std::vector<float> leaves;
    leaves.clear();
    for (const int r : leaf_rank) leaves.push_back(input(dtype, r, index));
    return reference_sum(first_leaf, leaves);
  }

  std::vector<int> every_rank() const {
    std::vector<int> all(ranks);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  /// `digits` buffers of `count` fp32 elements in one allocation.
  PartialSum make_partial(size_t digits) {
    auto* memory = static_cast<float*>(make(DType::f32, count * digits).data);
    std::vector<float*> parts;
    for (size_t i = 0; i < digits; ++i) parts.push_back(memory + i * count);
    return PartialSum(parts, count);
  }

  std::string all_gather() {
    Buffer &shard = make_input(dtype, count), &full = make(dtype, count * ranks);
    auto wrong = [&](const char* what) -> std::string {
      for (size_t i = 0; i < count * ranks; ++i)
        if (full.get(i) != input(dtype, static_cast<int>(i / count), i % count)) return at(what, i);
      return "";
    };
    RUN(c.all_gather(shard.data, full.data, count, dtype));
    if (const std::string error = wrong("all_gather"); !error.empty()) return error;
    std::memset(full.data, 0, full.bytes());
    auto* own = static_cast<std::byte*>(full.data) + static_cast<size_t>(rank) * shard.bytes();
    std::memcpy(own, shard.data, shard.bytes());
    RUN(c.all_gather(own, full.data, count, dtype));
    return wrong("all_gather in place");
  }

  std::string reduce_scatter() {
    Buffer &full = make_input(dtype, count * ranks), &shard = make(dtype, count);
    const size_t part = static_cast<size_t>(rank) * count;
    RUN(c.reduce_scatter(full.data, shard.data, count, dtype));
    for (size_t i = 0; i < count; ++i)
      if (shard.get(i) != rounded(dtype, sum_over(0, every_rank(), part + i)))
        return at("reduce_scatter", i);
    return "";
  }

  std::string all_reduce() {
    Buffer& data = make_input(dtype, count);
    RUN(c.all_reduce(data.data, count, dtype));
    for (size_t i = 0; i < count; ++i)
      if (data.get(i) != rounded(dtype, sum_over(0, every_rank(), i))) return at("all_reduce", i);
    return "";
  }

  std::string broadcast() {
    for (int root = 0; root < size; root += 3) {
      Buffer& data = make(dtype, count);
      for (size_t i = 0; i < count; ++i) data.set(i, rank == root ? input(dtype, root, i) : 0);
      RUN(c.broadcast(data.data, count, dtype, root));
      for (size_t i = 0; i < count; ++i)
        if (data.get(i) != input(dtype, root, i)) return at("broadcast", i);
    }
    return "";
  }

  /// Two turns of one leaf per rank, but the last rank has none in the second; then the total: a
  /// tree over 2 * size - 1 leaves that starts at leaf 3 of the step.
  std::string reduce_scatter_leaves() {
    const uint64_t first = 3;
    Buffer &full = make_input(dtype, count * ranks), &total = make(DType::f32, count);
    PartialSum slice = make_partial(16);
    std::vector<TreeNode> all;
    std::vector<int> leaf_rank;
    for (uint64_t k = 0; k < 2; ++k) {
      std::vector<TreeNode> leaves;
      for (uint64_t r = 0; r < std::max<uint64_t>(1, ranks - k); ++r) {
        leaves.push_back({0, first + k * ranks + r});
        all.push_back(leaves.back());
        leaf_rank.push_back(static_cast<int>(r));
      }
      RUN(c.reduce_scatter_leaves(full.data, count, dtype, leaves, slice));
    }
    const auto nodes = merged(all);
    if (!std::ranges::equal(nodes, slice.nodes())) return "reduce_scatter_leaves left other nodes";
    std::vector<TreeSource> sources;
    for (size_t i = 0; i < nodes.size(); ++i)
      sources.push_back({nodes[i], slice.data(i), DType::f32});
    tree_total(sources, total.data, DType::f32, count);
    const size_t part = static_cast<size_t>(rank) * count;
    for (size_t i = 0; i < count; ++i)
      if (total.get(i) != sum_over(first, leaf_rank, part + i))
        return at("reduce_scatter_leaves", i);
    return "";
  }

  /// Each rank has 3 leaves, dealt as to groups: a block of two, and one behind all such blocks.
  /// Rank 1 has none. A rank has merged its leaves as far as siblings allow.
  std::string all_reduce_partials() {
    std::vector<uint64_t> counts(ranks, 3);
    if (size > 1) counts[1] = 0;
    const Shares shares(counts, 1);
    std::vector<int> leaf_rank(shares.leaves());
    Buffer &leaf = make_input(dtype, count), &total = make(DType::f32, count);
    PartialSum mine = make_partial(3);
    for (uint64_t r = 0; r < ranks; ++r)
      for (uint64_t i = 0; i < counts[r]; ++i) {
        leaf_rank[shares.leaf(r, i)] = static_cast<int>(r);
        if (r != static_cast<uint64_t>(rank)) continue;
        const TreeSource source{{0, shares.leaf(r, i)}, leaf.data, dtype};
        mine.add({&source, 1});
      }
    RUN(c.all_reduce_partials(mine, shares.blocks(), static_cast<float*>(total.data)));
    for (size_t i = 0; i < count; ++i)
      if (total.get(i) != sum_over(0, leaf_rank, i)) return at("all_reduce_partials", i);
    return "";
  }

  /// Rank r sends to each other rank two parcels, whose sizes depend on both: some are empty.
  std::string exchange() {
    const auto elements = [&](int from, int to, size_t number) {
      return (from + to) % 3 == 0 && number == 0 ? 0 : (count + static_cast<size_t>(from)) / 2;
    };
    std::vector<Buffer*> out, in;
    std::vector<Parcel> sends, receives;
    for (int other = 0; other < size; ++other)
      for (size_t number = 0; other != rank && number < 2; ++number) {
        const size_t sent = elements(rank, other, number), got = elements(other, rank, number);
        out.push_back(&make(dtype, sent + 1));
        in.push_back(&make(dtype, got + 1));
        for (size_t i = 0; i < sent; ++i)
          out.back()->set(i, input(dtype, rank, i + number * 7 + static_cast<size_t>(other)));
        sends.push_back({other, out.back()->data, sent * bytes_of(dtype)});
        receives.push_back({other, in.back()->data, got * bytes_of(dtype)});
      }
    // The parcels of one rank keep their order; those of different ranks need not.
    std::ranges::stable_sort(receives, std::ranges::greater{}, &Parcel::rank);
    RUN(c.exchange(sends, receives));
    size_t next = 0;
    for (int other = 0; other < size; ++other)
      for (size_t number = 0; other != rank && number < 2; ++number, ++next)
        for (size_t i = 0; i < elements(other, rank, number); ++i)
          if (in[next]->get(i) != input(dtype, other, i + number * 7 + static_cast<size_t>(rank)))
            return at("exchange", i);
    return "";
  }

  std::string all_gather_bytes() {
    const uint64_t mine = static_cast<uint64_t>(rank) * 7 + 1;
    std::vector<uint64_t> all(ranks);
    RUN(c.all_gather_bytes(&mine, all.data(), sizeof(mine)));
    for (size_t r = 0; r < ranks; ++r)
      if (all[r] != r * 7 + 1) return at("all_gather_bytes", r);
    RUN(c.barrier());
    return "";
  }
};

#undef RUN

std::string every_operation(Collective& c, DType dtype, size_t count, bool arena) {
  using Checks = OperationChecks;
  OperationChecks checks{c, dtype, count, arena};
  for (const auto check :
       {&Checks::all_gather, &Checks::reduce_scatter, &Checks::all_reduce, &Checks::broadcast,
        &Checks::reduce_scatter_leaves, &Checks::all_reduce_partials, &Checks::exchange,
        &Checks::all_gather_bytes})
    if (const std::string error = (checks.*check)(); !error.empty()) return error;
  return "";
}

void check_every_operation(const std::string& name, const std::vector<int>& hosts, int from_size,
                           const std::vector<size_t>& counts,
                           const std::vector<std::string>& trusted = {}) {
  RankPlanes ranks(name, hosts, 1 << 20, {}, trusted);
  uint64_t generation = 0;
  for (int size = from_size; size <= static_cast<int>(hosts.size()); ++size) {
    CAPTURE(size);
    ++generation;
    const std::string errors = on_ranks(size, [&](int rank) -> std::string {
      auto joined = ranks.join(rank, size, generation);
      if (!joined.ok()) return joined.status().message();
      for (const DType dtype : {DType::f32, DType::bf16})
        for (const size_t count : counts)
          for (const bool arena : {true, false}) {
            // The arena frees a buffer only with its communicator, so only some large cases fit.
            if (arena && count > 2000 && (dtype == DType::bf16 || size > 4)) continue;
            if (count > 2000 && (size == 4 || size == 6 || size == 7)) continue;  // to save time
            const std::string error = every_operation(**joined, dtype, count, arena);
            if (!error.empty())
              return error + " (" + to_string(dtype) + ", count " + std::to_string(count) +
                     (arena ? ", arena)" : ", heap)");
          }
      return "";
    });
    CHECK(errors == "");
  }
}

}  // namespace

TEST_SUITE("collective") {
  TEST_CASE(
      "collective: every operation equals the serial tree sum over shared memory, 1 to 8 ranks") {
    check_every_operation("shm", std::vector<int>(8, 0), 1, {0, 1, 2, 3, 1023, 1024, 100003});
  }

  TEST_CASE("collective: the same bits over encrypted TCP, with every rank on its own host") {
    check_every_operation("stream", {0, 1, 2, 3}, 2, {0, 1, 3, 1023, 100003});
  }

  TEST_CASE("collective: the same bits over UCX on a trusted network") {
    check_every_operation("ucx", {0, 1, 2, 3}, 2, {0, 1, 3, 1023, 100003},
                          {"lo", "lo", "lo", "lo"});
  }

  TEST_CASE(
      "collective: the same bits if some ranks use UCX, some the stream, some shared memory") {
    check_every_operation("trust", {0, 0, 1, 2}, 4, {0, 1, 3, 1023, 100003},
                          {"lo", "lo", "lo", ""});
  }

  TEST_CASE("collective: the same bits if some ranks share a host and others do not") {
    check_every_operation("mixed", {0, 0, 1, 1, 2}, 5, {0, 1, 3, 1024, 100003});
  }

  TEST_CASE("collective: the same bits over two levels, encrypted and over UCX") {
    check_every_operation("levels", {0, 0, 0, 0, 1, 1, 1, 1}, 8, {1, 100003});
    check_every_operation("arena", {0, 0, 1}, 3, {100003});
    check_every_operation("turns", {0, 1, 0, 1, 1}, 5, {3, 100003});
    check_every_operation("ucxlevels", {0, 0, 1, 1, 2, 2}, 5, {3, 100003},
                          std::vector<std::string>(6, "lo"));
  }

  TEST_CASE("collective: a source outside the arena may be larger than the staging buffer") {
    for (const bool one_host : {true, false}) {
      RankPlanes ranks(one_host ? "big" : "bigfar",
                       one_host ? std::vector{0, 0, 0} : std::vector{0, 0, 1});
      const size_t count = 1'500'001;
      const std::string errors = on_ranks(3, [&](int rank) -> std::string {
        auto joined = ranks.join(rank, 3, 1);
        if (!joined.ok()) return joined.status().message();
        // COLLECTIVE-2: the oldest operation always goes on, so ranks may wait in any order.
        std::vector<Buffer> data;
        std::vector<WorkPtr> works;
        for (int k = 0; k < 3; ++k) {
          data.emplace_back(DType::f32, count);
          for (size_t i = 0; i < count; ++i) data.back().set(i, input(DType::f32, rank + k, i));
        }
        for (auto& d : data) works.push_back((*joined)->all_reduce(d.data, count, DType::f32));
        // Wait for the last first: a wait advances all operations.
        for (size_t k = works.size(); k-- > 0;)
          if (const Status status = works[k]->wait(); !status.ok()) return status.message();
        for (int k = 0; k < 3; ++k)
          for (size_t i = 0; i < count; ++i) {
            const float sum =
                reference_sum(0, {input(DType::f32, k, i), input(DType::f32, k + 1, i),
                                  input(DType::f32, k + 2, i)});
            if (data[static_cast<size_t>(k)].get(i) != sum) return at("all_reduce", i);
          }
        return "";
      });
      CHECK(errors == "");
    }
  }

  TEST_CASE(
      "collective: COLLECTIVE-2, a hundred operations on two communicators end in any order of "
      "waiting") {
    for (const auto& hosts :
         {std::vector{0, 0, 0, 0}, std::vector{0, 1, 2, 3}, std::vector{0, 0, 1, 1}}) {
      RankPlanes ranks("many" + std::to_string(hosts[1] + hosts[2]), hosts);
      const std::string errors = on_ranks(4, [&](int rank) -> std::string {
        auto first = ranks.join(rank, 4, 5, "shard");
        auto second = ranks.join(rank, 4, 5, "replicate");
        if (!first.ok() || !second.ok())
          return first.status().message() + second.status().message();
        std::vector<std::vector<float>> data;
        std::vector<std::pair<size_t, WorkPtr>> works;
        for (size_t k = 0; k < 100; ++k)
          data.emplace_back(1 + k * 997, static_cast<float>(k + 1) * static_cast<float>(rank + 1));
        for (size_t k = 0; k < 100; ++k) {
          Collective& c = k % 3 == 0 ? **second : **first;
          works.emplace_back(k, c.all_reduce(data[k].data(), data[k].size(), DType::f32));
        }
        std::mt19937 random(static_cast<unsigned>(rank));
        std::shuffle(works.begin(), works.end(), random);
        for (auto& [k, work] : works) {
          if (const Status status = work->wait(); !status.ok()) return status.message();
          for (const float x : data[k])
            if (x != static_cast<float>(k + 1) * 10) return at("all_reduce", k);
        }
        return "";
      });
      CHECK(errors == "");
    }
  }

  TEST_CASE("collective: subsets of the ranks use their own communicators at the same time") {
    RankPlanes ranks("grid", {0, 0, 1, 1});
    // 2 groups x 2 trainers: shard = {0,1}, {2,3}; replicate = {0,2}, {1,3}.
    const std::string errors = on_ranks(4, [&](int rank) -> std::string {
      const int group = rank / 2, trainer = rank % 2;
      auto of = [&](std::vector<size_t> r) {
        std::vector<std::vector<uint8_t>> members;
        for (const size_t i : r) members.push_back(ranks.addresses[i]);
        return members;
      };
      const auto g = static_cast<size_t>(group), t = static_cast<size_t>(trainer);
      auto& plane = *ranks.planes[static_cast<size_t>(rank)];
      auto shard = plane.join({2, "shard", trainer, of({2 * g, 2 * g + 1}), 20'000});
      auto replicate = plane.join({2, "replicate", group, of({t, t + 2}), 20'000});
      if (!shard.ok() || !replicate.ok())
        return shard.status().message() + replicate.status().message();
      std::vector<float> a(50'000, static_cast<float>(1 << rank)), b = a;
      auto in_group = (*shard)->all_reduce(a.data(), a.size(), DType::f32);
      auto across = (*replicate)->all_reduce(b.data(), b.size(), DType::f32);
      // Odd ranks wait in the other order.
      Status one = (rank % 2 ? in_group : across)->wait();
      Status two = (rank % 2 ? across : in_group)->wait();
      if (!one.ok() || !two.ok()) return one.message() + two.message();
      if (a[777] != (group == 0 ? 3.0f : 12.0f)) return "shard sum is wrong";
      if (b[777] != (trainer == 0 ? 5.0f : 10.0f)) return "replicate sum is wrong";
      return "";
    });
    CHECK(errors == "");
  }

  TEST_CASE("collective: more ranks than a machine word has bits") {
    std::vector<int> hosts(70, 0);
    std::fill(hosts.begin() + 35, hosts.end(), 1);
    RankPlanes ranks("many", hosts);
    const std::string errors = on_ranks(70, [&](int rank) -> std::string {
      auto joined = ranks.join(rank, 70, 1);
      if (!joined.ok()) return joined.status().message();
      return every_operation(**joined, DType::f32, 301, false);
    });
    CHECK(errors == "");
  }

  TEST_CASE("collective: sixteen ranks") {
    RankPlanes ranks("sixteen", {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1});
    const std::string errors = on_ranks(16, [&](int rank) -> std::string {
      auto joined = ranks.join(rank, 16, 1);
      if (!joined.ok()) return joined.status().message();
      return every_operation(**joined, DType::f32, 5001, false);
    });
    CHECK(errors == "");
  }
}

}  // namespace simplescale::testing
