// A micro-batch of tokens, made ready for the device: pure functions over host memory.
#pragma once

#include <cstdint>
#include <span>

namespace simplescale::cuda {

/// tokens: (B, T + 1), row-wise. inputs (B * T): columns 0..T-1; targets (B * T): columns 1..T.
/// False if a token is not in [0, V).
bool split_tokens(const int32_t* tokens, int64_t B, int64_t T, int64_t V, int32_t* inputs,
                  int32_t* targets);

/// rows: the indices of inputs, grouped by token and in order within a token; those of token v are
/// rows[begin[v]] ... rows[begin[v + 1] - 1]. begin: (V + 1); rows: (inputs.size()).
void group_by_token(std::span<const int32_t> inputs, int64_t V, int32_t* begin, int32_t* rows);

}  // namespace simplescale::cuda
