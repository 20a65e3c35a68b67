// Tests of the CPU backend by itself: finite differences, thread counts, activation checkpointing,
// bad options.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tests/model/test_model.hpp"
#include "tests/must.hpp"

namespace simplescale::testing {
namespace {

const ModelShape kTiny{
    .dim = 12, .hidden = 20, .layers = 2, .heads = 6, .kv_heads = 3, .vocab = 23, .block_size = 9};
const ModelShape kMicro{.dim = 128,
                        .hidden = 352,
                        .layers = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .vocab = 4096,
                        .block_size = 256};
const ModelShape kMini{.dim = 384,
                       .hidden = 1024,
                       .layers = 1,
                       .heads = 6,
                       .kv_heads = 2,
                       .vocab = 8192,
                       .block_size = 256};
const ModelShape kOdd{.dim = 30,
                      .hidden = 53,
                      .layers = 2,
                      .heads = 3,
                      .kv_heads = 1,
                      .vocab = 1031,
                      .block_size = 77};
// gate and up together are wider than the vocabulary: the largest product is a weight's gradient.
const ModelShape kNarrowVocab{
    .dim = 48, .hidden = 80, .layers = 2, .heads = 6, .kv_heads = 3, .vocab = 61, .block_size = 9};

Outcome run_with(const TestModel& m, BackendOptions options) {
  auto backend = must(make_cpu_backend(options));
  return run_micro_batch(**backend, m, options.precision);
}

void append(std::vector<ModelShape>& shapes, const std::vector<ModelShape>& more) {
  shapes.insert(shapes.end(), more.begin(), more.end());
}

/// d loss / d (m.params[unit][offset...] + x * direction) at x = 0, by central differences of
/// fourth order.
double slope_along(Backend& backend, TestModel& m, size_t unit, size_t offset,
                   const std::vector<float>& direction, double step) {
  const std::vector<float> kept = m.params[unit];
  auto loss_at = [&](double x) {
    for (size_t i = 0; i < direction.size(); ++i)
      m.params[unit][offset + i] = float(double{kept[offset + i]} + x * double{direction[i]});
    return run_micro_batch(backend, m, DType::f32, false).loss;
  };
  const double near = loss_at(step) - loss_at(-step), far = loss_at(2 * step) - loss_at(-2 * step);
  m.params[unit] = kept;
  return (8 * near - far) / (12 * step);
}

void check_same_bits(const Outcome& a, const Outcome& b) {
  CHECK(a.loss == b.loss);
  CHECK(a.logits == b.logits);
  REQUIRE(a.grads.size() == b.grads.size());
  for (size_t u = 0; u < a.grads.size(); ++u) {
    CAPTURE(u);
    CHECK(std::memcmp(a.grads[u].data(), b.grads[u].data(), a.grads[u].size() * 4) == 0);
  }
}

}  // namespace

TEST_SUITE("backend") {
  TEST_CASE("backend: every gradient equals central finite differences of the loss") {
    std::vector<ModelShape> shapes = with_options(kTiny);
    shapes.insert(shapes.end(), {kTiny, kTiny});
    shapes.back().tie_embeddings = true;
    append(shapes, with_all_experts(kTiny));
    for (size_t i = 0; i < 2 * shapes.size(); ++i) {
      const ModelShape& shape = shapes[i / 2];
      CAPTURE(options_text(shape));
      CAPTURE(i % 2);  // with documents and targets that are not trained
      TestModel m(shape, 2);
      if (i % 2 == 1) m = with_documents(m);
      auto backend = must(make_cpu_backend(m.options()));
      const float scale = 0.5f;
      const Outcome exact = run_micro_batch(**backend, m, DType::f32, true, scale);
      for (size_t u = 0; u < m.units.size(); ++u)
        for (const Parameter& p : m.units[u].parameters) {
          // The slope along the whole tensor's gradient is the gradient's norm, which is far above
          // fp32's rounding error.
          std::vector<float> direction(p.count);
          double square = 0;
          for (size_t i = 0; i < p.count; ++i) {
            direction[i] = exact.grads[u][p.offset + i];
            square += double{direction[i]} * double{direction[i]};
          }
          const double norm = std::sqrt(square);
          // A constant added to all keys changes no softmax, nor does a window of one token.
          // The router's bias changes choices only.
          const bool no_effect = p.name.ends_with("bias") || shape.sliding_window == 1;
          if (no_effect && norm < 1e-3) continue;
          REQUIRE(norm > 0);
          for (float& d : direction) d = float(double{d} / norm);
          CAPTURE(p.name);
          const bool bent = shape.experts.count > 0;  // three layers, and routers
          const double step = bent ? 1e-3 : 4e-3, tolerance = bent ? 4e-3 : 1e-3;
          const double slope = slope_along(**backend, m, u, p.offset, direction, step);
          CHECK(slope * double{scale} == doctest::Approx(norm).epsilon(tolerance));
        }
    }
  }

  TEST_CASE("backend: single elements' gradients equal finite differences") {
    TestModel m(kTiny, 1);
    auto backend = must(make_cpu_backend(m.options()));
    const Outcome exact = run_micro_batch(**backend, m, DType::f32);
    for (size_t u = 0; u < m.units.size(); ++u)
      for (const Parameter& p : m.units[u].parameters)
        for (size_t i : {p.offset, p.offset + p.count / 2, p.offset + p.count - 1}) {
          const double slope = slope_along(**backend, m, u, i, {1.0f}, 8e-3);
          CAPTURE(p.name);
          CHECK(std::abs(slope - double{exact.grads[u][i]}) < 5e-4);
        }
  }

  TEST_CASE("backend: micro-batches that pass each unit together have the bits of each alone") {
    std::vector<ModelShape> shapes = with_options(kTiny);
    shapes.push_back(kTiny);
    shapes.back().tie_embeddings = true;
    append(shapes, with_experts(kTiny));
    for (const ModelShape& shape : shapes)
      for (const DType dtype : {DType::f32, DType::bf16})
        for (const Recompute recompute : {Recompute::nothing, Recompute::block, Recompute::mlp}) {
          INFO("options_text(shape) = ", options_text(shape),
               ", recompute = ", static_cast<int>(recompute));
          const TestModel m(shape, 2);
          BackendOptions options = m.options(dtype);
          options.recompute = recompute;
          const auto [alone, together] = alone_and_together(
              [](const BackendOptions& o) { return must(make_cpu_backend(o)).take(); }, options, m);
          for (size_t i = 0; i < alone.size(); ++i) check_same_bits(alone[i], together[i]);
        }
  }

  TEST_CASE("backend: what is packed for a frame serves the same pass of the next frames only") {
    const TestModel m(kMicro, 2), other(kMicro, 2, 9);
    BackendOptions options = m.options();
    options.frames = 2;
    options.training = false;
    const auto backend = must(make_cpu_backend(options)).take();
    const auto logits = [&](Backend& of, int frame) {
      std::vector<float> values(2 * static_cast<size_t>(kMicro.block_size * kMicro.vocab));
      of.logits(frame, m.params.back().data(), nullptr, values.data());
      return values;
    };
    // One buffer for all blocks, as while they are gathered.
    std::vector<float> block(m.params[1].size());
    const auto forward = [&](Backend& of, int frame, int layer, const TestModel& from) {
      block = from.params[static_cast<size_t>(layer) + 1];
      of.forward_block(frame, layer, block.data());
    };
    const auto expected = [&](const TestModel& last) {
      const auto alone = must(make_cpu_backend(options)).take();
      alone->embed(0, m.params[0].data(), m.tokens.data());
      for (int layer = 0; layer + 1 < kMicro.layers; ++layer) forward(*alone, 0, layer, m);
      forward(*alone, 0, static_cast<int>(kMicro.layers) - 1, last);
      return logits(*alone, 0);
    };
    const int last = static_cast<int>(kMicro.layers) - 1;
    for (const int frame : {0, 1}) backend->embed(frame, m.params[0].data(), m.tokens.data());
    for (int layer = 0; layer < last; ++layer) forward(*backend, 0, layer, m);
    for (int layer = 0; layer < last; ++layer) forward(*backend, 1, layer, m);  // a later frame
    for (const TestModel* of : {&m, &other, &m}) {  // the same pass of the same frame
      forward(*backend, 0, last, *of);
      forward(*backend, 0, last, *of);
    }
    forward(*backend, 1, last, m);
    CHECK(logits(*backend, 0) == expected(m));
    CHECK(logits(*backend, 1) == expected(m));
    forward(*backend, 0, last, other);
    CHECK(logits(*backend, 0) == expected(other));
  }

  TEST_CASE("backend: BACKEND-1, bits do not depend on the number of threads") {
    std::vector<ModelShape> shapes = with_options(kOdd);
    shapes.insert(shapes.end(), {kMicro, kMini, kOdd, kNarrowVocab});
    append(shapes, with_experts(kOdd));
    for (const ModelShape& shape : shapes)
      for (DType dtype : {DType::f32, DType::bf16}) {
        const TestModel m(shape, shape == kOdd ? 5 : 4);
        INFO("shape.dim = ", shape.dim, ", options_text(shape) = ", options_text(shape),
             ", std::string(to_string(dtype)) = ", std::string(to_string(dtype)));
        const Outcome one = run_with(m, m.options(dtype, 1));
        CHECK(std::isfinite(one.loss));
        check_same_bits(one, run_with(m, m.options(dtype, 2)));
        check_same_bits(one, run_with(m, m.options(dtype, 3)));
        const TestModel apart = with_documents(m);
        check_same_bits(run_with(apart, m.options(dtype, 1)), run_with(apart, m.options(dtype, 3)));
        if (shape.experts.count > 0) continue;  // not in fp8
        BackendOptions fp8 = m.options(dtype, 1);
        fp8.fp8 = true;
        const Outcome rounded = run_with(m, fp8);
        CHECK(rounded.loss != one.loss);
        fp8.threads = 3;
        check_same_bits(rounded, run_with(m, fp8));
      }
  }

  TEST_CASE("backend: a sample's logits do not depend on its place in the micro-batch") {
    TestModel m(kOdd, 4);
    const size_t row = size_t(kOdd.block_size + 1), size = size_t(kOdd.block_size * kOdd.vocab);
    std::copy_n(m.tokens.begin(), row, m.tokens.begin() + 3 * std::ptrdiff_t(row));
    const Outcome out = run_with(m, m.options());
    double worst = 0;
    for (size_t i = 0; i < size; ++i)
      worst = std::max(worst, std::abs(double{out.logits[i]} - double{out.logits[3 * size + i]}));
    CHECK(worst < 1e-5);
  }

  TEST_CASE("backend: a document gives the logits that it gives as a sample of its own") {
    const std::vector<int64_t> lengths = {1, 64, 3, 2, 7};  // of block_size 77 tokens
    const TestModel plain(kOdd, 1);
    TestModel m = plain;
    for (int64_t row = 0, i = 0; i < 5; row += lengths[size_t(i++)])
      m.tokens[size_t(row)] |= kBeginsDocument;
    const std::vector<float> all = run_with(m, m.options()).logits;
    int64_t row = 0;
    for (const int64_t length : lengths) {
      CAPTURE(row);
      TestModel own = plain;  // the document first, then other tokens
      std::copy_n(plain.tokens.begin() + row, length, own.tokens.begin());
      const std::vector<float> alone = run_with(own, own.options()).logits;
      double worst = 0;
      for (int64_t i = 0; i < length * kOdd.vocab; ++i)
        worst = std::max(
            worst, std::abs(double{all[size_t(row * kOdd.vocab + i)]} - double{alone[size_t(i)]}));
      CHECK(worst < 1e-5);
      row += length;
    }
    CHECK(row == kOdd.block_size);
    const std::vector<float> whole = run_with(plain, m.options()).logits;
    CHECK(std::abs(whole.back() - all.back()) > 1e-3f);  // without documents it is another model
  }

  TEST_CASE("backend: marks that separate nothing change no bit") {
    TestModel m(kMicro, 2);
    const Outcome plain = run_with(m, m.options(DType::bf16));
    m.tokens[0] |= kBeginsDocument | kNotTrained;  // a sample begins a document, and is no target
    m.tokens[size_t(kMicro.block_size)] |= kBeginsDocument;  // only a target
    check_same_bits(plain, run_with(m, m.options(DType::bf16)));
  }

  TEST_CASE("backend: targets that are not trained add nothing to the loss") {
    TestModel m(kTiny, 1);
    for (int32_t& token : m.tokens) token |= kNotTrained;
    CHECK(trained_targets(m.tokens.data(), 1, kTiny.block_size) == 0);
    const Outcome none = run_with(m, m.options());
    CHECK(none.loss == 0);
    for (const auto& grad : none.grads)
      CHECK(std::ranges::all_of(grad, [](float g) { return g == 0; }));
    double sum = 0;
    for (int64_t t = 1; t <= kTiny.block_size; ++t) {
      TestModel one = m;
      one.tokens[size_t(t)] &= ~kNotTrained;
      CHECK(trained_targets(one.tokens.data(), 1, kTiny.block_size) == 1);
      sum += run_with(one, one.options()).loss;
    }
    CHECK(run_with(TestModel(kTiny, 1), m.options()).loss == doctest::Approx(sum).epsilon(1e-6));
  }

  TEST_CASE("backend: the loss of each target is -log p of the token; 0 if it is not trained") {
    for (const DType precision : {DType::f32, DType::bf16}) {
      const TestModel m = with_documents(TestModel(kOdd, 2));
      const Outcome out = run_with(m, m.options(precision));
      const std::vector<float>& losses = out.losses;
      const auto N = size_t(2 * kOdd.block_size), V = size_t(kOdd.vocab);
      REQUIRE(losses.size() == N);
      double mean = 0, worst = 0;
      for (size_t i = 0; i < N; ++i) {
        const size_t T = size_t(kOdd.block_size);
        const int32_t target = m.tokens[i / T * (T + 1) + i % T + 1];
        mean += losses[i] / double(N);
        double sum = 0;
        for (size_t v = 0; v < V; ++v) sum += std::exp(double{out.logits[i * V + v]});
        const double expected = std::log(sum) - out.logits[i * V + size_t(token_id(target))];
        if (target & kNotTrained)
          CHECK(losses[i] == 0);
        else
          worst = std::max(worst, std::abs(losses[i] - expected));
      }
      CHECK(worst < (precision == DType::f32 ? 1e-5 : 3e-2));
      CHECK(mean == doctest::Approx(out.loss).epsilon(1e-6));
    }
  }

  TEST_CASE("backend: activation checkpointing gives the same bits") {
    std::vector<ModelShape> shapes = with_options(kOdd);
    shapes.push_back(kOdd);
    append(shapes, with_experts(kOdd));
    for (const ModelShape& shape : shapes)
      for (DType dtype : {DType::f32, DType::bf16}) {
        CAPTURE(options_text(shape));
        const TestModel m(shape, 3);
        BackendOptions options = m.options(dtype, 2);
        options.fp8 = shape.norm == NormPlacement::post || shape == kOdd;
        const Outcome kept = run_with(m, options);
        const TestModel apart = with_documents(m);
        const Outcome kept_apart = run_with(apart, options);
        for (const Recompute recompute : {Recompute::block, Recompute::mlp}) {
          options.recompute = recompute;
          check_same_bits(kept, run_with(m, options));
          check_same_bits(kept_apart, run_with(apart, options));
        }
      }
  }

  TEST_CASE("backend: inference needs no activations and gives the same logits and loss") {
    const TestModel m(kOdd, 2);
    const Outcome trained = run_with(m, m.options());
    BackendOptions options = m.options();
    options.training = false;
    auto backend = must(make_cpu_backend(options));
    const Outcome out = run_micro_batch(**backend, m, DType::f32, false);
    CHECK(out.logits == trained.logits);
    CHECK(out.loss == trained.loss);
  }

  TEST_CASE("backend: a micro-batch does not depend on earlier ones") {
    const TestModel a(kOdd, 2, 1), b(kOdd, 2, 2);
    auto backend = must(make_cpu_backend(a.options(DType::bf16)));
    const Outcome fresh = run_micro_batch(**backend, a, DType::bf16);
    run_micro_batch(**backend, b, DType::bf16);
    check_same_bits(fresh, run_micro_batch(**backend, a, DType::bf16));
  }

  TEST_CASE("backend: adamw takes rate and decay from its runs and corrects the moments' bias") {
    TestModel m(kTiny, 1);
    auto backend = must(make_cpu_backend(m.options(DType::f32, 2)));
    const size_t count = 70000;  // more than one task
    std::vector<float> p(count), avg(count), sq(count), gradient(count), to_p(count), to_avg(count),
        to_sq(count);
    for (size_t i = 0; i < count; ++i) {
      p[i] = float(i % 17) - 8;
      avg[i] = float(i % 5) - 2;
      sq[i] = float(i % 7) + 1;
      gradient[i] = float(i % 11) - 5;
    }
    const ParameterRun runs[] = {{0, 66000, 1, 0.1f}, {66000, 4000, 0.5f}};
    const AdamW o{.learning_rate = 0.01f, .gradient_scale = 0.5f, .step = 3};
    (*backend)->adamw(o, runs, gradient.data(), p.data(), avg.data(), sq.data(), to_p.data(),
                      to_avg.data(), to_sq.data(), nullptr);
    double worst = 0;
    for (size_t i = 0; i < count; ++i) {
      const double g = double{gradient[i]} * 0.5;
      const double a = 0.9 * double{avg[i]} + 0.1 * g, v = 0.95 * double{sq[i]} + 0.05 * g * g;
      const double update =
          a / (1 - std::pow(0.9, 3)) / (std::sqrt(v / (1 - std::pow(0.95, 3))) + 1e-8) +
          (i < 66000 ? 0.1 : 0.0) * double{p[i]};
      const double rate = i < 66000 ? 0.01 : 0.005;
      worst = std::max({worst, std::abs(double{to_p[i]} - (double{p[i]} - rate * update)),
                        std::abs(double{to_avg[i]} - a), std::abs(double{to_sq[i]} - v)});
    }
    CHECK(worst < 1e-5);
    (*backend)->adamw(o, runs, gradient.data(), p.data(), avg.data(), sq.data(), p.data(),
                      avg.data(), sq.data(), nullptr);
    CHECK(p == to_p);  // the same in place
    for (const DType dtype : {DType::f32, DType::bf16}) {
      auto narrow = must(make_cpu_backend(m.options(dtype, 2)));
      std::vector<unsigned char> rounded(count * bytes_of(dtype)), expected(rounded.size());
      (*narrow)->adamw(o, runs, gradient.data(), p.data(), avg.data(), sq.data(), to_p.data(),
                       to_avg.data(), to_sq.data(), rounded.data());
      (*narrow)->cast(to_p.data(), expected.data(), count);
      CHECK(rounded == expected);
    }
  }

  TEST_CASE("backend: impossible options are errors") {
    TestModel m(kTiny, 1);
    BackendOptions options = m.options();
    options.threads = 0;
    CHECK(make_cpu_backend(options).status().code() == Code::bad_config);
    options = m.options();
    options.micro_batch_size = 0;
    CHECK(make_cpu_backend(options).status().code() == Code::bad_config);
    options = m.options();
    options.shape.heads = 5;
    CHECK(make_cpu_backend(options).status().code() == Code::bad_config);
  }

  TEST_CASE("backend: memory is zeroed and aligned") {
    TestModel m(kTiny, 1);
    auto backend = must(make_cpu_backend(m.options()));
    for (size_t bytes : {size_t{1}, size_t{5000}, size_t{5} << 20}) {
      auto memory = must((*backend)->allocate(bytes));
      CHECK(reinterpret_cast<uintptr_t>(*memory) % 64 == 0);
      auto* values = static_cast<unsigned char*>(*memory);
      CHECK(std::all_of(values, values + bytes, [](unsigned char v) { return v == 0; }));
    }
  }
}

}  // namespace simplescale::testing
