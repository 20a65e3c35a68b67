// Marks that travel with tokens from the data to the model, in the three highest bits below the sign:
// where documents begin, what they see, and which targets are not trained. Tokens without marks are plain ids. Pure
// functions, any thread.
#pragma once

#include <cstdint>

namespace simplescale {

/// From this token on, no token before it is seen.
inline constexpr int32_t kBeginsDocument = 1 << 30;
/// As a target, this token does not count in the loss.
inline constexpr int32_t kNotTrained = 1 << 29;
/// With kBeginsDocument: this document goes on where the sample's last document without this mark
/// ends, and sees it, but no document between them. Only for the forward pass of the CPU.
inline constexpr int32_t kSeesPrompt = 1 << 28;
/// The largest id that there can be.
inline constexpr int32_t kLargestTokenId = kSeesPrompt - 1;

constexpr int32_t token_id(int32_t marked) {
  return marked & kLargestTokenId;
}

/// How many targets of (rows, T + 1) tokens count in the loss. Targets are columns 1..T.
inline uint64_t trained_targets(const int32_t* tokens, int64_t rows, int64_t T) {
  uint64_t count = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t t = 1; t <= T; ++t) count += (tokens[row * (T + 1) + t] & kNotTrained) == 0;
  return count;
}

/// What turns a mean over `targets` targets, where those that are not trained count as zero, into
/// the mean over the trained ones. Exactly 1 if all are trained; 1 if none is.
inline double over_trained(uint64_t targets, uint64_t trained) {
  return trained == 0 ? 1 : static_cast<double>(targets) / static_cast<double>(trained);
}

}  // namespace simplescale
