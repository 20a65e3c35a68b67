#include "model/cuda/tokens.hpp"

#include <algorithm>

namespace simplescale::cuda {

bool split_tokens(const int32_t* tokens, int64_t B, int64_t T, int64_t V, int32_t* inputs,
                  int32_t* targets) {
  const auto possible = [&](int32_t token) { return token >= 0 && token < V; };
  if (!std::all_of(tokens, tokens + B * (T + 1), possible)) return false;
  for (int64_t b = 0; b < B; ++b) {
    std::copy_n(tokens + b * (T + 1), T, inputs + b * T);
    std::copy_n(tokens + b * (T + 1) + 1, T, targets + b * T);
  }
  return true;
}

/// A counting sort. While it fills, begin[v] runs to where v + 1 begins; then all move back by one.
void group_by_token(std::span<const int32_t> inputs, int64_t V, int32_t* begin, int32_t* rows) {
  std::fill_n(begin, V + 1, 0);
  for (const int32_t token : inputs) ++begin[token + 1];
  for (int64_t v = 0; v < V; ++v) begin[v + 1] += begin[v];
  for (size_t i = 0; i < inputs.size(); ++i) rows[begin[inputs[i]]++] = static_cast<int32_t>(i);
  std::copy_backward(begin, begin + V, begin + V + 1);
  begin[0] = 0;
}

}  // namespace simplescale::cuda
