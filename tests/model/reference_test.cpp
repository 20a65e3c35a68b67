// Compares the whole model with PyTorch's autograd: loss, logits and every parameter's gradient.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/model/test_model.hpp"
#include "tests/paths.hpp"

namespace simplescale::testing {
namespace {

const std::string kPython = deps_dir() + "/python/bin/python";

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

void compare_with_torch(const TestModel& m, DType dtype, double tolerance) {
  namespace fs = std::filesystem;
  if (!fs::exists(kPython)) {
    MESSAGE("skipped: no Python with torch at " << kPython);
    return;
  }
  std::string name = (fs::temp_directory_path() / "simplescale-reference-XXXXXX").string();
  REQUIRE(mkdtemp(name.data()));
  const fs::path folder = name;
  for (const auto& flat : m.params) write_file(folder / "params.bin", flat);
  write_file(folder / "tokens.bin", m.tokens);
  const ModelShape& s = m.shape;
  const float scale = 0.25f;
  std::string command =
      kPython + " " + source_dir() + "/tests/model/reference.py " + name + " " + to_string(dtype);
  for (int64_t value : {int64_t(m.micro_batch_size), s.dim, s.hidden, s.layers, s.heads, s.kv_heads,
                        s.vocab, s.block_size, int64_t(s.tie_embeddings)})
    command += " " + std::to_string(value);
  REQUIRE(std::system((command + " " + std::to_string(scale)).c_str()) == 0);

  auto backend = make_cpu_backend(m.options(dtype, 2));
  REQUIRE(backend.ok());
  const Outcome ours = run_micro_batch(**backend, m, dtype, true, scale);
  const auto loss = read_file<double>(folder / "loss.bin");
  const auto logits = read_file<float>(folder / "logits.bin");
  const auto grads = read_file<float>(folder / "grads.bin");
  fs::remove_all(folder);

  CHECK(ours.loss == doctest::Approx(loss.at(0)).epsilon(tolerance));
  REQUIRE(logits.size() == ours.logits.size());
  CHECK(relative_error(ours.logits.data(), logits.data(), logits.size()) < tolerance);
  const float* theirs = grads.data();
  for (size_t u = 0; u < m.units.size(); ++u)
    for (const Parameter& p : m.units[u].parameters) {
      CAPTURE(p.name);
      CHECK(relative_error(ours.grads[u].data() + p.offset, theirs, p.count) < tolerance);
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
  TEST_CASE("backend: bf16 differs from torch's bf16 by rounding only") {
    compare_with_torch(TestModel(kGrouped, 3), DType::bf16, 0.08);
    ModelShape shape = kGrouped;
    shape.tie_embeddings = true;
    compare_with_torch(TestModel(shape, 2), DType::bf16, 0.08);
  }
}

}  // namespace simplescale::testing
