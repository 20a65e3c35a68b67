#include "runtime/training/muon_plan.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace simplescale {

double MuonMatrix::cost() const {
  const auto small = static_cast<double>(std::min(rows, columns)),
             large = static_cast<double>(std::max(rows, columns));
  return small * small * (2 * large + small);
}

float MuonMatrix::update_scale() const {
  return 0.2f * std::sqrt(static_cast<float>(std::max(rows, columns)));
}

std::vector<MuonMatrix> muon_matrices(const std::vector<Unit>& units) {
  std::vector<MuonMatrix> matrices;
  for (size_t unit = 1; unit + 1 < units.size(); ++unit)
    for (const Parameter& parameter : units[unit].parameters)
      if (parameter.is_matrix())
        matrices.push_back({unit, parameter.offset, parameter.shape[0], parameter.shape[1]});
  return matrices;
}

std::vector<size_t> owners_of(const std::vector<MuonMatrix>& matrices, size_t ranks) {
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(
      order, [&](size_t a, size_t b) { return matrices[a].cost() > matrices[b].cost(); });
  std::vector<double> costs(ranks);
  std::vector<size_t> owners(matrices.size());
  for (const size_t matrix : order) {
    const auto least = std::ranges::min_element(costs);
    *least += matrices[matrix].cost();
    owners[matrix] = static_cast<size_t>(least - costs.begin());
  }
  return owners;
}

size_t most_owned(const std::vector<MuonMatrix>& matrices, size_t ranks) {
  const std::vector<size_t> owners = owners_of(matrices, ranks);
  std::vector<size_t> elements(ranks);
  for (size_t i = 0; i < matrices.size(); ++i) elements[owners[i]] += matrices[i].count();
  return *std::ranges::max_element(elements);
}

}  // namespace simplescale
