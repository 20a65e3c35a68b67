// The load of experts out of the routers' counts.
#include "runtime/training/router_counts.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace simplescale;

namespace {

ModelShape shape_of(int64_t layers, int64_t dense, int64_t experts, int64_t per_token) {
  ModelShape shape;
  shape.layers = layers;
  shape.experts = {.count = experts, .per_token = per_token, .hidden = 8, .dense_layers = dense};
  return shape;
}

}  // namespace

TEST_SUITE("training") {
  TEST_CASE("router counts: load over the mean, entropy and close choices of each layer") {
    const ModelShape shape = shape_of(3, 1, 4, 2);
    REQUIRE(router_count_size(shape) == 15);
    const std::vector<int64_t> counts = {0,  0,  0,  0,  0,  // dense
                                         10, 10, 10, 10, 5,  // of 20 tokens
                                         20, 20, 0,  0,  0};
    const auto loads = expert_loads(counts, shape);
    REQUIRE(loads.size() == 2);
    CHECK(loads[0].layer == 1);
    CHECK(loads[0].loads == std::vector<double>{1, 1, 1, 1});
    CHECK(loads[0].entropy == doctest::Approx(1));
    CHECK(loads[0].close == doctest::Approx(0.25));
    CHECK(loads[1].loads == std::vector<double>{2, 2, 0, 0});
    CHECK(loads[1].entropy == doctest::Approx(0.5));
    const auto json = json_of(loads);
    CHECK(json["least"] == 0);
    CHECK(json["most"] == 2);
    CHECK(json["dropped"] == 0);
    CHECK(json["layers"]["1"]["most"] == 1);
    CHECK(json["loads"]["2"].size() == 4);
  }
  TEST_CASE("router counts: nothing is said without experts, without counts, or of another model") {
    CHECK(expert_loads({}, shape_of(2, 0, 4, 2)).empty());
    CHECK(router_count_size(ModelShape{}) == 0);
    const std::vector<int64_t> counts(15, 1);
    CHECK(expert_loads(counts, shape_of(2, 0, 4, 2)).empty());
    CHECK(json_of({}).is_null());
  }
  TEST_CASE("router counts: many experts have no list of loads") {
    const ModelShape shape = shape_of(2, 0, 2000, 8);
    const std::vector<int64_t> counts(router_count_size(shape), 1);
    const auto json = json_of(expert_loads(counts, shape));
    CHECK(!json.contains("loads"));
    CHECK(json["layers"].size() == 2);
  }
}
