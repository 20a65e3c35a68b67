// Causal grouped-query attention of one document and one key/value head, forward and backward.
// arXiv 1706.03762 (attention), 2305.13245 (grouped queries). A call runs on one thread. It takes
// blocks of query rows against all keys that they see, with products by gemm() and softmax in fp32.
// The backward pass recomputes the scores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/cpu/element.hpp"

namespace simplescale::cpu {

struct AttentionShape {
  int64_t T = 0, D = 0;  // tokens of the document, elements per head
  int64_t group = 0;     // query heads that share the key/value head
  int64_t ld_qkv = 0;    // elements from one token's q, k, v to the next token's
  int64_t ld_out = 0;    // elements from one token's output to the next token's
  int64_t window = 0;    // a token attends to itself and window - 1 before it; 0: to all
  // Of a document that goes on behind a prompt, which it sees; only for the forward pass.
  int64_t prompt = 0;  // tokens of the prompt
  int64_t behind = 0;  // from the prompt's first token to the document's, in tokens of memory
};

/// Pointers to a document's first token, at the first query head of the group and at its key/value
/// head. The group's heads are adjacent in q and in out.
template <class T>
struct AttentionView {
  T *q, *k, *v;  // (T, group * D), (T, D), (T, D), rows ld_qkv apart; q and k are rotated already
  T* out;        // (T, group * D), rows ld_out apart
  float* lse;    // (group, T)
};

/// Bytes of scratch that a call of either pass needs; for a smaller T + prompt it needs no more. The
/// scratch must be 64-byte aligned.
template <class T>
size_t attention_scratch_bytes(const AttentionShape& shape);

/// Reads q, k and v; writes out and lse = log(sum(exp(scores))).
template <class T>
void attention_forward(const AttentionShape& shape, const AttentionView<T>& at, void* scratch);

/// The gradients; dq and dk are rotated back, so they belong to the projections' results.
template <class T>
struct AttentionGradient {
  const T* dout;               // input; laid out as out
  T *dq, *dk, *dv;             // outputs; laid out as q, k, v
  const float *cosine, *sine;  // (T, D/2), of the document's positions
};
/// Reads what attention_forward() wrote, and gradient.dout; writes dq, dk and dv.
template <class T>
void attention_backward(const AttentionShape& shape, const AttentionView<T>& at,
                        const AttentionGradient<T>& gradient, void* scratch);

}  // namespace simplescale::cpu
