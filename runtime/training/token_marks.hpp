// Marks that the data code sets for the model, in the three highest bits below a token's sign: where
// documents begin, what they see, and which targets are not trained. Tokens without marks are plain
// ids. Pure functions, any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace simplescale {

/// From this token on, tokens before it are not seen.
inline constexpr int32_t kBeginsDocument = 1 << 30;
/// As a target, this token does not count in the loss.
inline constexpr int32_t kNotTrained = 1 << 29;
/// With kBeginsDocument: this document continues the sample's last document without this mark. It
/// sees that document, but no document between them. Only for the forward pass of the CPU.
inline constexpr int32_t kSeesPrompt = 1 << 28;
/// The largest possible id.
inline constexpr int32_t kLargestTokenId = kSeesPrompt - 1;

constexpr int32_t token_id(int32_t marked) {
  return marked & kLargestTokenId;
}

/// The number of targets of (rows, T + 1) tokens that count in the loss. Targets are columns 1..T.
inline uint64_t trained_targets(const int32_t* tokens, int64_t rows, int64_t T) {
  uint64_t count = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t t = 1; t <= T; ++t) count += (tokens[row * (T + 1) + t] & kNotTrained) == 0;
  return count;
}

/// The factor that turns a mean over `targets` targets, in which untrained targets count as zero,
/// into the mean over the trained ones. Exactly 1 if all are trained; 1 if none is.
inline double over_trained(uint64_t targets, uint64_t trained) {
  return trained == 0 ? 1 : static_cast<double>(targets) / static_cast<double>(trained);
}

/// Positions of a predicting token, counted from the first token that it may see, are grouped by powers
/// of two: 0, 1, 2 to 3, 4 to 7, ...
constexpr size_t position_group(int64_t position) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(position)));
}
constexpr int64_t first_position(size_t group) {
  return group == 0 ? 0 : int64_t{1} << (group - 1);
}

/// Cuts each of (rows, T + 1) tokens into documents of `length` tokens, which divides T.
inline void cut_samples(int32_t* tokens, int64_t rows, int64_t T, int64_t length) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t t = length; t < T; t += length) tokens[row * (T + 1) + t] |= kBeginsDocument;
}

}  // namespace simplescale
