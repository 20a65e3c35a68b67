// Ranks for the tests of collectives, and the serial reference for their results. Each rank is a
// thread with its own data plane, as separate processes would have. A test creates the planes once
// and uses them for many generations.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "transport/collective/data_plane.hpp"

namespace simplescale::testing {

struct RankPlanes {
  std::vector<std::unique_ptr<DataPlane>> planes;
  std::vector<std::vector<uint8_t>> addresses;

  /// hosts[i]: the simulated host of rank i; ranks with equal numbers share memory. keys, trusted:
  /// of each rank; "lo" lets ranks with it use UCX.
  RankPlanes(const std::string& name, const std::vector<int>& hosts, size_t staging_bytes = 1 << 20,
             const std::vector<std::string>& keys = {},
             const std::vector<std::string>& trusted = {}) {
    for (size_t i = 0; i < hosts.size(); ++i) {
      DataPlaneOptions options;
      options.shm_prefix =
          "ss-test-" + std::to_string(getpid()) + "-" + name + "-" + std::to_string(i);
      options.node_prefix = options.shm_prefix;  // each rank is its own node
      options.arena_bytes = 24 << 20;
      options.staging_bytes = staging_bytes;
      options.communicators = 2;
      options.ranks_max = std::max(options.ranks_max, static_cast<int>(hosts.size()));
      options.host_id = this_host_id() + "#" + std::to_string(hosts[i]);
      options.spin_us = 0;
      options.key = keys.empty() ? std::string(32, 'k') : keys[i];
      if (!trusted.empty()) options.trusted_networks = trusted[i];
      auto plane = DataPlane::create(options);
      if (!plane.ok()) throw std::runtime_error(plane.status().message());
      addresses.push_back((*plane)->address());
      planes.push_back(plane.take());
    }
  }

  Result<std::unique_ptr<Collective>> join(int rank, int size, uint64_t generation,
                                           const std::string& name = "world",
                                           int timeout_ms = 20'000) {
    return planes[static_cast<size_t>(rank)]->join(
        {generation, name, rank, {addresses.begin(), addresses.begin() + size}, timeout_ms});
  }
};

/// Runs body(rank) on a thread per rank. Returns all errors in one text; empty if there is none.
inline std::string on_ranks(int size, const std::function<std::string(int)>& body) {
  std::mutex lock;
  std::string errors;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      const std::string error = body(rank);
      std::lock_guard guard(lock);
      if (!error.empty()) errors += "rank " + std::to_string(rank) + ": " + error + "; ";
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

/// Values of many magnitudes, so that summing in another order gives other bits.
inline float value_of(uint64_t seed, uint64_t index) {
  uint64_t x = (seed * 0x9e3779b97f4a7c15u) ^ (index + 0x632be59bd9b4e019u);
  x ^= x >> 32, x *= 0xd6e8feb86659fd93u, x ^= x >> 32;
  const float mantissa = static_cast<float>(static_cast<int32_t>(x & 0xffffff) - 0x800000);
  return std::ldexp(mantissa, static_cast<int>((x >> 24) % 20) - 30);
}

/// The tree sum of one element over leaves [first, first + leaves.size()): merges siblings as early
/// as possible, and at the end the remaining nodes from the right.
inline float reference_sum(uint64_t first, const std::vector<float>& leaves) {
  struct Node {
    uint64_t first, size;
    float sum;
  };
  static thread_local std::vector<Node> stack;
  stack.clear();
  for (size_t i = 0; i < leaves.size(); ++i) {
    stack.push_back({first + i, 1, leaves[i]});
    while (stack.size() > 1) {
      Node &left = stack[stack.size() - 2], &right = stack.back();
      if (left.size != right.size || left.first % (2 * left.size) != 0) break;
      left = {left.first, 2 * left.size, left.sum + right.sum};
      stack.pop_back();
    }
  }
  while (stack.size() > 1) {
    const float right = stack.back().sum;
    stack.pop_back();
    stack.back().sum += right;
  }
  return stack.empty() ? 0.0f : stack.back().sum;
}

/// A buffer of either element type.
struct Buffer {
  DType dtype;
  size_t count;
  std::vector<std::byte> own;
  void* data = nullptr;

  Buffer(DType type, size_t elements)
      : dtype(type), count(elements), own(elements * bytes_of(type) + 1) {
    data = own.data();
  }
  /// In the arena, where peers on this host read it.
  Buffer(Collective& collective, DType type, size_t elements) : dtype(type), count(elements) {
    auto memory = collective.allocate(bytes());
    if (!memory.ok()) throw std::runtime_error(memory.status().message());
    data = *memory;
  }
  size_t bytes() const { return count * bytes_of(dtype); }
  void set(size_t i, float value) {
    if (dtype == DType::f32)
      static_cast<float*>(data)[i] = value;
    else
      static_cast<uint16_t*>(data)[i] = f32_to_bf16(value);
  }
  float get(size_t i) const {
    return dtype == DType::f32 ? static_cast<const float*>(data)[i]
                               : bf16_to_f32(static_cast<const uint16_t*>(data)[i]);
  }
  bool operator==(const Buffer& other) const {
    return bytes() == other.bytes() && std::memcmp(data, other.data, bytes()) == 0;
  }
};

/// The input of rank `rank` at `index`, rounded to the type.
inline float input(DType dtype, int rank, size_t index) {
  const float value = value_of(static_cast<uint64_t>(rank) + 1, index);
  return dtype == DType::f32 ? value : bf16_to_f32(f32_to_bf16(value));
}

inline float rounded(DType dtype, float value) {
  return dtype == DType::f32 ? value : bf16_to_f32(f32_to_bf16(value));
}

}  // namespace simplescale::testing
