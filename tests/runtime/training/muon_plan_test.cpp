#include "runtime/training/muon_plan.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include <algorithm>
#include <numeric>

using namespace simplescale;

TEST_SUITE("muon_plan") {
  TEST_CASE("muon plan: the matrices of the blocks, neither embeddings nor head nor vectors") {
    ModelShape shape{.dim = 16,
                     .hidden = 48,
                     .layers = 3,
                     .heads = 2,
                     .kv_heads = 1,
                     .vocab = 300,
                     .block_size = 8};
    shape.qkv_bias = true, shape.qk_norm = QkNorm::head;
    const std::vector<Unit> units = units_of(shape);
    const std::vector<MuonMatrix> matrices = muon_matrices(units);
    CHECK(matrices.size() == 7 * 3);
    size_t elements = 0;
    for (const MuonMatrix& matrix : matrices) {
      CHECK((matrix.unit >= 1 && matrix.unit <= 3));
      elements += matrix.count();
    }
    CHECK(elements == 3u * (2 * 16 * 16 + 2 * 8 * 16 + 3 * 48 * 16));
    CHECK(matrices[6].rows == 16);
    CHECK(matrices[6].columns == 48);
    CHECK(matrices[6].update_scale() == doctest::Approx(0.2 * std::sqrt(48.0)));
  }

  TEST_CASE("muon plan: the cost of the ranks differs by at most the most expensive matrix") {
    const std::vector<MuonMatrix> matrices = muon_matrices(units_of({.dim = 384,
                                                                     .hidden = 1024,
                                                                     .layers = 6,
                                                                     .heads = 6,
                                                                     .kv_heads = 2,
                                                                     .vocab = 8192,
                                                                     .block_size = 256}));
    double highest = 0;
    for (const MuonMatrix& matrix : matrices) highest = std::max(highest, matrix.cost());
    for (const size_t ranks : {1, 2, 3, 4, 7, 16, 100}) {
      CAPTURE(ranks);
      const std::vector<size_t> owners = owners_of(matrices, ranks);
      std::vector<double> costs(ranks);
      std::vector<size_t> elements(ranks);
      for (size_t i = 0; i < matrices.size(); ++i) {
        REQUIRE(owners[i] < ranks);
        costs[owners[i]] += matrices[i].cost();
        elements[owners[i]] += matrices[i].count();
      }
      CHECK(*std::ranges::max_element(costs) - *std::ranges::min_element(costs) <= highest);
      CHECK(*std::ranges::max_element(elements) == most_owned(matrices, ranks));
    }
    CHECK(owners_of(matrices, 1) == std::vector<size_t>(matrices.size()));
  }
}
