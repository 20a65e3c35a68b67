#include "model/router.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/training/router_counts.hpp"

namespace simplescale {
namespace {

constexpr float kSmallestSum = 1e-20f;  // of normalized weights, as DeepSeek-V3 adds it
constexpr float kLeft = -std::numeric_limits<float>::infinity();  // cannot be chosen

float largest_of(const float* values, int64_t count) {
  return *std::max_element(values, values + count);
}

/// to = exp(logits - largest) / their sum. Returns logsumexp(logits).
float softmax(int64_t count, const float* logits, float* to) {
  const float largest = largest_of(logits, count);
  float sum = 0;
  for (int64_t e = 0; e < count; ++e) sum += to[e] = std::exp(logits[e] - largest);
  for (int64_t e = 0; e < count; ++e) to[e] /= sum;
  return largest + std::log(sum);
}

/// Makes all experts outside of the token's groups unavailable.
void keep_groups(const Experts& x, float* choice, std::vector<float>& of_group) {
  const int64_t size = x.count / x.groups;
  for (int64_t g = 0; g < x.groups; ++g) {
    float* const group = choice + g * size;
    float value = largest_of(group, size);
    if (x.score == RouterScore::sigmoid && size > 1) {
      float* const best = std::max_element(group, group + size);
      const float kept = std::exchange(*best, kLeft);
      value += largest_of(group, size);
      *best = kept;
    }
    of_group[static_cast<size_t>(g)] = value;
  }
  for (int64_t taken = 0; taken < x.groups_per_token; ++taken)
    *std::ranges::max_element(of_group) = kLeft;
  for (int64_t g = 0; g < x.groups; ++g)
    if (of_group[static_cast<size_t>(g)] != kLeft) std::fill_n(choice + g * size, size, kLeft);
}

}  // namespace

int64_t route(const Experts& x, int64_t rows, const float* logits, const float* bias,
              const Routing& to) {
  const int64_t E = x.count, k = x.per_token;
  std::vector<float> choice(static_cast<size_t>(E)), of_group(static_cast<size_t>(x.groups));
  int64_t close = 0;
  for (int64_t r = 0; r < rows; ++r, logits += E) {
    float* const scores = to.scores + r * E;
    if (x.score == RouterScore::softmax)
      softmax(E, logits, scores);
    else
      for (int64_t e = 0; e < E; ++e) scores[e] = 1 / (1 + std::exp(-logits[e]));
    for (int64_t e = 0; e < E; ++e)
      choice[static_cast<size_t>(e)] = scores[e] + (bias ? bias[e] : 0);
    if (x.groups_per_token < x.groups) keep_groups(x, choice.data(), of_group);
    float* const weights = to.weights + r * k;
    float sum = 0, last = 0;
    for (int64_t j = 0; j < k; ++j) {
      const auto best = std::ranges::max_element(choice);  // the first of equal ones
      last = *best;
      const auto expert = static_cast<int32_t>(best - choice.begin());
      *best = kLeft;
      to.chosen[r * k + j] = expert;
      sum += weights[j] = scores[expert];
    }
    const auto scale = static_cast<float>(x.scale);
    for (int64_t j = 0; j < k; ++j)
      weights[j] *= x.normalize ? scale / (sum + kSmallestSum) : scale;
    close += std::ranges::max(choice) > last - kCloseChoice * std::abs(last);
  }
  return close;
}

// With w_j = scale s_j / S, S = the sum of the chosen s_i:
//   ds_j = scale / S (dw_j - sum_i dw_i s_i / S)
// Softmax: dlogit_e = s_e (ds_e - sum_i ds_i s_i). Sigmoid: dlogit_e = ds_e s_e (1 - s_e).
void route_backward(const Experts& x, const RouterLoss& loss, int64_t rows, const float* logits,
                    const Routing& of, const float* d_weights, const float* load, float* d_logits) {
  const int64_t E = x.count, k = x.per_token;
  const auto scale = static_cast<float>(x.scale);
  const float balance = loss.scale * loss.balance * static_cast<float>(E) / static_cast<float>(k);
  std::vector<float> d_scores(static_cast<size_t>(E)), shares(static_cast<size_t>(E));
  for (int64_t r = 0; r < rows; ++r, logits += E, d_logits += E) {
    const float* const scores = of.scores + r * E;
    const int32_t* const chosen = of.chosen + r * k;
    const float* const dw = d_weights + r * k;
    std::ranges::fill(d_scores, 0.0f);
    if (balance != 0) {
      // Of sigmoids each token's scores are divided by their sum first (DeepSeek-V3, arXiv 2412.19437).
      float sum = 0, weighted = 0;
      for (int64_t e = 0; e < E; ++e) sum += scores[e], weighted += load[e] * scores[e];
      if (x.score == RouterScore::softmax) sum = 1, weighted = 0;
      for (int64_t e = 0; e < E; ++e)
        d_scores[static_cast<size_t>(e)] = balance * (load[e] - weighted / sum) / sum;
    }
    float sum = 0, weighted = 0;
    for (int64_t j = 0; j < k; ++j) sum += scores[chosen[j]], weighted += dw[j] * scores[chosen[j]];
    sum += kSmallestSum;
    for (int64_t j = 0; j < k; ++j)
      d_scores[static_cast<size_t>(chosen[j])] +=
          x.normalize ? scale / sum * (dw[j] - weighted / sum) : scale * dw[j];
    if (x.score == RouterScore::softmax) {
      float mean = 0;
      for (int64_t e = 0; e < E; ++e) mean += d_scores[static_cast<size_t>(e)] * scores[e];
      for (int64_t e = 0; e < E; ++e)
        d_logits[e] = scores[e] * (d_scores[static_cast<size_t>(e)] - mean);
    } else {
      for (int64_t e = 0; e < E; ++e)
        d_logits[e] = d_scores[static_cast<size_t>(e)] * scores[e] * (1 - scores[e]);
    }
    if (loss.z_loss == 0) continue;
    const float factor = 2 * loss.scale * loss.z_loss * softmax(E, logits, shares.data());
    for (int64_t e = 0; e < E; ++e) d_logits[e] += factor * shares[static_cast<size_t>(e)];
  }
}

}  // namespace simplescale
