// XXH3's 128-bit hash of blocks of a shard's state. It equals runtime/base/hash.hpp on the CPU, so
// that hashes of device and host copies can be compared. The algorithm for long inputs: eight
// 64-bit accumulators consume 64 bytes at a time (a stripe), and are scrambled after every 1024
// bytes:
//   https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
#include "model/cuda/device.cuh"

namespace simplescale::cuda {
namespace {

constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime64_1 = 0x9E3779B185EBCA87,
                   kPrime64_2 = 0xC2B2AE3D27D4EB4F;
constexpr int kStripes = 16;  // per 1024 bytes
constexpr int kQuad = 4;      // threads per hashed block; each has two accumulators

__constant__ const uint64_t kBegin[] = {0xC2B2AE3D,         kPrime64_1,         kPrime64_2,
                                        0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x85EBCA77,
                                        0x27D4EB2F165667C5, kPrime32_1};
/// XXH3's default secret, as little-endian words.
__constant__ const uint64_t kSecret[] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

/// The eight bytes of the secret that begin at `byte`.
__device__ uint64_t secret_at(int64_t byte) {
  const int shift = static_cast<int>(byte % 8) * 8;
  const uint64_t low = kSecret[byte / 8] >> shift;
  return shift == 0 ? low : low | kSecret[byte / 8 + 1] << (64 - shift);
}

/// Accumulators 2t and 2t + 1, owned by thread t of a quad.
struct Pair {
  uint64_t first, second;

  /// Consumes 16 bytes of a stripe. Each accumulator also adds its neighbour's data.
  __device__ void add(uint4 v, uint64_t key_first, uint64_t key_second) {
    const uint64_t a = v.x | static_cast<uint64_t>(v.y) << 32, b = v.z | static_cast<uint64_t>(v.w)
                                                                             << 32;
    const uint64_t x = a ^ key_first, y = b ^ key_second;
    first += b + (x & 0xffffffffu) * (x >> 32);
    second += a + (y & 0xffffffffu) * (y >> 32);
  }
  __device__ void scramble(uint64_t key_first, uint64_t key_second) {
    first = (first ^ first >> 47 ^ key_first) * kPrime32_1;
    second = (second ^ second >> 47 ^ key_second) * kPrime32_1;
  }
  /// The hash over the quad's eight accumulators. secret: the byte of kSecret for thread 0.
  __device__ uint64_t merged(int64_t thread, int64_t secret, uint64_t start) const {
    const uint64_t x = first ^ secret_at(secret + 16 * thread),
                   y = second ^ secret_at(secret + 16 * thread + 8);
    uint64_t sum = x * y ^ __umul64hi(x, y);
    for (int mask = 1; mask < kQuad; mask *= 2)
      sum += __shfl_xor_sync(0xffffffffu, static_cast<unsigned long long>(sum), mask);
    uint64_t hash = start + sum;
    hash = (hash ^ hash >> 37) * 0x165667919E3779F9;
    return hash ^ hash >> 32;
  }
};

/// Four threads per hashed block; each reads 16 bytes of each stripe.
__global__ void hash_blocks_kernel(int64_t blocks, int64_t count, const float* values,
                                   uint64_t* hashes) {
  const int64_t mine = item_of_thread() / kQuad, thread = item_of_thread() % kQuad;
  const int64_t block = mine < blocks ? mine : blocks - 1;  // all threads of a warp must shuffle
  const int64_t left = count - block * kHashBlock;
  const int64_t length = left < kHashBlock ? left : kHashBlock;
  const uint4* at = reinterpret_cast<const uint4*>(values + block * kHashBlock) + thread;
  uint64_t key[kStripes + 2];
#pragma unroll
  for (int i = 0; i < kStripes + 2; ++i) key[i] = kSecret[2 * thread + i];
  const uint64_t last_first = secret_at(121 + 16 * thread),
                 last_second = secret_at(129 + 16 * thread);
  Pair acc{kBegin[2 * thread], kBegin[2 * thread + 1]};
  for (int64_t i = length / 256; i > 0; --i, at += kStripes * kQuad) {
    uint4 v[kStripes];
#pragma unroll
    for (int s = 0; s < kStripes; ++s) v[s] = at[s * kQuad];
#pragma unroll
    for (int s = 0; s < kStripes - 1; ++s) acc.add(v[s], key[s], key[s + 1]);
    if (i > 1) {
      acc.add(v[kStripes - 1], key[kStripes - 1], key[kStripes]);
      acc.scramble(key[kStripes], key[kStripes + 1]);
    } else {
      acc.add(v[kStripes - 1], last_first, last_second);
    }
  }
  const uint64_t bytes = static_cast<uint64_t>(length) * sizeof(float);
  const uint64_t low = acc.merged(thread, 11, bytes * kPrime64_1),
                 high = acc.merged(thread, 117, ~(bytes * kPrime64_2));
  if (mine >= blocks || thread != 0) return;
  hashes[2 * block] = high;
  hashes[2 * block + 1] = low;
}

}  // namespace

cudaError_t hash_blocks(cudaStream_t stream, int64_t count, const float* values, uint64_t* hashes) {
  if (count == 0) return cudaSuccess;
  constexpr int64_t threads = 128;  // few, so that even small shards use every multiprocessor
  const int64_t blocks = (count + kHashBlock - 1) / kHashBlock;
  return gpu_launch({stream, blocks_for(blocks * kQuad, threads), threads}, hash_blocks_kernel,
                    blocks, count, values, hashes);
}

}  // namespace simplescale::cuda
