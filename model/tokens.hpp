// A micro-batch of tokens, prepared for the embeddings' forward and backward passes. Pure functions
// over host memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace simplescale {

/// tokens: (B, T + 1), row-wise. inputs (B * T) receives columns 0..T-1, targets (B * T) columns
/// 1..T. False if a token is not in [0, V).
inline bool split_tokens(const int32_t* tokens, int64_t B, int64_t T, int64_t V, int32_t* inputs,
                         int32_t* targets) {
  const auto valid = [&](int32_t token) { return token >= 0 && token < V; };
  if (!std::all_of(tokens, tokens + B * (T + 1), valid)) return false;
  for (int64_t b = 0; b < B; ++b) {
    std::copy_n(tokens + b * (T + 1), T, inputs + b * T);
    std::copy_n(tokens + b * (T + 1) + 1, T, targets + b * T);
  }
  return true;
}

/// A counting sort of the indices of `inputs` by token, stable within a token: the indices of token
/// v are rows[begin[v]] ... rows[begin[v + 1] - 1]. inputs: (N), each in [0, V); begin: (V + 1);
/// rows: (N).
inline void group_by_token(std::span<const int32_t> inputs, int64_t V, int32_t* begin,
                           int32_t* rows) {
  std::fill_n(begin, V + 1, 0);
  for (const int32_t token : inputs) ++begin[token + 1];
  for (int64_t v = 0; v < V; ++v) begin[v + 1] += begin[v];
  // Filling rows advances begin[v] to the start of token v + 1; the shift afterwards undoes that.
  for (size_t i = 0; i < inputs.size(); ++i) rows[begin[inputs[i]]++] = static_cast<int32_t>(i);
  std::copy_backward(begin, begin + V, begin + V + 1);
  begin[0] = 0;
}

}  // namespace simplescale
