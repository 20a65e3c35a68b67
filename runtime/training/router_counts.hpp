// What the routers of a step have done, in whole numbers, whose sums are exact in any order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// Numbers of a layer: the tokens of each expert, then the close choices: tokens whose last chosen expert
/// was less than kCloseChoice, as a share of its score, ahead of the first one that was not chosen.
inline constexpr float kCloseChoice = 0.01f;
inline size_t counts_of_layer(const Experts& experts) {
  return static_cast<size_t>(experts.count) + 1;
}
/// Numbers of all layers in their order; those without experts have zeros. 0 for a model without experts.
inline size_t router_count_size(const ModelShape& shape) {
  return shape.experts.count == 0
             ? 0
             : static_cast<size_t>(shape.layers) * counts_of_layer(shape.experts);
}
/// Those of one layer. all: router_count_size(shape).
template <class T>
std::span<T> counts_of(std::span<T> all, const ModelShape& shape, int64_t layer) {
  const size_t size = counts_of_layer(shape.experts);
  return all.subspan(static_cast<size_t>(layer) * size, size);
}

/// How evenly a layer's tokens are spread over its experts.
struct ExpertLoad {
  int64_t layer = 0;
  size_t per_token = 1;       // experts that each token passes
  std::vector<double> loads;  // of each expert: its tokens over the mean of all; 1 is even
  double entropy = 0;         // of the tokens' shares, over that of an even load: 0 to 1
  double close = 0;           // share of the tokens whose choice was close
  double least() const { return std::ranges::min(loads); }
  double most() const { return std::ranges::max(loads); }
};
/// Of each layer with experts. all: router_count_size(shape), or empty; then there are none.
std::vector<ExpertLoad> expert_loads(std::span<const int64_t> all, const ModelShape& shape);
/// {"dropped", "least", "most", "entropy", "close", "layers": {NUMBER: {"least", "most", "entropy",
/// "close"}}, "loads": {NUMBER: [of each expert]}} of the metrics (docs/formats.md); without loads if
/// they are more than kLoadsMax. null for no layer.
inline constexpr size_t kLoadsMax = 2048;
nlohmann::json json_of(std::span<const ExpertLoad> layers);

}  // namespace simplescale
