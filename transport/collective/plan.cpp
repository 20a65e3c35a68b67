#include "transport/collective/plan.hpp"

#include <algorithm>
#include <iterator>

#include "runtime/base/status.hpp"

namespace simplescale::collective {

namespace {

// Phases of an operation. Summands and the parts of a gather have phases from 0. A link sends the
// streams of an operation in the order of phases.
constexpr uint32_t kToHostSum = 1 << 20;  // node * kRanksMax + the rank that needs the sum
constexpr uint32_t kHostSum = 2 << 20;    // + number of the sum among those of its host
constexpr uint32_t kResult = 3 << 20;     // slices that have been summed
constexpr uint32_t kPassedOn = 4 << 20;   // + the rank from which it is
constexpr uint32_t kPresent = 5 << 20;

const std::byte* bytes_at(const void* data, size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
std::byte* bytes_at(void* data, size_t offset) {
  return static_cast<std::byte*>(data) + offset;
}

/// A part of a buffer, in elements.
struct Slice {
  size_t begin, count;
};
/// The part of `count` elements that a rank sums: equal slices of whole cache lines.
Slice slice_of(int rank, int size, size_t count) {
  const size_t ranks = static_cast<size_t>(size);
  const size_t length = ((count + ranks - 1) / ranks + 31) / 32 * 32;
  const size_t begin = std::min(count, static_cast<size_t>(rank) * length);
  return {begin, std::min(length, count - begin)};
}

/// Parts of equal length, one after the other.
auto equal_parts(size_t count) {
  return [count](int rank) { return Slice{static_cast<size_t>(rank) * count, count}; };
}

/// True if sending `saved` bytes less, over all hosts, is worth a second hop.
bool is_worth_a_hop(const Hosts& hosts, size_t saved) {
  return saved >= static_cast<size_t>(hosts.count()) * kSmallBytes;
}

/// Two levels only: a byte for each rank on another host, so that a rank knows which ranks take
/// part, also of those whose data its neighbours or its partners pass on.
void announce_presence(Plan& plan, int rank, const Hosts& hosts) {
  static constexpr std::byte kByte{1};
  if (!plan.scratch.empty()) return;
  plan.scratch.resize(static_cast<size_t>(hosts.size()));
  plan.sends.push_back({kPresent, kAway, &kByte, 1});
  for (int from = 0; from < hosts.size(); ++from)
    if (!hosts.together(from, rank))
      plan.copies.push_back({kPresent, from, &plan.scratch[static_cast<size_t>(from)], 1});
}

// --- Copies ---

/// Copies the part of every rank to all others: `own` (this rank's), in `phase`, into `whole`.
/// after: when `own` is there. part_of(rank): bytes.
template <class PartOf>
void gather(Plan& plan, int rank, const Hosts& hosts, uint32_t phase, const std::byte* own,
            After after, std::byte* whole, PartOf part_of) {
  const int size = hosts.size(), here = hosts.host_of(rank);
  size_t saved = 0;
  for (int from = 0; from < size; ++from) {
    const size_t away = static_cast<size_t>(size) - hosts.ranks_of(hosts.host_of(from)).size();
    saved += part_of(from).count * (away - static_cast<size_t>(hosts.count() - 1));
  }
  const bool two_levels = is_worth_a_hop(hosts, saved);
  const size_t bytes = part_of(rank).count;
  plan.sends.push_back({phase, two_levels ? kNeighbours : kOthers, own, bytes, after});
  if (two_levels) {
    announce_presence(plan, rank, hosts);
    for (int i = 1; i < hosts.count(); ++i)
      plan.sends.push_back(
          {phase, hosts.partner(rank, (here + i) % hosts.count()), own, bytes, after});
  }
  for (int i = 1; i < size; ++i) {
    const int from = (rank + i) % size;
    const Slice theirs = part_of(from);
    std::byte* to = whole + theirs.begin;
    const int through =
        two_levels && !hosts.together(from, rank) ? hosts.partner(from, here) : rank;
    if (through != rank) {
      plan.copies.push_back({kPassedOn + static_cast<uint32_t>(from), through, to, theirs.count});
      continue;
    }
    plan.copies.push_back({phase, from, to, theirs.count});
    if (two_levels && !hosts.together(from, rank))
      plan.sends.push_back({kPassedOn + static_cast<uint32_t>(from), kNeighbours, to, theirs.count,
                            After::copy, plan.copies.size() - 1});
  }
}

// --- Sums ---

/// Node number `index` of those that `rank` contributes.
struct Source {
  int rank;
  uint32_t index;
  TreeNode node;
};

std::vector<Source> leaf_of_each_rank(int size) {
  std::vector<Source> sources;
  for (int rank = 0; rank < size; ++rank)
    sources.push_back({rank, 0, {0, static_cast<uint64_t>(rank)}});
  return sources;
}

void sort_by_leaf(auto& nodes) {
  std::ranges::stable_sort(nodes, {}, [](const auto& each) { return each.node.first(); });
}

/// What crosses from a host to others: one source, or a node of several that the host adds.
struct Crossing {
  int host;
  TreeNode node;
  std::vector<Source> sources;
};

/// Merges siblings of one host as long as there are. sources: in leaf order.
std::vector<Crossing> merged_on_hosts(const Hosts& hosts, std::span<const Source> sources) {
  std::vector<std::vector<Crossing>> of_host(static_cast<size_t>(hosts.count()));
  for (const Source& source : sources) {
    const int host = hosts.host_of(source.rank);
    auto& stack = of_host[static_cast<size_t>(host)];
    stack.push_back({host, source.node, {source}});
    while (stack.size() > 1) {
      Crossing &left = stack[stack.size() - 2], &right = stack.back();
      if (left.node.level != right.node.level || left.node.index % 2 != 0 ||
          right.node.index != left.node.index + 1)
        break;
      left.node = {left.node.level + 1, left.node.index / 2};
      std::ranges::move(right.sources, std::back_inserter(left.sources));
      stack.pop_back();
    }
  }
  std::vector<Crossing> all;
  for (auto& stack : of_host) std::ranges::move(stack, std::back_inserter(all));
  return all;
}

/// What crosses between hosts. part_of(rank): the elements that a rank sums.
template <class PartOf>
std::vector<Crossing> crossings(const Hosts& hosts, std::span<const Source> sources, DType dtype,
                                PartOf part_of) {
  std::vector<Crossing> result;
  size_t whole = 0, saved = 0;
  for (int rank = 0; rank < hosts.size(); ++rank) whole += part_of(rank).count;
  for (Crossing& node : merged_on_hosts(hosts, sources)) {
    const size_t bytes = node.sources.size() * bytes_of(dtype);
    if (node.sources.size() == 1 || bytes <= sizeof(float)) {
      for (const Source& source : node.sources)
        result.push_back({node.host, source.node, {source}});
      continue;
    }
    size_t away = whole;
    for (const int near : hosts.ranks_of(node.host)) away -= part_of(near).count;
    saved += (bytes - sizeof(float)) * away;
    result.push_back(std::move(node));
  }
  if (is_worth_a_hop(hosts, saved)) return result;
  result.clear();
  for (const Source& source : sources)
    result.push_back({hosts.host_of(source.rank), source.node, {source}});
  return result;
}

/// Adds the part of each rank on that rank. sources: in leaf order. own(index): where this rank's
/// source begins. The caller says where the sum goes.
template <class Own, class PartOf>
void add_up(Plan& plan, int rank, const Hosts& hosts, std::span<const Source> sources, DType dtype,
            Own own, PartOf part_of) {
  const size_t element = bytes_of(dtype);
  const int here = hosts.host_of(rank);
  const std::vector<Crossing> all = crossings(hosts, sources, dtype, part_of);
  std::vector<size_t> ours;  // of `all`
  for (size_t number = 0; number < all.size(); ++number)
    if (all[number].host == here) ours.push_back(number);
  const auto part = [&](const Source& source, int of) -> const std::byte* {
    return own(source.index) + part_of(of).begin * element;
  };

  // What is needed on other hosts comes first.
  for (int i = 1; i < hosts.size(); ++i) {
    const int to = (rank + i) % hosts.size();
    if (hosts.together(to, rank)) continue;
    const size_t count = part_of(to).count;
    for (const size_t number : ours) {
      const Crossing& node = all[number];
      if (node.sources.size() == 1) {
        const Source& source = node.sources[0];
        if (source.rank == rank)
          plan.sends.push_back({source.index, to, part(source, to), count * element});
        continue;
      }
      const int adds = hosts.partner(to, here);
      Sum sum{.count = count};
      for (const Source& source : node.sources) {
        const auto phase = static_cast<uint32_t>(kToHostSum + source.index * kRanksMax + to);
        const std::byte* data = source.rank == rank ? part(source, to) : nullptr;
        if (adds == rank)
          sum.summands.push_back({source.node, phase, source.rank, data, dtype});
        else if (data)
          plan.sends.push_back({phase, adds, data, count * element});
      }
      if (adds != rank) continue;
      plan.sends.push_back({static_cast<uint32_t>(kHostSum + number), to, nullptr,
                            count * sizeof(float), After::host_sum, plan.host_sums.size()});
      plan.host_sums.push_back(std::move(sum));
    }
  }
  for (int i = 1; i < hosts.size(); ++i) {
    const int to = (rank + i) % hosts.size();
    if (!hosts.together(to, rank)) continue;
    for (const size_t number : ours)
      for (const Source& source : all[number].sources)
        if (source.rank == rank)
          plan.sends.push_back({source.index, to, part(source, to), part_of(to).count * element});
  }

  plan.sum.count = part_of(rank).count;
  plan.sum.dtype = dtype;
  for (size_t number = 0; number < all.size(); ++number) {
    const Crossing& node = all[number];
    if (node.sources.size() > 1) announce_presence(plan, rank, hosts);
    if (node.sources.size() > 1 && node.host != here) {
      plan.sum.summands.push_back({node.node, static_cast<uint32_t>(kHostSum + number),
                                   hosts.partner(rank, node.host), nullptr, DType::f32});
      continue;
    }
    for (const Source& source : node.sources)
      plan.sum.summands.push_back({source.node, source.index, source.rank,
                                   source.rank == rank ? part(source, rank) : nullptr, dtype});
  }
  sort_by_leaf(plan.sum.summands);
}

/// Sends all of each source to all ranks, which add the same.
template <class Own>
void add_everywhere(Plan& plan, int rank, std::span<const Source> sources, size_t count,
                    DType dtype, Own own) {
  plan.sum.count = count;
  plan.sum.dtype = dtype;
  for (const Source& source : sources) {
    const std::byte* data = source.rank == rank ? own(source.index) : nullptr;
    if (data) plan.sends.push_back({source.index, kOthers, data, count * bytes_of(dtype)});
    plan.sum.summands.push_back({source.node, source.index, source.rank, data, dtype});
  }
}

/// Sums slices of `count` elements, then gathers the results in `whole`.
template <class Own>
void add_slices(Plan& plan, int rank, const Hosts& hosts, std::span<const Source> sources,
                size_t count, DType dtype, Own own, std::byte* whole) {
  const size_t element = bytes_of(dtype);
  const auto slice = [&](int of) { return slice_of(of, hosts.size(), count); };
  const auto bytes = [&](int of) {
    return Slice{slice(of).begin * element, slice(of).count * element};
  };
  add_up(plan, rank, hosts, sources, dtype, own, slice);
  plan.sum.total = whole + bytes(rank).begin;
  gather(plan, rank, hosts, kResult, plan.sum.total, After::sum, whole, bytes);
}

}  // namespace

Plan plan_all_gather(int rank, const Hosts& hosts, const void* mine, void* all, size_t bytes) {
  Plan plan;
  plan.name = "all_gather";
  gather(plan, rank, hosts, 0, bytes_at(mine, 0), After::start, bytes_at(all, 0),
         equal_parts(bytes));
  plan.local_from = bytes_at(mine, 0);
  plan.local_to = bytes_at(all, static_cast<size_t>(rank) * bytes);
  plan.local_bytes = bytes;
  return plan;
}

Plan plan_broadcast(int rank, const Hosts& hosts, void* data, size_t bytes, int root) {
  Plan plan;
  plan.name = "broadcast";
  // A gather to which only the root contributes.
  gather(plan, rank, hosts, 0, bytes_at(data, 0), After::start, bytes_at(data, 0), [&](int of) {
    return Slice{0, of == root ? bytes : 0};
  });
  return plan;
}

Plan plan_barrier(int rank, int size) {
  std::vector<std::byte> scratch(static_cast<size_t>(size) + 1);
  Plan plan = plan_all_gather(rank, size, scratch.data() + size, scratch.data(), 1);
  plan.name = "barrier";
  plan.scratch = std::move(scratch);
  return plan;
}

Plan plan_exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) {
  Plan plan;
  plan.name = "exchange";
  const auto number = [](std::span<const Parcel> all, size_t of) {  // among those of its rank
    return static_cast<uint32_t>(std::ranges::count(all.first(of), all[of].rank, &Parcel::rank));
  };
  for (size_t i = 0; i < sends.size(); ++i)
    plan.sends.push_back(
        {number(sends, i), sends[i].rank, bytes_at(sends[i].data, 0), sends[i].bytes});
  for (size_t i = 0; i < receives.size(); ++i)
    plan.copies.push_back(
        {number(receives, i), receives[i].rank, bytes_at(receives[i].data, 0), receives[i].bytes});
  return plan;
}

Plan plan_reduce_scatter(int rank, const Hosts& hosts, const void* full, void* shard, size_t count,
                         DType dtype) {
  Plan plan;
  plan.name = "reduce_scatter";
  add_up(
      plan, rank, hosts, leaf_of_each_rank(hosts.size()), dtype,
      [&](uint32_t) { return bytes_at(full, 0); }, equal_parts(count));
  plan.sum.total = bytes_at(shard, 0);
  return plan;
}

Plan plan_reduce_scatter_leaves(int rank, const Hosts& hosts, const void* full, size_t count,
                                DType dtype, std::span<const TreeNode> leaf_of_rank,
                                PartialSum& slice) {
  SS_ASSERT(!leaf_of_rank.empty() && std::ssize(leaf_of_rank) <= hosts.size());
  SS_ASSERT(slice.count() == count);
  std::vector<Source> sources;
  for (int from = 0; from < std::ssize(leaf_of_rank); ++from)
    sources.push_back({from, 0, leaf_of_rank[static_cast<size_t>(from)]});
  sort_by_leaf(sources);
  Plan plan;
  plan.name = "reduce_scatter_leaves";
  add_up(
      plan, rank, hosts, sources, dtype, [&](uint32_t) { return bytes_at(full, 0); },
      equal_parts(count));
  plan.sum.partial = &slice;
  return plan;
}

Plan plan_all_reduce(int rank, const Hosts& hosts, void* data, size_t count, DType dtype) {
  const std::vector<Source> sources = leaf_of_each_rank(hosts.size());
  const auto own = [&](uint32_t) -> const std::byte* { return bytes_at(data, 0); };
  Plan plan;
  plan.name = "all_reduce";
  if (count * bytes_of(dtype) <= kSmallBytes) {
    add_everywhere(plan, rank, sources, count, dtype, own);
    plan.sum.total = bytes_at(data, 0);
  } else {
    // In place: this rank receives the result of a slice only after the slice's owner has added
    // what this rank or its neighbour has sent of it.
    add_slices(plan, rank, hosts, sources, count, dtype, own, bytes_at(data, 0));
  }
  return plan;
}

Plan plan_all_reduce_partials(int rank, const Hosts& hosts, const PartialSum& mine,
                              std::span<const std::vector<TreeNode>> nodes_of_rank, float* total) {
  SS_ASSERT(std::ssize(nodes_of_rank) == hosts.size());
  SS_ASSERT(std::ranges::equal(nodes_of_rank[static_cast<size_t>(rank)], mine.nodes()));
  std::vector<Source> sources;
  for (int from = 0; from < hosts.size(); ++from)
    for (const TreeNode& node : nodes_of_rank[static_cast<size_t>(from)]) {
      const bool next = !sources.empty() && sources.back().rank == from;
      sources.push_back({from, next ? sources.back().index + 1 : 0, node});
    }
  SS_ASSERT(!sources.empty());
  sort_by_leaf(sources);
  const size_t count = mine.count();
  const auto own = [&](uint32_t index) { return bytes_at(mine.data(index), 0); };
  std::byte* whole = bytes_at(static_cast<void*>(total), 0);
  Plan plan;
  plan.name = "all_reduce_partials";
  if (sources.size() * count * sizeof(float) <= 2 * kSmallBytes) {
    add_everywhere(plan, rank, sources, count, DType::f32, own);
    plan.sum.total = whole;
  } else {
    add_slices(plan, rank, hosts, sources, count, DType::f32, own, whole);
  }
  return plan;
}

}  // namespace simplescale::collective
