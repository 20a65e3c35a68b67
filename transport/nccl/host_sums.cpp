#include "transport/nccl/host_sums.hpp"

#include <algorithm>
#include <bit>

#include "runtime/base/status.hpp"

namespace simplescale::nccl {
int ranks_per_host(std::span<const uint64_t> hosts) {
  const auto first = std::ranges::find_if(hosts, [&](uint64_t host) { return host != hosts[0]; });
  const auto each = static_cast<size_t>(first - hosts.begin());
  if (!std::has_single_bit(each) || each == hosts.size() || hosts.size() % each != 0) return 1;
  std::vector<uint64_t> seen;
  for (size_t begin = 0; begin < hosts.size(); begin += each) {
    const auto of_host = hosts.subspan(begin, each);
    if (std::ranges::count(of_host, of_host[0]) != std::ssize(of_host)) return 1;
    if (std::ranges::count(seen, of_host[0]) > 0) return 1;
    seen.push_back(of_host[0]);
  }
  return static_cast<int>(each);
}

bool leaves_fit(std::span<const TreeNode> leaf_of_rank, int size, int per_host) {
  if (leaf_of_rank.size() != static_cast<size_t>(size)) return false;
  if (leaf_of_rank[0].index % static_cast<uint64_t>(per_host) != 0) return false;
  for (size_t rank = 0; rank < leaf_of_rank.size(); ++rank)
    if (leaf_of_rank[rank] != TreeNode{leaf_of_rank[0].level, leaf_of_rank[0].index + rank})
      return false;
  return true;
}

size_t host_sums_bytes(int size, int per_host, size_t count, DType dtype) {
  const auto hosts = static_cast<size_t>(size / per_host);
  return hosts * (static_cast<size_t>(per_host - 1) * padded(count * bytes_of(dtype)) +
                  2 * padded(count * sizeof(float)));
}

HostSums plan_host_sums(int rank, int size, int per_host, const void* full, size_t count,
                        DType dtype, std::span<const TreeNode> leaf_of_rank, std::byte* scratch) {
  SS_ASSERT(leaves_fit(leaf_of_rank, size, per_host));
  const size_t bytes = count * bytes_of(dtype), wide = count * sizeof(float);
  const int hosts = size / per_host, own = rank / per_host, local = rank % per_host;
  const auto take = [&](size_t length) {
    std::byte* const taken = scratch;
    scratch += padded(length);
    return taken;
  };
  const auto part_of = [&](int host, int neighbour) {
    return static_cast<const std::byte*>(full) +
           static_cast<size_t>(host * per_host + neighbour) * bytes;
  };
  HostSums plan;
  plan.sums.resize(static_cast<size_t>(hosts));
  for (int neighbour = 0; neighbour < per_host; ++neighbour)
    for (int host = 0; host < hosts; ++host) {
      const int peer = own * per_host + neighbour;
      const void* summand = part_of(host, local);
      if (neighbour != local) {
        std::byte* const received = take(bytes);
        plan.near.push_back({peer, part_of(host, neighbour), nullptr, bytes});
        plan.near.push_back({peer, nullptr, received, bytes});
        summand = received;
      }
      plan.sums[static_cast<size_t>(host)].push_back(
          {leaf_of_rank[static_cast<size_t>(peer)], summand, dtype});
    }
  const auto levels = static_cast<uint32_t>(std::countr_zero(static_cast<unsigned>(per_host)));
  for (int host = 0; host < hosts; ++host) {
    const int peer = host * per_host + local;
    const auto [level, first] = leaf_of_rank[static_cast<size_t>(host * per_host)];
    const void* summand = plan.results.emplace_back(reinterpret_cast<float*>(take(wide)));
    if (host != own) {
      std::byte* const received = take(wide);
      plan.far.push_back({peer, summand, nullptr, wide});
      plan.far.push_back({peer, nullptr, received, wide});
      summand = received;
    }
    plan.summands.push_back({{level + levels, first >> levels}, summand, DType::f32});
  }
  return plan;
}

}  // namespace simplescale::nccl
