#include "runtime/training/router_counts.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

namespace simplescale {
namespace {

using nlohmann::json;

double rounded(double value) {
  return std::round(value * 1e4) / 1e4;
}

ExpertLoad load_of(std::span<const int64_t> counts, const Experts& experts, int64_t layer) {
  const auto of = counts.first(static_cast<size_t>(experts.count));
  const auto all = static_cast<double>(std::accumulate(of.begin(), of.end(), int64_t{0}));
  ExpertLoad load{.layer = layer, .per_token = static_cast<size_t>(experts.per_token)};
  for (const int64_t count : of) {
    const double share = static_cast<double>(count) / all;
    load.loads.push_back(share * static_cast<double>(experts.count));
    if (count > 0) load.entropy -= share * std::log(share);
  }
  load.entropy =
      experts.count == 1 ? 1 : load.entropy / std::log(static_cast<double>(experts.count));
  load.close = static_cast<double>(counts.back()) * static_cast<double>(experts.per_token) / all;
  return load;
}

}  // namespace

std::vector<ExpertLoad> expert_loads(std::span<const int64_t> all, const ModelShape& shape) {
  std::vector<ExpertLoad> layers;
  if (all.empty() || all.size() != router_count_size(shape)) return layers;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const auto counts = counts_of(all, shape, layer);
    if (shape.has_experts(layer) && std::ranges::any_of(counts, [](int64_t n) { return n > 0; }))
      layers.push_back(load_of(counts, shape.experts, layer));
  }
  return layers;
}

json json_of(std::span<const ExpertLoad> layers) {
  if (layers.empty()) return nullptr;
  const auto figures = [](double least, double most, double entropy, double close) {
    return json{{"least", rounded(least)},
                {"most", rounded(most)},
                {"entropy", rounded(entropy)},
                {"close", rounded(close)}};
  };
  double least = layers[0].least(), most = 0, entropy = 0, close = 0;
  json of_layers, loads;
  for (const ExpertLoad& layer : layers) {
    least = std::min(least, layer.least()), most = std::max(most, layer.most());
    entropy += layer.entropy, close += layer.close;
    const std::string number = std::to_string(layer.layer);
    of_layers[number] = figures(layer.least(), layer.most(), layer.entropy, layer.close);
    for (const double load : layer.loads) loads[number].push_back(rounded(load));
  }
  const auto count = static_cast<double>(layers.size());
  json all = figures(least, most, entropy / count, close / count);
  all["dropped"] = 0;  // no expert has a capacity
  all["layers"] = std::move(of_layers);
  if (layers.size() * layers[0].loads.size() <= kLoadsMax) all["loads"] = std::move(loads);
  return all;
}

}  // namespace simplescale
