#include "runtime/training/parameter_groups.hpp"

#include <doctest/doctest.h>

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
