#include "model/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace simplescale {

int32_t sample_token(std::span<const float> logits, const Sampling& sampling,
                     std::mt19937_64& random) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t k = sampling.temperature == 0 ? 1
                   : sampling.top_k > 0 ? std::min(static_cast<size_t>(sampling.top_k), ids.size())
                                        : ids.size();
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k), ids.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)],
                                  y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  if (k == 1) return ids[0];
  std::vector<double> sums(k);  // of the weights up to this token
  double sum = 0;
  for (size_t i = 0; i < k; ++i)
    sums[i] = sum +=
        std::exp((logits[static_cast<size_t>(ids[i])] - logits[static_cast<size_t>(ids[0])]) /
                 sampling.temperature);
  if (sampling.top_p < 1) {
    const auto last = std::ranges::lower_bound(sums, sampling.top_p * sum);
    sums.resize(std::min(static_cast<size_t>(last - sums.begin()), k - 1) + 1);
    sum = sums.back();
  }
  const double share = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
  const auto chosen = std::ranges::upper_bound(sums, share) - sums.begin();
  return ids[std::min(static_cast<size_t>(chosen), sums.size() - 1)];
}

}  // namespace simplescale
