// Compares the whole model with PyTorch's autograd: loss, logits and every parameter's gradient.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/model/test_model.hpp"
#include "tests/must.hpp"
#include "tests/paths.hpp"
#include "tests/python.hpp"
#include "tests/temp_folder.hpp"

namespace simplescale::testing {
namespace {

template <class E>
void write_file(const std::filesystem::path& path, const std::vector<E>& values) {
  std::ofstream(path, std::ios::binary | std::ios::app)
      .write(reinterpret_cast<const char*>(values.data()),
             std::streamsize(values.size() * sizeof(E)));
}

template <class E>
std::vector<E> read_file(const std::filesystem::path& path) {
  std::vector<E> values(std::filesystem::file_size(path) / sizeof(E));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(values.data()), std::streamsize(values.size() * sizeof(E)));
  return values;
}

/// |a - b| / |b| over `count` values.
double relative_error(const float* a, const float* b, size_t count) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < count; ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / std::max(norm, 1e-60));
}

void compare_with_torch(const TestModel& m, DType dtype, double tolerance, float z_loss = 0,
                        bool fp8 = false, float router_z_loss = 0, float router_balance_loss = 0,
                        Recompute recompute = Recompute::nothing) {
  test::Python* const python = test::Python::with({"torch", "numpy"});
  if (!python) return skipped("no Python with torch");
  const test::TempFolder made;
  const std::filesystem::path folder = made.path;
  for (const auto& flat : m.params) write_file(folder / "params.bin", flat);
  write_file(folder / "tokens.bin", m.tokens);
  const ModelShape& s = m.shape;
  const float scale = 0.25f;
  std::ostringstream settings;
  settings << R"({"dtype":")" << to_string(dtype) << R"(","B":)" << m.micro_batch_size
           << R"(,"scale":)" << scale << R"(,"z_loss":)" << z_loss << R"(,"fp8":)" << fp8
           << R"(,"dim":)" << s.dim << R"(,"hidden":)" << s.hidden << R"(,"layers":)" << s.layers
           << R"(,"heads":)" << s.heads << R"(,"kv_heads":)" << s.kv_heads << R"(,"vocab":)"
           << s.vocab << R"(,"block_size":)" << s.block_size << R"(,"rope_theta":)" << s.rope_theta
           << R"(,"tie_embeddings":)" << s.tie_embeddings << R"(,"head_dim":)" << s.head_dim()
           << R"(,"qkv_bias":)" << s.qkv_bias << R"(,"qk_norm":")" << to_string(s.qk_norm)
           << R"(","norm":")" << to_string(s.norm) << R"(","sliding_window":)" << s.sliding_window
           << R"(,"rope_scaling":")" << to_string(s.rope_scaling.kind) << R"(","rope_factor":)"
           << s.rope_scaling.factor << R"(,"router_z_loss":)" << router_z_loss
           << R"(,"router_balance_loss":)" << router_balance_loss << R"(,"experts":)"
           << experts_json(s.experts) << R"(,"rope_low_factor":)" << s.rope_scaling.low_factor
           << R"(,"rope_high_factor":)" << s.rope_scaling.high_factor
           << R"(,"rope_original_block_size":)" << s.rope_scaling.original_block_size << "}";
  REQUIRE_MESSAGE(python->run(source_dir() + "/tests/model/reference.py", made.path,
                              folder / "output", {made.path, settings.str()}) == 0,
                  test::contents(folder / "output"));

  BackendOptions options = m.options(dtype, 2);
  options.z_loss = z_loss;
  options.fp8 = fp8;
  options.router_z_loss = router_z_loss;
  options.router_balance_loss = router_balance_loss;
  options.recompute = recompute;
  auto backend = must(make_cpu_backend(options));
  const Outcome ours = run_micro_batch(**backend, m, dtype, true, scale);
  const auto loss = read_file<double>(folder / "loss.bin");
  const auto logits = read_file<float>(folder / "logits.bin");
  const auto grads = read_file<float>(folder / "grads.bin");

  CHECK(ours.loss == doctest::Approx(loss.at(0)).epsilon(tolerance));
  REQUIRE(logits.size() == ours.logits.size());
  CHECK(relative_error(ours.logits.data(), logits.data(), logits.size()) < tolerance);
  const float* theirs = grads.data();
  for (size_t u = 0; u < m.units.size(); ++u)
    for (const Parameter& p : m.units[u].parameters) {
      CAPTURE(p.name);
      // A bias of all keys changes no softmax, nor does anything with a window of one token: such
      // gradients are rounding errors.
      const bool no_effect = p.name.ends_with("k_proj.bias") || s.sliding_window == 1;
      const float* const our = ours.grads[u].data() + p.offset;
      const bool tiny =
          std::all_of(our, our + p.count, [](float g) { return std::abs(g) < 1e-3f; });
      if (!no_effect || !tiny) CHECK(relative_error(our, theirs, p.count) < tolerance);
      theirs += p.count;
    }
  CHECK(theirs == grads.data() + grads.size());
}

const ModelShape kGrouped{.dim = 48,
                          .hidden = 80,
                          .layers = 3,
                          .heads = 6,
                          .kv_heads = 2,
                          .vocab = 101,
                          .block_size = 37};

}  // namespace

TEST_SUITE("reference") {
  TEST_CASE("backend: fp32 loss, logits and gradients equal torch's, grouped queries, odd sizes") {
    compare_with_torch(TestModel(kGrouped, 3), DType::f32, 1e-5);
  }
  TEST_CASE("backend: fp32 with tied embeddings equals torch") {
    ModelShape shape = kGrouped;
    shape.tie_embeddings = true;
    compare_with_torch(TestModel(shape, 2), DType::f32, 1e-5);
  }
  TEST_CASE("backend: z-loss changes the gradient as torch's autograd does, and not the loss") {
    ModelShape shape = kGrouped;
    for (const bool tied : {false, true}) {
      shape.tie_embeddings = tied;
      compare_with_torch(TestModel(shape, 3), DType::f32, 1e-5, 0.01f);
      compare_with_torch(TestModel(shape, 3), DType::bf16, 0.08, 0.01f);
    }
  }
  TEST_CASE("backend: products in fp8 equal those of torch's fp8 values, with torch's gradients") {
    // Several blocks of 128 along every side, and parts of blocks. A value on the edge between two
    // of fp8 is rounded to the other one here and there, which each further product multiplies: so
    // one layer, whose branches are small beside the residual stream. Without fp8, gradients of
    // matrices differ from these by 0.08 to 0.13.
    const ModelShape shape{.dim = 160,
                           .hidden = 200,
                           .layers = 1,
                           .heads = 5,
                           .kv_heads = 1,
                           .vocab = 101,
                           .block_size = 150};
    TestModel m(shape, 2);
    for (const Parameter& p : m.units[1].parameters)
      if (p.name.ends_with("o_proj.weight") || p.name.ends_with("down_proj.weight"))
        for (size_t i = 0; i < p.count; ++i) m.params[1][p.offset + i] *= 0.01f;
    compare_with_torch(m, DType::f32, 0.04, 0, true);
  }
  TEST_CASE("backend: fp32 with several row chunks and query blocks equals torch") {
    compare_with_torch(TestModel({.dim = 64,
                                  .hidden = 176,
                                  .layers = 2,
                                  .heads = 2,
                                  .kv_heads = 2,
                                  .vocab = 300,
                                  .block_size = 150},
                                 3),
                       DType::f32, 1e-5);
  }
  TEST_CASE("backend: every option of a block equals torch, fp32") {
    for (const ModelShape& shape : with_options(kGrouped)) {
      CAPTURE(options_text(shape));
      compare_with_torch(TestModel(shape, 2), DType::f32, 2e-5);
    }
  }
  TEST_CASE("backend: experts equal torch, with each way of recomputing them, fp32") {
    for (const ModelShape& shape : with_experts(kGrouped)) {
      CAPTURE(options_text(shape));
      for (const Recompute recompute : {Recompute::nothing, Recompute::mlp, Recompute::block})
        compare_with_torch(TestModel(shape, 3), DType::f32, 2e-5, 0, false, 0, 0, recompute);
    }
  }
  TEST_CASE("backend: a token may pass more experts than the model is wide") {
    ModelShape shape = kGrouped;
    shape.experts = {.count = 60, .per_token = 55, .hidden = 8};
    compare_with_torch(TestModel(canonical(shape), 1), DType::f32, 2e-5);
  }
  TEST_CASE("backend: the routers' own losses have torch's gradients, and change no loss") {
    for (const ModelShape& shape : with_experts(kGrouped)) {
      CAPTURE(options_text(shape));
      compare_with_torch(TestModel(shape, 2), DType::f32, 2e-5, 0, false, 0.1f, 0);
      compare_with_torch(TestModel(shape, 2), DType::f32, 2e-5, 0, false, 0, 0.5f);
    }
  }
  TEST_CASE("backend: bf16 experts differ from torch's by rounding only") {
    // Rounding would change a choice here and there.
    for (const ModelShape& shape : with_all_experts(kGrouped)) {
      CAPTURE(options_text(shape));
      compare_with_torch(TestModel(shape, 2), DType::bf16, 0.12);
    }
  }
  TEST_CASE("backend: windows that begin and end in several query blocks equal torch") {
    for (const int64_t window : {30, 64, 65, 100}) {
      ModelShape shape = kGrouped;
      shape.block_size = 150, shape.layers = 2, shape.sliding_window = window;
      compare_with_torch(TestModel(shape, 2), DType::f32, 1e-5);
    }
  }
  TEST_CASE("backend: documents equal torch with an explicit mask and positions from 0, fp32") {
    std::vector<ModelShape> shapes = with_options(kGrouped);
    shapes.push_back(kGrouped);
    for (const ModelShape& shape : shapes) {
      CAPTURE(options_text(shape));
      compare_with_torch(with_documents(TestModel(shape, 3)), DType::f32, 2e-5);
    }
  }
  TEST_CASE("backend: documents and loss masks with experts equal torch, fp32") {
    for (const ModelShape& shape : with_experts(kGrouped)) {
      CAPTURE(options_text(shape));
      compare_with_torch(with_documents(TestModel(shape, 3)), DType::f32, 2e-5, 0, false, 0.1f,
                         0.5f);
    }
  }
  TEST_CASE("backend: documents of several query blocks equal torch, with and without a window") {
    for (const int64_t window : {0, 65}) {
      ModelShape shape = kGrouped;
      shape.block_size = 300, shape.layers = 2, shape.sliding_window = window;
      TestModel m(shape, 2);
      for (const size_t row : {5u, 70u, 200u, 201u, 301u + 150u, 301u + 299u})
        m.tokens[row] |= kBeginsDocument | kNotTrained;
      compare_with_torch(m, DType::f32, 2e-5);
      compare_with_torch(m, DType::bf16, 0.12);
    }
  }
  TEST_CASE("backend: bf16 with the options of families differs from torch's by rounding only") {
    for (const ModelShape& shape : with_options(kGrouped)) {
      if (shape.sliding_window == 1) continue;  // most gradients of q and k are zero
      CAPTURE(options_text(shape));
      compare_with_torch(TestModel(shape, 2), DType::bf16, 0.12);
    }
  }
  TEST_CASE("backend: bf16 differs from torch's bf16 by rounding only") {
    compare_with_torch(TestModel(kGrouped, 3), DType::bf16, 0.08);
    ModelShape shape = kGrouped;
    shape.tie_embeddings = true;
    compare_with_torch(TestModel(shape, 2), DType::bf16, 0.08);
  }
}

}  // namespace simplescale::testing
