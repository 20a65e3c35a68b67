// The decoder with its cache against the CPU backend, which computes all tokens anew; and the choice
// of a token from logits.
#include <doctest/doctest.h>

#include <map>

#include "model/cpu/decoder.hpp"
#include "model/sampler.hpp"
#include "tests/model/test_model.hpp"

using namespace simplescale;
using simplescale::testing::TestModel;

namespace {

ModelShape shape(bool tied) {
  return {.dim = 48,
          .hidden = 80,
          .layers = 3,
          .heads = 6,
          .kv_heads = 2,
          .vocab = 301,
          .block_size = 150,
          .tie_embeddings = tied};
}

/// The backend's logits of all tokens: (T, V).
std::vector<float> backend_logits(const TestModel& m) {
  BackendOptions options = m.options();
  options.training = false;
  auto backend = make_cpu_backend(options).take();
  backend->embed(0, m.params.front().data(), m.tokens.data());
  for (size_t unit = 1; unit + 1 < m.units.size(); ++unit)
    if (const Unit& of = m.units[unit]; of.kind == Unit::Kind::experts)
      backend->forward_experts(0, of.layer, m.params[unit].data());
    else
      backend->forward_block(0, of.layer, m.params[unit].data());
  std::vector<float> logits(size_t(m.shape.block_size * m.shape.vocab));
  backend->logits(0, m.params.back().data(),
                  m.shape.tie_embeddings ? m.params.front().data() : nullptr, logits.data());
  return logits;
}

}  // namespace

TEST_SUITE("model") {
  TEST_CASE("decoder: the cache gives the logits of the whole sequence") {
    std::vector<ModelShape> shapes = simplescale::testing::with_options(shape(false));
    shapes.insert(shapes.end(), {shape(false), shape(true)});
    const std::vector<ModelShape> routed = simplescale::testing::with_experts(shape(false));
    shapes.insert(shapes.end(), routed.begin(), routed.end());
    for (const ModelShape& one : shapes) {
      CAPTURE(options_text(one));
      const TestModel m(one, 1);
      const std::vector<float> expected = backend_logits(m);
      cpu::Decoder decoder(m.shape, m.params, 2);
      // One by one, and pieces below, at and above the rows of one pass.
      for (const std::vector<size_t>& pieces :
           {std::vector<size_t>(150, 1), {150}, {1, 63, 1, 64, 21}, {65, 1, 84}}) {
        decoder.clear();
        size_t at = 0;
        for (const size_t n : pieces) {
          const auto logits = decoder.append(std::span(m.tokens).subspan(at, n));
          at += n;
          REQUIRE(logits.size() == size_t(m.shape.vocab));
          float largest = 0;
          for (size_t v = 0; v < logits.size(); ++v)
            largest = std::max(
                largest, std::abs(logits[v] - expected[(at - 1) * size_t(m.shape.vocab) + v]));
          CHECK(largest < 2e-4f);
        }
        CHECK(decoder.length() == 150);
      }
    }
  }
  TEST_CASE("decoder: bits do not depend on the number of threads") {
    const TestModel m(shape(false), 1);
    cpu::Decoder one(m.shape, m.params, 1), three(m.shape, m.params, 3);
    const auto tokens = std::span(m.tokens).first(70);
    const auto a = one.append(tokens), b = three.append(tokens);
    CHECK(std::equal(a.begin(), a.end(), b.begin()));
  }
  TEST_CASE("sampler: temperature, top_k and top_p") {
    std::mt19937_64 random(1);
    const std::vector<float> logits = {0, std::log(4.0f), std::log(2.0f), std::log(1.0f), 0};
    CHECK(sample_token(logits, {.temperature = 0}, random) == 1);
    const auto shares = [&](const Sampling& sampling) {
      std::map<int32_t, double> share;
      for (int i = 0; i < 20'000; ++i)
        share[sample_token(logits, sampling, random)] += 1 / 20'000.0;
      return share;
    };
    auto all = shares({});
    CHECK(all.size() == 5);
    CHECK(all[1] == doctest::Approx(4 / 9.0).epsilon(0.05));
    CHECK(all[0] == doctest::Approx(1 / 9.0).epsilon(0.1));
    auto two = shares({.top_k = 2});
    CHECK(two.size() == 2);
    CHECK(two[2] == doctest::Approx(1 / 3.0).epsilon(0.05));
    CHECK(shares({.top_p = 0.0}).size() == 1);
    CHECK(shares({.top_p = 0.44}).size() == 1);  // 4/9 reach it
    auto reached = shares({.top_p = 0.45});
    CHECK(reached.size() == 2);
    CHECK(reached[1] == doctest::Approx(2 / 3.0).epsilon(0.05));
    CHECK(shares({.top_k = 3, .top_p = 0.9}).size() == 3);
    CHECK(shares({.temperature = 0.01}).size() == 1);
  }
}
