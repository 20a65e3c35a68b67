// Mixtures of experts: the router's choice, what a row's bits depend on, and every layout of a step.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <set>

#include "model/cpu/gemm.hpp"
#include "model/cpu/instructions.hpp"
#include "model/router.hpp"
#include "runtime/training/router_counts.hpp"
#include "tests/model/engine_world.hpp"
#include "tests/model/instruction_processes.hpp"
#include "tests/model/test_model.hpp"
#include "tests/must.hpp"

namespace simplescale::testing {
namespace {

const ModelShape kBase{.dim = 48,
                       .hidden = 80,
                       .layers = 3,
                       .heads = 6,
                       .kv_heads = 2,
                       .vocab = 101,
                       .block_size = 150};

struct Choice {
  std::vector<float> scores, weights;
  std::vector<int32_t> chosen;
  int64_t close = 0;
};
Choice choice_of(const Experts& x, const std::vector<float>& logits, const float* bias = nullptr) {
  const size_t rows = logits.size() / size_t(x.count), of_token = rows * size_t(x.per_token);
  Choice c{std::vector<float>(logits.size()), std::vector<float>(of_token),
           std::vector<int32_t>(of_token)};
  c.close = route(x, int64_t(rows), logits.data(), bias,
                  {c.scores.data(), c.weights.data(), c.chosen.data()});
  return c;
}

Outcome forward_of(const TestModel& m, DType precision) {
  auto backend = must(make_cpu_backend(m.options(precision, 2)));
  return run_micro_batch(**backend, m, precision);
}

/// Products x W of some numbers of rows, with the same x.
template <class T>
class Products {
 public:
  static constexpr int64_t kMost = 256;
  Products(int64_t K, int64_t N, cpu::Transpose transpose, bool packed)
      : K_(K), N_(N), x_(size_t(kMost * K)), w_(size_t(K * N)) {
    fill(x_), fill(w_);
    weight_ = {w_.data(), K, N, transpose == cpu::Transpose::yes ? K : N, transpose};
    if (!packed) return;
    memory_.resize(cpu::packed_bytes(weight_) / sizeof(float) + 1);
    weight_.packed = memory_.data();
    cpu::pack(weight_);
  }

  /// The least number of rows from which on the first one has the same bits, up to kMost.
  int64_t least_rows() {
    const std::vector<float> expected = first_row(kMost);
    int64_t least = kMost;
    while (least > 1 && first_row(least - 1) == expected) --least;
    return least;
  }

  /// True if equal rows among `rows` have equal results: a row's bits do not depend on its place.
  bool places_are_equal(int64_t rows) {
    for (int64_t row = 1; row < rows; ++row)
      std::copy_n(x_.begin(), K_, x_.begin() + std::ptrdiff_t(row * K_));
    std::vector<float> y(size_t(rows * N_));
    cpu::gemm(rows, x_.data(), K_, weight_, y.data(), N_);
    return std::equal(y.begin() + std::ptrdiff_t(N_), y.end(), y.begin());
  }

 private:
  void fill(std::vector<T>& values) {
    std::normal_distribution<float> normal;
    for (T& value : values) {
      if constexpr (std::is_same_v<T, float>)
        value = normal(random_);
      else
        value.bits = f32_to_bf16(normal(random_));
    }
  }
  std::vector<float> first_row(int64_t rows) {
    std::vector<float> y(size_t(rows * N_));
    cpu::gemm(rows, x_.data(), K_, weight_, y.data(), N_);
    y.resize(size_t(N_));
    return y;
  }

  std::mt19937 random_{3};
  int64_t K_, N_;
  std::vector<T> x_, w_;
  std::vector<float> memory_;
  cpu::Weight<T> weight_{};
};

EngineOptions engine_options(const Experts& experts, int leaves, DType precision, int wave,
                             bool tied) {
  EngineOptions options;
  options.shape = test_shape(tied);
  options.shape.experts = experts;
  options.shape = canonical(options.shape);
  options.precision = precision;
  options.sharding = Sharding::full_shard;
  options.leaves = leaves;
  options.wave = wave;
  options.micro_batch_size = 2;
  options.seed = 5;
  return options;
}

}  // namespace

TEST_SUITE("experts") {
  TEST_CASE("router: the largest scores, equal ones by index, in falling order") {
    const Experts x{.count = 4, .per_token = 2, .hidden = 8};
    const Choice c = choice_of(x, {0, 2, 1, 2, /**/ 1, 1, 1, 1, /**/ -3, 0, 5, 4});
    CHECK(c.chosen == std::vector<int32_t>{1, 3, 0, 1, 2, 3});
    CHECK(c.close == 1);  // that of the token whose experts are all equal
    CHECK(c.weights[0] == doctest::Approx(0.5));
    CHECK(c.weights[4] == doctest::Approx(std::exp(5.0) / (std::exp(5.0) + std::exp(4.0))));
    CHECK(std::accumulate(c.scores.begin(), c.scores.begin() + 4, 0.0) == doctest::Approx(1));
  }
  TEST_CASE("router: the bias chooses, and the score weights") {
    const Experts x{.count = 3,
                    .per_token = 1,
                    .hidden = 8,
                    .score = RouterScore::sigmoid,
                    .normalize = false,
                    .scale = 2.5,
                    .bias = true};
    const std::vector<float> bias = {0, 0, 0.9f};
    const Choice c = choice_of(x, {0, 1, -1}, bias.data());
    CHECK(c.chosen == std::vector<int32_t>{2});
    CHECK(c.weights[0] == doctest::Approx(2.5 / (1 + std::exp(1.0))));
  }
  TEST_CASE("router: only the best groups, by their best score or by the sum of their two best") {
    Experts x{.count = 6, .per_token = 2, .hidden = 8, .groups = 3, .groups_per_token = 1};
    const std::vector<float> logits = {5, -9, /**/ 4, 4, /**/ 0, 1};
    CHECK(choice_of(x, logits).chosen == std::vector<int32_t>{0, 1});
    x.score = RouterScore::sigmoid;
    CHECK(choice_of(x, logits).chosen == std::vector<int32_t>{2, 3});
  }
  TEST_CASE("router: the choice and its gradient have no other token in them") {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (const ModelShape& shape : with_experts(kBase)) {
      const Experts& x = shape.experts;
      std::vector<float> logits(size_t(7 * x.count)), bias(size_t(x.count));
      for (float& logit : logits) logit = normal(random);
      for (float& b : bias) b = normal(random) / 4;
      const Choice all = choice_of(x, logits, bias.data());
      for (size_t row = 0; row < 7; ++row) {
        const auto at = logits.begin() + std::ptrdiff_t(row) * x.count;
        const Choice one = choice_of(x, std::vector<float>(at, at + x.count), bias.data());
        for (size_t j = 0; j < size_t(x.per_token); ++j) {
          CHECK(one.chosen[j] == all.chosen[row * size_t(x.per_token) + j]);
          CHECK(one.weights[j] == all.weights[row * size_t(x.per_token) + j]);
        }
      }
    }
  }

  // The gate: an expert's products always have arithmetic::kExpertRows rows, since not every product of
  // MKL gives a row the same bits with any number of rows. The table is in docs/models.md#which-products-keep-their-bits.
  TEST_CASE("gate of this process" * doctest::skip()) {
    using cpu::Bf16, cpu::Transpose;
    const auto measure = [](const char* name, auto products) {
      CAPTURE(name);
      const int64_t least = products.least_rows();
      std::printf(" %s %ld", name, least);
      CHECK(products.places_are_equal(arithmetic::kExpertRows));
    };
    for (const auto& [K, N] : {std::pair<int64_t, int64_t>{64, 96}, {352, 128}, {2048, 96}})
      for (const Transpose t : {Transpose::yes, Transpose::no}) {
        CAPTURE(K);
        std::printf("%s %ld -> %ld %s:", to_string(cpu::used_instructions()), K, N,
                    t == Transpose::yes ? "forward" : "backward");
        measure("fp32 packed", Products<float>(K, N, t, true));
        measure("fp32", Products<float>(K, N, t, false));
        measure("bf16", Products<Bf16>(K, N, t, false));
        std::printf("\n");
      }
  }
  TEST_CASE("gate: which products give a row the same bits with any number of rows") {
    for (const InstructionSet set : sets_of_host())
      for (const std::string& line : lines_with(set, "gate of this process"))
        MESSAGE("rows from which on the bits are the same, " << std::string(to_string(set)) << ", "
                                                             << line);
  }

  TEST_CASE("experts: BACKEND-4, a sample's bits do not depend on its neighbours") {
    for (const ModelShape& shape : with_experts(kBase))
      for (const DType precision : {DType::f32, DType::bf16}) {
        CAPTURE(options_text(shape));
        const TestModel m(shape, 3);
        TestModel other = m;
        const size_t row = size_t(shape.block_size) + 1;
        for (size_t i = row; i < other.tokens.size(); ++i)  // all samples but the first
          other.tokens[i] = int32_t((i * i + 7) % size_t(shape.vocab));
        const Outcome a = forward_of(m, precision), b = forward_of(other, precision);
        const size_t of_sample = size_t(shape.block_size * shape.vocab);
        CHECK(std::equal(a.logits.begin(), a.logits.begin() + std::ptrdiff_t(of_sample),
                         b.logits.begin()));
        CHECK(a.logits != b.logits);
      }
  }

  TEST_CASE("experts: those that no token chooses have a gradient of zero, and the load says so") {
    ModelShape shape = kBase;
    shape.experts = {.count = 40, .per_token = 1, .hidden = 8, .bias = true};
    shape = canonical(shape);
    TestModel m(shape, 1);
    for (size_t unit = 0; unit < m.units.size(); ++unit)  // experts 30 and above cannot win
      for (const Parameter& p : m.units[unit].parameters)
        if (p.name.ends_with("e_score_correction_bias"))
          for (size_t e = 0; e < p.count; ++e) m.params[unit][p.offset + e] = e < 30 ? 0 : -9;
    auto backend = must(make_cpu_backend(m.options()));
    const Outcome out = run_micro_batch(**backend, m, DType::f32);
    const auto load = (*backend)->router_counts(0);
    REQUIRE(load.size() == 3 * 41);
    int64_t close = 0;
    for (size_t layer = 0; layer < 3; ++layer) {
      const auto of_layer = load.subspan(layer * 41, 40);
      CHECK(std::accumulate(of_layer.begin(), of_layer.end(), int64_t{0}) == shape.block_size);
      CHECK(load[layer * 41 + 40] < shape.block_size);
      close += load[layer * 41 + 40];
      for (size_t e = 0; e < 40; ++e) {
        const auto grads = std::span(out.grads[unit_of_block(shape, int64_t(layer)) + 1])
                               .subspan(e * 3 * 8 * 48, 3 * 8 * 48);
        const bool zero = std::ranges::all_of(grads, [](float g) { return g == 0; });
        CHECK(zero == (of_layer[e] == 0));
        CHECK((e < 30 || of_layer[e] == 0));
      }
    }
    CHECK(close > 0);
  }

  TEST_CASE(
      "engine: a router's bias moves against the load of the global batch, and by no gradient") {
    const MakeBackend cpu = [](BackendOptions o) { return make_cpu_backend(o).take(); };
    // With four of four experts all have the mean.
    for (const auto& [shards, per_token] : {std::pair{1, 1}, {3, 1}, {1, 4}}) {
      const Experts experts{.count = 4, .per_token = per_token, .hidden = 8, .bias = true};
      EngineOptions options = engine_options(experts, 3, DType::f32, 1, false);
      options.router_bias_rate = 0.25f;
      World world(options, 1, shards, cpu);
      world.initialize();
      const StepResult step = world.train(1, 1).front();
      const std::vector<Unit> units = units_of(options.shape);
      for (size_t u = 0; u < units.size(); ++u)
        for (const Parameter& p : units[u].parameters) {
          if (!p.is_router_bias()) continue;
          const auto counts =
              counts_of(std::span(step.router_counts), options.shape, units[u].layer).first(4);
          const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
          const std::vector<float> whole = world.whole_unit(StateKind::params, u);
          const float* const bias = whole.data() + p.offset;
          for (size_t e = 0; e < 4; ++e) {
            const int64_t below = all - 4 * counts[e];
            CHECK(bias[e] == (below > 0 ? 0.25f : below < 0 ? -0.25f : 0.0f));
          }
        }
    }
  }

  TEST_CASE("experts: a token is sent once to each trainer that has some of its experts") {
    ModelShape shape = kBase;
    shape.experts = {.count = 8, .per_token = 3, .hidden = 64};
    const TestModel m(canonical(shape), 1);
    BackendOptions options = m.options();
    options.expert_shards = 2;
    auto backend = must(make_cpu_backend(options));
    const auto N = size_t(shape.block_size), C = size_t(shape.dim), rows = N * 3;
    std::vector<float> x(rows * C);
    std::vector<int32_t> token(rows), sent(2);
    (*backend)->embed(0, m.params[0].data(), m.tokens.data());
    (*backend)->forward_block(0, 0, m.params[unit_of_block(m.shape, 0)].data());
    (*backend)->send_tokens(0, 0, {.x = x.data(), .token = token.data()}, sent);
    const auto counts = (*backend)->router_counts(0);
    const auto of_first = size_t(std::accumulate(counts.begin(), counts.begin() + 4, int64_t{0}));
    size_t first = 0;
    for (const size_t trainer : {0, 1}) {
      const size_t end = trainer == 0 ? of_first : rows, all = size_t(sent[trainer]);
      CHECK(all <= N);
      std::set<std::vector<float>> different;
      for (size_t i = first; i < first + all; ++i)
        different.emplace(x.begin() + std::ptrdiff_t(i * C),
                          x.begin() + std::ptrdiff_t((i + 1) * C));
      CHECK(different.size() == all);
      CHECK(size_t(*std::max_element(token.begin() + std::ptrdiff_t(first),
                                     token.begin() + std::ptrdiff_t(end))) == all - 1);
      first = end;
    }
    CHECK(sent[0] + sent[1] < int32_t(rows));
    CHECK(sent[0] + sent[1] >= int32_t(N));
  }

  TEST_CASE("engine: BACKEND-4, with resident experts no other trainer's samples change a loss") {
    const Experts experts{.count = 8, .per_token = 2, .hidden = 32, .shared = 1};
    const MakeBackend cpu = [](BackendOptions o) { return make_cpu_backend(o).take(); };
    for (const DType precision : {DType::f32, DType::bf16}) {
      std::vector<float> alone;
      for (const int shards : {1, 2, 4})
        for (const uint64_t others : {10, 20}) {  // leaves of the other trainers
          EngineOptions options = engine_options(experts, 4, precision, 1, false);
          options.resident_experts = true;
          World world(options, 1, shards, cpu);
          world.initialize();
          std::vector<float> losses;
          world.each([&](Seat& seat) {
            const auto leaf = seat.shard == 0 ? 0 : others + static_cast<uint64_t>(seat.shard);
            const std::vector<int32_t> tokens = test_tokens(options, 1, leaf);
            for (int twice = 0; twice < 2; ++twice) {
              const auto of_targets = must(seat.engine->losses(tokens.data()));
              if (seat.shard == 0) losses.assign(of_targets->begin(), of_targets->end());
            }
          });
          if (alone.empty()) alone = losses;
          CHECK(losses == alone);
          CHECK((world.shard_wise[0]->started(0, "exchange") > 0) == (shards > 1));
        }
    }
  }

  TEST_CASE("engine: ENGINE-3, every layout and wave of a model with experts has the same bits") {
    const Experts plain{.count = 8, .per_token = 2, .hidden = 32};
    const Experts deep{.count = 4,
                       .per_token = 2,
                       .hidden = 64,
                       .shared = 1,
                       .dense_layers = 1,
                       .score = RouterScore::sigmoid,
                       .bias = true};
    const int leaves = 11;
    for (const DType precision : {DType::f32, DType::bf16})
      for (const Recompute recompute : {Recompute::nothing, Recompute::mlp, Recompute::block}) {
        const bool tied = recompute == Recompute::mlp, apart = recompute != Recompute::nothing;
        const Experts& experts = recompute == Recompute::nothing ? plain : deep;
        const MakeBackend cpu = [&](BackendOptions o) {
          o.recompute = recompute;
          o.router_balance_loss = 0.01f, o.router_z_loss = 0.001f;
          return make_cpu_backend(o).take();
        };
        std::string digest;
        std::vector<StepResult> steps;
        const int64_t tokens = leaves * 2 * test_shape(tied).block_size;
        for (const auto& [groups, shards, wave, resident] : {std::tuple{1, 1, 1, false},
                                                             {1, 2, 1, false},
                                                             {1, 3, 4, false},
                                                             {2, 1, 2, false},
                                                             {2, 2, 8, false},
                                                             {3, 1, 1, false},
                                                             {1, 2, 1, true},
                                                             {1, 2, 4, true},
                                                             {1, 4, 2, true},
                                                             {2, 2, 8, true},
                                                             {3, 4, 1, true}}) {
          INFO("groups = ", groups, ", shards = ", shards, ", wave = ", wave,
               ", resident = ", resident);
          EngineOptions options = engine_options(experts, leaves, precision, wave, tied);
          options.resident_experts = resident;
          REQUIRE(has_resident_experts(options, size_t(shards)) == resident);
          options.grad_clip = 0.1f;
          options.ema_decay = tied ? 0.9 : 0;
          if (recompute == Recompute::block) options.optimizer = Optimizer::muon;
          World world(options, groups, shards, cpu);
          world.documents = apart;
          world.initialize();
          const std::vector<StepResult> made = world.train(1, 3);
          if (digest.empty()) digest = world.digest(), steps = made;
          CHECK(std::isfinite(made.back().loss));
          CHECK(made.back().grad_norm > options.grad_clip);
          const ModelShape& shape = world.options.shape;
          const auto loads = expert_loads(made.back().router_counts, shape);
          CHECK(int64_t(loads.size()) == shape.layers - experts.dense_layers);
          for (const ExpertLoad& load : loads) {  // no token is dropped, and none is counted twice
            const auto of_layer =
                counts_of(std::span(made.back().router_counts), shape, load.layer);
            CHECK(std::accumulate(of_layer.begin(), of_layer.end() - 1, int64_t{0}) ==
                  tokens * experts.per_token);
          }
          CHECK(world.digest() == digest);
          for (size_t i = 0; i < steps.size(); ++i) {
            CHECK(made[i].loss == steps[i].loss);
            CHECK(made[i].grad_norm == steps[i].grad_norm);
            CHECK(made[i].router_counts == steps[i].router_counts);
          }
        }
      }
  }
}

}  // namespace simplescale::testing
