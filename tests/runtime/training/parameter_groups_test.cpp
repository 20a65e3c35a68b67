#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/training/muon_plan.hpp"
#include "runtime/training/parameter_groups.hpp"

using namespace simplescale;

namespace {

const std::vector<Unit> kUnits = units_of({.dim = 16,
                                           .hidden = 48,
                                           .layers = 2,
                                           .heads = 2,
                                           .kv_heads = 1,
                                           .vocab = 300,
                                           .block_size = 8});

ParameterRates rates(const std::string& name, const std::vector<ParameterGroup>& groups) {
  for (const Unit& unit : kUnits)
    for (const Parameter& parameter : unit.parameters)
      if (parameter.name == name) return rates_of(parameter, groups, 0.1f);
  FAIL("no parameter " << name);
  return {};
}

}  // namespace

TEST_SUITE("parameter_groups") {
  TEST_CASE("parameter groups: * matches any text, ? one character, and a pattern the whole name") {
    for (const auto& [pattern, name] : {std::pair{"a.b", "a.b"},
                                        {"*", ""},
                                        {"*", "a.b"},
                                        {"a*", "a"},
                                        {"*b", "a.b"},
                                        {"a?b", "a.b"},
                                        {"*.1.*w", "x.1.y.1.w"},
                                        {"**", "a"},
                                        {"*ab*ab", "abxabab"}}) {
      CAPTURE(pattern);
      CHECK(matches(pattern, name));
    }
    for (const auto& [pattern, name] : {std::pair{"a.b", "axb"},
                                        {"", "a"},
                                        {"a?", "a"},
                                        {"?", ""},
                                        {"a*b", "abc"},
                                        {"b*", "ab"},
                                        {"*ab*ab", "xab"}}) {
      CAPTURE(pattern);
      CHECK_FALSE(matches(pattern, name));
    }
  }

  TEST_CASE("parameter groups: the first group that matches decides; without one matrices decay") {
    const std::vector<ParameterGroup> groups{{"*norm.weight", 2, {}},
                                             {"model.layers.1.*", 0.5, 0.0},
                                             {"*norm*", 4, 0.3},
                                             {"lm_head.weight", 0, {}}};
    CHECK(rates("model.embed_tokens.weight", groups) == ParameterRates{1, 0.1f});
    CHECK(rates("model.norm.weight", groups) == ParameterRates{2, 0});
    CHECK(rates("model.layers.0.input_layernorm.weight", groups) == ParameterRates{2, 0});
    CHECK(rates("model.layers.1.mlp.up_proj.weight", groups) == ParameterRates{0.5f, 0});
    CHECK(rates("model.layers.0.mlp.up_proj.weight", groups) == ParameterRates{1, 0.1f});
    CHECK(rates("lm_head.weight", groups) == ParameterRates{0, 0.1f});
    CHECK(rates("lm_head.weight", {}) == ParameterRates{1, 0.1f});
    CHECK(rates("model.norm.weight", {}) == ParameterRates{1, 0});
  }

  TEST_CASE(
      "parameter groups: a group that decides for no parameter, or a wrong value, is refused") {
    const auto problem = [](const std::vector<ParameterGroup>& groups) {
      const Status status = check_groups(groups, kUnits);
      CHECK(status.code() == (status.ok() ? Code::ok : Code::bad_config));
      return status.message();
    };
    CHECK(problem({}).empty());
    CHECK(problem({{"*.mlp.*", 0.5, {}}, {"*", 2, {}}}).empty());
    CHECK(problem({{"*.mpl.*", 0.5, {}}}) ==
          "train.group: \"*.mpl.*\" matches no parameter of the model; names are such as "
          "model.layers.0.mlp.down_proj.weight and lm_head.weight");
    CHECK(problem({{"*.mlp.*", 0.5, {}}, {"*.mlp.up*", 2, {}}}) ==
          "train.group: \"*.mlp.up*\" matches only parameters that an earlier group matches: put "
          "it first");
    CHECK(problem({{"*", -1, {}}}) ==
          "train.group: \"*\" has learning_rate_factor = -1: use 0 to 1000");
    CHECK(problem({{"*", 1, 11.0}}) == "train.group: \"*\" has weight_decay = 11: use 0 to 10");
  }

  TEST_CASE("parameter groups: users see how many parameters each group has") {
    const std::vector<ParameterGroup> groups{{"lm_head*", 0.5, 0.0}, {"*norm*", 2, {}}};
    const std::vector<std::string> expected{
        "lm_head*: 1 parameter, learning rate x 0.5, weight decay 0",
        "*norm*: 5 parameters, learning rate x 2"};
    CHECK(groups_text(groups, kUnits) == expected);
  }
}

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
