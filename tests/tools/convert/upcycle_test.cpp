// A model with experts begins as its dense one. tests/e2e/test_families.py compares the logits.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"
#include "tools/convert/commands.hpp"
#include "tools/convert/derive.hpp"
#include "tools/convert/huggingface.hpp"
#include "tools/convert/upcycle.hpp"

using namespace simplescale;
using namespace simplescale::test;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("upcycle");

namespace {

using Values = std::vector<float>;

Values weights(Checkpoint& checkpoint, const std::string& name) {
  return *must(read_parameter(checkpoint, name));
}

Values scaled(Values values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

/// Standard deviation of a - b.
double distance(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(squares / static_cast<double>(a.size()));
}

constexpr const char* kProjections[] = {"gate_proj", "up_proj", "down_proj"};

}  // namespace

TEST_CASE("upcycle: every expert is the block's MLP, and everything else stays") {
  MemoryFolder folder;
  ModelShape dense = some_shape();
  dense.qk_norm = QkNorm::head;
  auto from = saved(folder, dense);
  must(upcycle_checkpoint(*from, *must(parse_upcycle("experts=3,top_k=2,seed=7")),
                          folder / "new/start"));
  auto made = must(Checkpoint::open(folder / "new/start"));
  must(made->verify());
  CHECK(made->info().step == 0);
  CHECK(made->info().shape.experts == Experts{.count = 3, .per_token = 2, .hidden = 40});
  size_t others = 0;
  for (const Unit& unit : from->units())
    for (const Parameter& p : unit.parameters)
      if (p.name.find(".mlp.") == std::string::npos) {
        CHECK_MESSAGE(weights(*made, p.name) == weights(*from, p.name), p.name);
        ++others;
      }
  CHECK(others == 2 * 8 + 3);
  for (const std::string layer : {"model.layers.0.mlp.", "model.layers.1.mlp."})
    for (const std::string projection : kProjections)
      for (const std::string expert : {"0", "1", "2"})
        CHECK(weights(*made, layer + "experts." + expert + "." + projection + ".weight") ==
              weights(*from, layer + projection + ".weight"));
  State state = empty_state(made->info().shape, 1);
  must(read_shard(*made, 1, 0, state.side()));
  for (const int moment : {1, 2})
    CHECK(std::ranges::all_of(state.values[moment], [](float v) { return v == 0; }));
  // The router's weights are random, and those of the seed.
  const std::string router = "model.layers.1.mlp.gate.weight";
  const Values first = weights(*made, router);
  CHECK(distance(first, Values(first.size())) / 0.02 == doctest::Approx(1).epsilon(0.15));
  CHECK(first != weights(*made, "model.layers.0.mlp.gate.weight"));
  for (const char* seed : {"7", "8"}) {
    const std::string to = folder / seed;
    must(
        upcycle_checkpoint(*from, *must(parse_upcycle("experts=3,seed=" + std::string(seed))), to));
    auto again = must(Checkpoint::open(to));
    CHECK((weights(*again, router) == first) == (seed == std::string("7")));
  }
}

TEST_CASE("upcycle: a shared expert and the others have half of the MLP each") {
  MemoryFolder folder;
  auto from = saved(folder, some_shape());
  must(upcycle_checkpoint(*from, *must(parse_upcycle("experts=4,top_k=1,shared=1,score=sigmoid")),
                          folder / "new"));
  auto made = must(Checkpoint::open(folder / "new"));
  const Experts& e = made->info().shape.experts;
  CHECK((e.shared == 1 && e.bias && e.score == RouterScore::sigmoid && e.normalize));
  const std::string at = "model.layers.1.mlp.";
  for (const std::string projection : kProjections) {
    const Values want = scaled(weights(*from, at + projection + ".weight"),
                               projection == "down_proj" ? 0.5f : 1.0f);
    CHECK(weights(*made, at + "shared_experts." + projection + ".weight") == want);
    CHECK(weights(*made, at + "experts.3." + projection + ".weight") == want);
  }
  CHECK(weights(*made, at + "gate.e_score_correction_bias") == Values(4));
}

TEST_CASE("upcycle: noise is in deviations of the matrix, and another one for each expert") {
  MemoryFolder folder;
  auto from = saved(folder, some_shape());
  must(upcycle_checkpoint(*from, *must(parse_upcycle("experts=2,noise=0.25,shared=1")),
                          folder / "new"));
  auto made = must(Checkpoint::open(folder / "new"));
  const std::string at = "model.layers.0.mlp.";
  const Values dense = weights(*from, at + "up_proj.weight"),
               first = weights(*made, at + "experts.0.up_proj.weight"),
               second = weights(*made, at + "experts.1.up_proj.weight");
  double mean = 0;
  for (const float value : dense) mean += double{value} / static_cast<double>(dense.size());
  const double deviation = distance(dense, Values(dense.size(), static_cast<float>(mean)));
  CHECK(distance(first, dense) / deviation / 0.25 == doctest::Approx(1).epsilon(0.05));
  CHECK(distance(first, second) / deviation / 0.25 ==
        doctest::Approx(std::sqrt(2.0)).epsilon(0.05));
  CHECK(weights(*made, at + "shared_experts.up_proj.weight") == dense);
}

TEST_CASE("upcycle: the command takes a Hugging Face folder or a checkpoint") {
  MemoryFolder folder;
  auto from = saved(folder, some_shape());
  must(export_hf(*from, folder / "hf", DType::f32));
  const std::string parts = "experts=4,top_k=2,noise=0.1";
  const auto said = must(import_command(folder / "hf", folder / "a", parts));
  CHECK(has(*said, "made 2 of 4 experts of 40: "));
  CHECK_FALSE(fs::exists(folder / "a.dense"));
  must(import_command(folder.path, folder / "b", parts).status());
  const std::string shard = "/shard-00000-of-00001.safetensors";
  CHECK(contents(folder / "a" + shard) == contents(folder / "b" + shard));
  CHECK(says(import_command(folder / "hf", folder / "a", parts).status(), Code::bad_data,
             "exists already"));
  CHECK(says(import_command(folder / "a", folder / "c", parts).status(), Code::bad_config,
             "has experts already"));
  CHECK_FALSE(fs::exists(folder / "a.dense"));
  ModelShape post = some_shape();
  post.norm = NormPlacement::post;
  CHECK(says(upcycled_shape(post, {.experts = 4}).status(), Code::bad_config, "norm = \"pre\""));
  CHECK(says(upcycled_shape(some_shape(), {.experts = 4, .per_token = 5}).status(),
             Code::bad_config, "experts_per_token = 5 must be from 1 to experts = 4"));
}

TEST_CASE("upcycle: a wrong part is named") {
  for (const char* text : {"experts=0", "experts=8,top_k=0", "experts=8,shared=2",
                           "experts=8,noise=-1", "experts=8,noise=inf", "experts=8,score=tanh",
                           "experts=8,other=1", "experts=8x", "experts", "experts=8,,top_k=2"})
    CHECK_MESSAGE(says(parse_upcycle(text).status(), Code::usage, "is none of experts=COUNT"),
                  text);
  CHECK(says(parse_upcycle("").status(), Code::usage, "set experts"));
  CHECK(says(parse_upcycle("top_k=2").status(), Code::usage, "set experts"));
}

TEST_CASE("derive: a dense model does not begin a run with experts; the message says what does") {
  ModelShape wanted = some_shape();
  wanted.experts = {.count = 8, .per_token = 2, .hidden = 40};
  CHECK(says(check_derivable("dense", some_shape(), wanted), Code::bad_config,
             "simplescale import dense NEW_CHECKPOINT --upcycle experts=8,top_k=2"));
  CHECK(says(check_derivable("sparse", wanted, some_shape()), Code::bad_config,
             "experts = 8, experts_per_token = 2, expert_hidden = 40"));
  ModelShape other = wanted;
  other.experts.normalize = false;
  CHECK(
      says(check_derivable("sparse", wanted, other), Code::bad_config, "router_normalize = true"));
}

TEST_SUITE_END();
