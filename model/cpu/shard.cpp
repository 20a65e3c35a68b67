#include "model/cpu/shard.hpp"

#include <algorithm>
#include <cstring>

#include "model/cpu/kernels.hpp"
#include "model/llama_backend.hpp"
#include "runtime/training/state_hash.hpp"

namespace simplescale::cpu {
namespace {

constexpr size_t kElements = size_t{1} << 16;  // that a thread works on at a time

void cast_piece(DType precision, const float* from, void* to, size_t at, size_t count) {
  if (precision == DType::f32)
    std::memcpy(static_cast<float*>(to) + at, from + at, count * sizeof(float));
  else
    shard_kernels().to_bf16(static_cast<int64_t>(count), from + at, static_cast<Bf16*>(to) + at);
}

/// What adamw() reads and writes.
struct AdamWArrays {
  const float *gradient, *from_params;
  const void *from_avg, *from_avg_sq;
  float* to_params;
  void *to_avg, *to_avg_sq;
  void* rounded;
};

void sign_piece(const AdamW& o, const ParameterRun& run, size_t at, size_t n,
                const AdamWArrays& a) {
  for (size_t i = at; i < at + n; ++i) {
    const float g = a.gradient[i];
    a.to_params[i] = a.from_params[i] + (g > 0 ? run.sign_step : g < 0 ? -run.sign_step : 0);
  }
  const size_t size = bytes_of(o.moments.dtype);
  for (void* moments : {a.to_avg, a.to_avg_sq})
    std::memset(static_cast<char*>(moments) + at * size, 0, n * size);
}

/// The elements [at, at + n) of the shard, which are in `run`.
void adamw_piece(DType precision, const AdamW& o, const ParameterRun& run, size_t at, size_t n,
                 const AdamWArrays& a) {
  const auto constants = adamw_constants<ShardKernels::AdamWConstants>(o, run);
  const auto count = static_cast<int64_t>(n);
  if (run.sign_step > 0)
    sign_piece(o, run, at, n, a);
  else if (o.moments.dtype == DType::f32)
    shard_kernels().adamw(count, constants, a.gradient + at, a.from_params + at,
                          static_cast<const float*>(a.from_avg) + at,
                          static_cast<const float*>(a.from_avg_sq) + at, a.to_params + at,
                          static_cast<float*>(a.to_avg) + at,
                          static_cast<float*>(a.to_avg_sq) + at);
  else
    shard_kernels().adamw_bf16(
        count, constants, {o.moments.key, run.element + (at - run.first)}, a.gradient + at,
        a.from_params + at, static_cast<const Bf16*>(a.from_avg) + at,
        static_cast<const Bf16*>(a.from_avg_sq) + at, a.to_params + at,
        static_cast<Bf16*>(a.to_avg) + at, static_cast<Bf16*>(a.to_avg_sq) + at);
  if (a.rounded) cast_piece(precision, a.to_params, a.rounded, at, n);
}

/// Floats of `elements` elements of a part.
size_t floats(const StateFormat& format, StateKind kind, size_t elements) {
  return elements * bytes_of(format.dtype(kind)) / sizeof(float);
}

}  // namespace

void cast(const Parallel& threads, DType precision, const float* from, void* to, size_t count) {
  for_pieces(threads, count, kElements,
             [&](size_t at, size_t n) { cast_piece(precision, from, to, at, n); });
}

void adamw(const Parallel& threads, DType precision, const AdamW& options,
           std::span<const ParameterRun> runs, const float* gradient, const float* from_params,
           const void* from_avg, const void* from_avg_sq, float* to_params, void* to_avg,
           void* to_avg_sq, void* rounded) {
  const AdamWArrays arrays{gradient,  from_params, from_avg,  from_avg_sq,
                           to_params, to_avg,      to_avg_sq, rounded};
  for (const ParameterRun& run : runs)
    for_pieces(threads, run.count, kElements, [&](size_t at, size_t n) {
      adamw_piece(precision, options, run, run.first + at, n, arrays);
    });
}

void average(const Parallel& threads, float weight, size_t count, const float* params,
             const float* from, float* to) {
  for_pieces(threads, count, kElements, [&](size_t at, size_t n) {
    shard_kernels().average(static_cast<int64_t>(n), weight, params + at, from + at, to + at);
  });
}

HostUpdate::HostUpdate(const ShardUpdate& update, Parallel threads)
    : update_(update),
      threads_(std::move(threads)),
      total_(update.from.params.size()),
      tile_(kStateHashBlock * sizeof(float) / bytes_of(update.options.moments.dtype)) {
  for (Hashes* hashes : {&from_hashes_, &to_hashes_})
    for (const std::span<float> part : update_.from.parts())
      hashes->emplace_back((part.size() + kStateHashBlock - 1) / kStateHashBlock);
}

size_t HostUpdate::up_to(size_t end) {
  if (end <= done_) return done_;
  const size_t tiles = (end - done_ + tile_ - 1) / tile_;
  const size_t begin = std::exchange(done_, std::min(total_, done_ + tiles * tile_));
  for_pieces(threads_, done_ - begin, tile_,
             [&](size_t at, size_t n) { update_tile(begin + at, begin + at + n); });
  return done_;
}

void HostUpdate::update_tile(size_t first, size_t end) {
  const ShardUpdate& u = update_;
  const AdamWArrays arrays{
      u.gradient,         u.from.params.data(), u.from.exp_avg.data(),  u.from.exp_avg_sq.data(),
      u.to.params.data(), u.to.exp_avg.data(),  u.to.exp_avg_sq.data(), u.rounded};
  auto run = std::ranges::upper_bound(u.runs, first, {}, &ParameterRun::first) - 1;
  for (; run != u.runs.end() && run->first < end; ++run) {
    const size_t from = std::max(first, run->first), to = std::min(end, run->first + run->count);
    if (from < to) adamw_piece(u.precision, u.options, *run, from, to - from, arrays);
  }
  if (!u.to.ema.empty())
    shard_kernels().average(static_cast<int64_t>(end - first), u.average_weight,
                            u.to.params.data() + first, u.from.ema.data() + first,
                            u.to.ema.data() + first);
  hash_tile(first, end, u.from, from_hashes_);
  hash_tile(first, end, u.to, to_hashes_);
}

/// While the tile is in the core's cache.
void HostUpdate::hash_tile(size_t first, size_t end, const TrainState::Side& side,
                           Hashes& hashes) const {
  const StateFormat format{!side.ema.empty(), update_.options.moments.dtype};
  const auto parts = side.parts();
  for (const StateKind kind : state_kinds(format.ema)) {
    const auto part = static_cast<size_t>(kind);
    const size_t last = floats(format, kind, end);
    for (size_t at = floats(format, kind, first); at < last; at += kStateHashBlock)
      hashes[part][at / kStateHashBlock] =
          hash128(parts[part].data() + at, std::min(kStateHashBlock, last - at) * sizeof(float));
  }
}

Hash128 HostUpdate::hash_of(const Hashes& hashes) {
  std::vector<Hash128> all;
  for (const std::vector<Hash128>& part : hashes) all.insert(all.end(), part.begin(), part.end());
  return hash128(all.data(), all.size() * sizeof(Hash128));
}

}  // namespace simplescale::cpu
