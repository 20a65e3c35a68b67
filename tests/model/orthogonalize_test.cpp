// Tests of Backend::orthogonalize() on the CPU, the products of Muon's update.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/model/test_model.hpp"
#include "tests/must.hpp"

namespace simplescale::testing {
namespace {

std::vector<double> random_matrix(std::mt19937& random, int64_t rows, int64_t columns,
                                  double deviation = 1) {
  std::normal_distribution<double> normal(0, deviation);
  std::vector<double> values(size_t(rows * columns));
  for (double& value : values) value = normal(random);
  return values;
}

/// What the backend makes of a matrix, for a model that has matrices of its size.
std::vector<float> orthogonalized(int64_t rows, int64_t columns, const std::vector<double>& values,
                                  DType dtype, int threads = 1) {
  const ModelShape shape{.dim = std::min(rows, columns) + std::min(rows, columns) % 2,
                         .hidden = std::max(rows, columns),
                         .layers = 1,
                         .heads = 1,
                         .kv_heads = 1,
                         .vocab = 50,
                         .block_size = 8};
  const TestModel m(shape, 1);
  BackendOptions options = m.options(dtype, threads);
  options.muon = true;
  auto backend = must(make_cpu_backend(options));
  std::vector<unsigned char> bytes =
      encode(std::vector<float>(values.begin(), values.end()), dtype);
  (*backend)->orthogonalize(rows, columns, bytes.data());
  return decode(bytes, dtype);
}

/// (m, n) = (m, k) (k, n), row-major.
std::vector<double> product64(const std::vector<double>& a, const std::vector<double>& b,
                              int64_t k) {
  const auto m = int64_t(a.size()) / k, n = int64_t(b.size()) / k;
  std::vector<double> c(size_t(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t l = 0; l < k; ++l)
      for (int64_t j = 0; j < n; ++j)
        c[size_t(i * n + j)] += a[size_t(i * k + l)] * b[size_t(l * n + j)];
  return c;
}

/// Five steps X = a X + (b A + c A^2) X with A = X X^T of a plain Muon.
std::vector<double> newton_schulz64(int64_t rows, int64_t columns, std::vector<double> x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  for (double& value : x) value /= std::sqrt(sum) + 1e-7;
  for (int step = 0; step < 5; ++step) {
    std::vector<double> transposed(x.size());
    for (int64_t i = 0; i < rows * columns; ++i)
      transposed[size_t(i % columns * rows + i / columns)] = x[size_t(i)];
    std::vector<double> a = product64(x, transposed, columns);
    const std::vector<double> square = product64(a, a, rows);
    for (size_t i = 0; i < a.size(); ++i) a[i] = -4.7750 * a[i] + 2.0315 * square[i];
    const std::vector<double> moved = product64(a, x, rows);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + moved[i];
  }
  return x;
}

/// By power iteration, which never exceeds it.
double largest_singular_value(int64_t columns, const std::vector<double>& x) {
  std::vector<double> v(size_t(columns), 1);
  double norm = 0;
  for (int step = 0; step < 50; ++step) {
    const std::vector<double> moved = product64(x, v, columns);
    v = product64(moved, x, int64_t(moved.size()));
    norm = 0;
    for (const double value : v) norm += value * value;
    norm = std::sqrt(norm);
    for (double& value : v) value /= norm;
  }
  return std::sqrt(norm);
}

}  // namespace

TEST_SUITE("backend") {
  TEST_CASE(
      "backend: orthogonalize brings all singular values near one, with the same bits for "
      "any number of threads") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const auto& [rows, columns] :
           {std::pair<int64_t, int64_t>{150, 150}, {330, 150}, {150, 330}, {50, 150}}) {
        INFO("rows = ", rows, ", columns = ", columns);
        std::mt19937 random(3);
        const std::vector<double> values = random_matrix(random, rows, columns, 1e-3);
        const std::vector<float> x = orthogonalized(rows, columns, values, dtype, 1);
        CHECK(x == orthogonalized(rows, columns, values, dtype, 3));
        // The Gram matrix of the shorter side has the squared singular values: its trace is their
        // sum, and the largest is at most its largest row sum of absolute values.
        const int64_t side = std::min(rows, columns), length = std::max(rows, columns);
        const auto at = [&](int64_t s, int64_t l) {
          return double{x[size_t(rows > columns ? l * columns + s : s * columns + l)]};
        };
        double trace = 0, squares = 0;
        for (int64_t i = 0; i < side; ++i)
          for (int64_t j = 0; j < side; ++j) {
            double dot = 0;
            for (int64_t k = 0; k < length; ++k) dot += at(i, k) * at(j, k);
            if (i == j) trace += dot;
            squares += dot * dot;  // the sum of the fourth powers of the singular values
          }
        CHECK(trace / double(side) > 0.6);
        CHECK(trace / double(side) < 1.3);
        CHECK(squares / double(side) < 1.6);
      }
  }

  TEST_CASE("backend: orthogonalize follows five Newton-Schulz steps in float64") {
    std::mt19937 random(5);
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{150, 150}, {330, 150}, {150, 330}, {50, 150}}) {
      std::vector<double> decaying = random_matrix(random, rows, columns);  // rows from 1 to 1e-6
      for (int64_t i = 0; i < rows * columns; ++i)
        decaying[size_t(i)] *= std::pow(1e-6, double(i / columns) / double(rows));
      struct Case {
        const char* name;
        std::vector<double> values;
        double f32, bf16;  // bounds of the relative error
      };
      // In bf16 the rounded input itself has directions that a matrix of low rank lacks.
      const Case cases[] = {
          {"random", random_matrix(random, rows, columns), 2e-5, 0.04},
          {"ill-conditioned", decaying, 1e-4, 0.2},
          {"rank 4",
           product64(random_matrix(random, rows, 4), random_matrix(random, 4, columns), 4), 1e-3,
           1},
          {"ones", std::vector<double>(size_t(rows * columns), 1), 1e-3, 0.3},
          {"zero", std::vector<double>(size_t(rows * columns), 0), 0, 0},
      };
      for (const Case& c : cases) {
        const std::vector<double> expected = newton_schulz64(rows, columns, c.values);
        for (const DType dtype : {DType::f32, DType::bf16}) {
          INFO("rows = ", rows, ", columns = ", columns, ", c.name = ", c.name,
               ", std::string(to_string(dtype)) = ", std::string(to_string(dtype)));
          const std::vector<float> ours = orthogonalized(rows, columns, c.values, dtype);
          double error = 0, norm = 0;
          for (size_t i = 0; i < ours.size(); ++i) {
            error += std::pow(double{ours[i]} - expected[i], 2);
            norm += expected[i] * expected[i];
          }
          CHECK(std::sqrt(error) <= (dtype == DType::f32 ? c.f32 : c.bf16) * std::sqrt(norm));
        }
      }
    }
  }

  TEST_CASE("backend: orthogonalize diverges for no concentrated matrix") {
    std::mt19937 random(7);
    std::normal_distribution<double> normal(0, 1);
    const auto check = [&](int64_t rows, int64_t columns, const std::vector<double>& values) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        CAPTURE(std::string(to_string(dtype)));
        const std::vector<float> ours = orthogonalized(rows, columns, values, dtype);
        CHECK(largest_singular_value(columns, {ours.begin(), ours.end()}) < 1.5);
      }
    };
    for (int i = 0; i < 80; ++i) {  // two directions in 2 to 4 rows, one 20 times the other
      CAPTURE(i);
      constexpr int64_t kSide = 64;
      std::vector<double> values(kSide * kSide);
      for (const double size : {1.0, 0.05}) {
        std::vector<double> left(kSide), right = random_matrix(random, kSide, 1);
        std::generate_n(left.begin() + i % 60, 2 + i % 3, [&] { return normal(random); });
        const std::vector<double> direction = product64(left, right, 1);
        for (size_t j = 0; j < values.size(); ++j) values[j] += size * direction[j];
      }
      check(kSide, kSide, values);
    }
    for (int i = 0; i < 20; ++i) {  // a gradient: 4 channels of the inputs are large together
      CAPTURE(i);
      constexpr int64_t kTokens = 256, kRows = 128, kColumns = 192;
      std::vector<double> inputs = random_matrix(random, kRows, kTokens);
      for (int64_t t = 0; t < kTokens; ++t) {
        const double shared = normal(random);
        for (const int64_t c : {0, 1, 2, 3})
          inputs[size_t((c * 31 + i) * kTokens + t)] += 100 * (shared + 0.1 * normal(random));
      }
      check(kRows, kColumns, product64(inputs, random_matrix(random, kTokens, kColumns), kTokens));
    }
  }
}

}  // namespace simplescale::testing
