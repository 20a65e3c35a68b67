// Chooses the next token from a model's logits. Pure function, any thread.
#pragma once

#include <cstdint>
#include <random>
#include <span>

namespace simplescale {

struct Sampling {
  double temperature = 1.0;  // 0: always the likeliest token
  int top_k = 0;             // only among the k likeliest tokens; 0: all
  double top_p = 1.0;        // only among the likeliest tokens that have this share together
};

/// Samples an id from softmax(logits / temperature) over the tokens that top_k and then top_p
/// (arXiv 1904.09751) leave; at least one. Among equal logits the smaller id comes first. logits:
/// (V), V >= 1.
int32_t sample_token(std::span<const float> logits, const Sampling& sampling,
                     std::mt19937_64& random);

}  // namespace simplescale
