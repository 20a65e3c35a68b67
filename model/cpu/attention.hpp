// Causal grouped-query attention of one sample and one key/value head, forward and backward; arXiv
// 1706.03762, 2305.13245. One thread a call. Blocks of query rows against all keys before them:
// products by gemm(), softmax in fp32; the scores are computed again in backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/cpu/element.hpp"

namespace simplescale::cpu {

struct AttentionShape {
  int64_t T = 0, D = 0;  // tokens of a sample, elements of a head
  int64_t group = 0;     // query heads that share the key/value head
  int64_t ld_qkv = 0;    // elements from one token's q, k, v to the next one's
  int64_t ld_out = 0;    // the same for the output
};

/// One sample's tensors, at the first query head of the group and at its key/value head. q holds
/// the group's heads one after the other; so does out.
template <class T>
struct AttentionView {
  T *q, *k, *v;  // (T, group * D), (T, D), (T, D), strided by ld_qkv; rotated already
  T* out;        // (T, group * D), strided by ld_out
  float* lse;    // (group, T)
};

/// Bytes of scratch a thread needs for either pass; the scratch is 64-byte aligned.
template <class T>
size_t attention_scratch_bytes(const AttentionShape& shape);

/// Writes out and lse.
template <class T>
void attention_forward(const AttentionShape& shape, const AttentionView<T>& at, void* scratch);

/// Where the gradients go: dq, dk already rotated back.
template <class T>
struct AttentionGradient {
  const T* dout;               // as out
  T *dq, *dk, *dv;             // as q, k, v
  const float *cosine, *sine;  // (T, D/2)
};
template <class T>
void attention_backward(const AttentionShape& shape, const AttentionView<T>& at,
                        const AttentionGradient<T>& gradient, void* scratch);

}  // namespace simplescale::cpu
