#include "model/cpu/attention.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "model/cpu/gemm.hpp"
#include "model/cpu/kernels.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/arithmetic.hpp"

namespace simplescale::cpu {
namespace {

using arithmetic::kQueryRows;

constexpr size_t aligned(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/// Divides a scratch buffer into consecutive pieces; with a null buffer it only counts bytes.
class Scratch {
 public:
  explicit Scratch(void* memory) : memory_(static_cast<unsigned char*>(memory)) {}
  template <class E>
  E* take(int64_t count) {
    unsigned char* piece = memory_ ? memory_ + used_ : nullptr;
    used_ += aligned(static_cast<size_t>(count) * sizeof(E));
    return reinterpret_cast<E*>(piece);
  }
  size_t used() const { return used_; }

 private:
  unsigned char* memory_;
  size_t used_ = 0;
};

/// One call's scratch. R = min(kQueryRows, T) rows; keys: up to T, or prompt + T.
template <class T>
struct Buffers {
  Buffers(const AttentionShape& s, void* memory) : scratch(memory) {
    const int64_t rows = std::min(kQueryRows, s.T), keys = s.prompt + s.T;
    scores = scratch.take<float>(rows * keys);
    dp = scratch.take<float>(rows * keys);
    if constexpr (std::is_same_v<T, float>) {
      p = scores;
      ds = dp;
    } else {
      p = scratch.take<T>(rows * keys);
      ds = scratch.take<T>(rows * keys);
    }
    block = scratch.take<float>(rows * s.D);
    inverse_sum = scratch.take<float>(rows);
    delta = scratch.take<float>(s.T);
    dk = scratch.take<float>(s.T * s.D);
    dv = scratch.take<float>(s.T * s.D);
  }
  Scratch scratch;
  float *scores, *dp;  // (R, keys)
  float* block;        // (R, D): a block of out or dq
  float* inverse_sum;  // (R)
  float* delta;        // (T): sum of out * dout, row by row
  float *dk, *dv;      // (T, D)
  T *p, *ds;           // (R, keys); in fp32 the same memory as scores and dp
};

constexpr auto kNo = Transpose::no, kYes = Transpose::yes;

/// A block of query rows: rows [first, first + rows), which see keys of [key, key + keys) only.
struct Block {
  Block(const AttentionShape& s, int64_t first)
      : rows(std::min(kQueryRows, s.T - first)),
        key(s.window > 0 ? std::max<int64_t>(0, first + 1 - s.window) : 0),
        keys(first + rows - key),
        visible(first + 1 - key) {}
  int64_t rows, key, keys;
  int64_t visible;  // keys that are not after the first row
};

}  // namespace

template <class T>
size_t attention_scratch_bytes(const AttentionShape& shape) {
  return Buffers<T>(shape, nullptr).scratch.used();
}

/// The same for a document behind a prompt: its keys are those of the prompt, then its own.
template <class T>
void attention_behind_prompt(const AttentionShape& s, const AttentionView<T>& at, void* scratch) {
  Buffers<T> b(s, scratch);
  const Kernels<T>& kernel = kernels<T>();
  const float scale = 1.0f / std::sqrt(float(s.D));
  const T *prompt_k = at.k - s.behind * s.ld_qkv, *prompt_v = at.v - s.behind * s.ld_qkv;
  for (int64_t h = 0; h < s.group; ++h)
    for (int64_t first = 0; first < s.T; first += kQueryRows) {
      const int64_t rows = std::min(kQueryRows, s.T - first), own = first + rows;
      const int64_t keys = s.prompt + own;
      const T* q = at.q + first * s.ld_qkv + h * s.D;
      gemm(kNo, kYes, rows, s.prompt, s.D, q, s.ld_qkv, prompt_k, s.ld_qkv, 0, b.scores, keys);
      gemm(kNo, kYes, rows, own, s.D, q, s.ld_qkv, at.k, s.ld_qkv, 0, b.scores + s.prompt, keys);
      kernel.softmax(rows, keys, s.prompt + first + 1, s.window, scale, b.scores, keys, b.p,
                     b.inverse_sum, at.lse + h * s.T + first);
      gemm(kNo, kNo, rows, s.D, s.prompt, b.p, keys, prompt_v, s.ld_qkv, 0, b.block, s.D);
      gemm(kNo, kNo, rows, s.D, own, b.p + s.prompt, keys, at.v, s.ld_qkv, 1, b.block, s.D);
      kernel.store_scaled(rows, s.D, b.block, s.D, b.inverse_sum,
                          at.out + first * s.ld_out + h * s.D, s.ld_out);
    }
}

template <class T>
void attention_forward(const AttentionShape& s, const AttentionView<T>& at, void* scratch) {
  if (s.prompt > 0) return attention_behind_prompt(s, at, scratch);
  Buffers<T> b(s, scratch);
  const Kernels<T>& kernel = kernels<T>();
  const float scale = 1.0f / std::sqrt(float(s.D));
  for (int64_t h = 0; h < s.group; ++h)
    for (int64_t first = 0; first < s.T; first += kQueryRows) {
      const auto [rows, key, keys, visible] = Block(s, first);
      const T *q = at.q + first * s.ld_qkv + h * s.D, *k = at.k + key * s.ld_qkv,
              *v = at.v + key * s.ld_qkv;
      gemm(kNo, kYes, rows, keys, s.D, q, s.ld_qkv, k, s.ld_qkv, 0, b.scores, keys);
      kernel.softmax(rows, keys, visible, s.window, scale, b.scores, keys, b.p, b.inverse_sum,
                     at.lse + h * s.T + first);
      gemm(kNo, kNo, rows, s.D, keys, b.p, keys, v, s.ld_qkv, 0, b.block, s.D);
      kernel.store_scaled(rows, s.D, b.block, s.D, b.inverse_sum,
                          at.out + first * s.ld_out + h * s.D, s.ld_out);
    }
}

template <class T>
void attention_backward(const AttentionShape& s, const AttentionView<T>& at,
                        const AttentionGradient<T>& g, void* scratch) {
  SS_ASSERT(s.prompt == 0);
  Buffers<T> b(s, scratch);
  const Kernels<T>& kernel = kernels<T>();
  const float scale = 1.0f / std::sqrt(float(s.D));
  std::fill_n(b.dk, s.T * s.D, 0.0f);
  std::fill_n(b.dv, s.T * s.D, 0.0f);
  for (int64_t h = 0; h < s.group; ++h) {
    kernel.row_dots(s.T, s.D, at.out + h * s.D, s.ld_out, g.dout + h * s.D, s.ld_out, b.delta);
    for (int64_t first = 0; first < s.T; first += kQueryRows) {
      const auto [rows, key, keys, visible] = Block(s, first);
      const T *q = at.q + first * s.ld_qkv + h * s.D, *k = at.k + key * s.ld_qkv,
              *v = at.v + key * s.ld_qkv;
      const T* dout = g.dout + first * s.ld_out + h * s.D;
      gemm(kNo, kYes, rows, keys, s.D, q, s.ld_qkv, k, s.ld_qkv, 0, b.scores, keys);
      gemm(kNo, kYes, rows, keys, s.D, dout, s.ld_out, v, s.ld_qkv, 0, b.dp, keys);
      kernel.softmax_backward(rows, keys, visible, s.window, scale, b.scores, b.dp, keys,
                              at.lse + h * s.T + first, b.delta + first, b.p, b.ds);
      gemm(kYes, kNo, keys, s.D, rows, b.p, keys, dout, s.ld_out, 1, b.dv + key * s.D, s.D);
      gemm(kYes, kNo, keys, s.D, rows, b.ds, keys, q, s.ld_qkv, 1, b.dk + key * s.D, s.D);
      gemm(kNo, kNo, rows, s.D, keys, b.ds, keys, k, s.ld_qkv, 0, b.block, s.D);
      kernel.rope(rows, 1, s.D, first, s.T, g.cosine, g.sine, true, b.block, s.D,
                  g.dq + first * s.ld_qkv + h * s.D, s.ld_qkv);
    }
  }
  kernel.rope(s.T, 1, s.D, 0, s.T, g.cosine, g.sine, true, b.dk, s.D, g.dk, s.ld_qkv);
  kernel.store(s.T, s.D, b.dv, s.D, g.dv, s.ld_qkv);
}

template size_t attention_scratch_bytes<float>(const AttentionShape&);
template size_t attention_scratch_bytes<Bf16>(const AttentionShape&);
template void attention_forward(const AttentionShape&, const AttentionView<float>&, void*);
template void attention_forward(const AttentionShape&, const AttentionView<Bf16>&, void*);
template void attention_backward(const AttentionShape&, const AttentionView<float>&,
                                 const AttentionGradient<float>&, void*);
template void attention_backward(const AttentionShape&, const AttentionView<Bf16>&,
                                 const AttentionGradient<Bf16>&, void*);

}  // namespace simplescale::cpu
