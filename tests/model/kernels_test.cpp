// Compares each CPU kernel with a plain reference in double, for every instruction set of this
// machine, at odd sizes and alignments.
#include "model/cpu/kernels.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "model/cpu/thread_pool.hpp"

namespace simplescale::cpu {
namespace {

/// Those that have kernels of their own.
std::vector<InstructionSet> isas() {
  std::vector<InstructionSet> all;
  for (const InstructionSet set : {InstructionSet::generic, InstructionSet::avx2,
                                   InstructionSet::avx512, InstructionSet::avx512_bf16})
    if (set <= best_instructions()) all.push_back(set);
  return all;
}

/// Random values that T represents exactly, one element off any alignment.
template <class T>
class Values {
 public:
  explicit Values(int64_t count, float width = 1) : storage_(size_t(count) + 1) {
    static std::mt19937 random(7);
    std::normal_distribution<float> normal(0, width);
    for (T& v : storage_) set(v, normal(random));
  }
  T* data() { return storage_.data() + 1; }
  double operator[](int64_t i) const { return double{to_f32(storage_[size_t(i) + 1])}; }
  int64_t size() const { return int64_t(storage_.size()) - 1; }
  static void set(float& to, float value) { to = value; }
  static void set(Bf16& to, float value) { to.bits = f32_to_bf16(value); }

 private:
  std::vector<T> storage_;
};

template <class T>
constexpr double kTolerance = std::is_same_v<T, float> ? 2e-6 : 5e-3;

/// Checks |ours - expected| against max(1, |expected|).
template <class T>
void check_near(const Values<T>& ours, const std::vector<double>& expected, double factor = 1) {
  double worst = 0;
  REQUIRE(ours.size() == int64_t(expected.size()));
  for (int64_t i = 0; i < ours.size(); ++i)
    worst = std::max(worst, std::abs(ours[i] - expected[size_t(i)]) /
                                std::max(1.0, std::abs(expected[size_t(i)])));
  CHECK(worst < factor * kTolerance<T>);
}

/// Calls test(kernels, columns) for both types, all instruction sets and several sizes.
template <class Test>
void for_all(Test test) {
  for (InstructionSet isa : isas())
    for (int64_t columns : {1, 3, 16, 37, 128}) {
      INFO("to_string(isa) = ", to_string(isa), ", columns = ", columns);
      test(kernels<float>(isa), columns, float{});
      test(kernels<Bf16>(isa), columns, Bf16{});
    }
}

constexpr int64_t kRows = 5;
constexpr float kEps = 1e-5f;

template <class T>
double rstd(const Values<T>& x, int64_t row, int64_t C) {
  double square = 0;
  for (int64_t i = 0; i < C; ++i) square += x[row * C + i] * x[row * C + i];
  return 1 / std::sqrt(square / double(C) + double{kEps});
}

}  // namespace

TEST_SUITE("kernels") {
  TEST_CASE("kernels: rms_norm and add_rms_norm") {
    for_all([]<class T>(const Kernels<T>& k, int64_t C, T) {
      Values<T> x(kRows * C), gamma(C), out(kRows * C), sum(kRows * C);
      Values<float> delta(kRows * C);
      std::vector<double> expected, sums;
      k.rms_norm(kRows, C, x.data(), gamma.data(), kEps, out.data());
      for (int64_t i = 0; i < kRows * C; ++i)
        expected.push_back(x[i] * rstd(x, i / C, C) * gamma[i % C]);
      check_near(out, expected, 2);
      k.add_rms_norm(kRows, C, x.data(), delta.data(), gamma.data(), kEps, sum.data(), out.data());
      expected.clear();
      for (int64_t i = 0; i < kRows * C; ++i) {
        sums.push_back(x[i] + delta[i]);
        expected.push_back(sum[i] * rstd(sum, i / C, C) * gamma[i % C]);
      }
      check_near(sum, sums);
      check_near(out, expected, 2);
    });
  }

  TEST_CASE("kernels: rms_norm_backward") {
    for_all([]<class T>(const Kernels<T>& k, int64_t C, T) {
      Values<T> x(kRows * C), gamma(C), residual(kRows * C), dx(kRows * C), normed(kRows * C);
      Values<float> dy(kRows * C), dgamma(C);
      std::vector<double> e_dx, e_normed, e_gamma(static_cast<size_t>(C));
      for (int64_t r = 0; r < kRows; ++r) {
        const double s = rstd(x, r, C);
        double dot = 0;
        for (int64_t i = r * C; i < (r + 1) * C; ++i) dot += dy[i] * gamma[i % C] * x[i] * s;
        for (int64_t i = r * C; i < (r + 1) * C; ++i) {
          e_dx.push_back(s * (dy[i] * gamma[i % C] - x[i] * s * dot / double(C)) + residual[i]);
          e_normed.push_back(x[i] * s * gamma[i % C]);
          e_gamma[size_t(i % C)] += dy[i] * x[i] * s;
        }
      }
      k.rms_norm_backward(kRows, C, x.data(), gamma.data(), kEps, dy.data(), residual.data(),
                          dx.data(), normed.data(), dgamma.data());
      check_near(dx, e_dx, 10);  // with one column large terms cancel
      check_near(normed, e_normed, 2);
      check_near(dgamma, e_gamma, 4);
      for (int64_t i = 0; i < kRows * C; ++i) e_dx[size_t(i)] -= residual[i];
      k.rms_norm_backward(kRows, C, x.data(), gamma.data(), kEps, dy.data(), nullptr, dx.data(),
                          normed.data(), dgamma.data());
      check_near(dx, e_dx, 10);
    });
  }

  TEST_CASE("kernels: rope rotates by the position's angle, and back") {
    for_all([]<class T>(const Kernels<T>& k, int64_t half, T) {
      const int64_t heads = 2, D = 2 * half, ld = heads * D + 3, block = 4, position = 2;
      Values<float> from(kRows * ld), cosine(block * half), sine(block * half), back(kRows * ld);
      Values<T> to(kRows * ld);
      for (bool inverse : {false, true}) {
        k.rope(kRows, heads, D, position, block, cosine.data(), sine.data(), inverse, from.data(),
               ld, to.data(), ld);
        double worst = 0;
        for (int64_t r = 0; r < kRows; ++r)
          for (int64_t i = 0; i < heads * D; ++i) {
            const int64_t at = (position + r) % block * half + i % half;
            const double sign = (i % D < half) == inverse ? 1 : -1;
            const int64_t pair = i % D < half ? i + half : i - half;
            const double expected =
                from[r * ld + i] * cosine[at] + sign * from[r * ld + pair] * sine[at];
            worst = std::max(
                worst, std::abs(to[r * ld + i] - expected) / std::max(1.0, std::abs(expected)));
          }
        CHECK(worst < kTolerance<T>);
      }
    });
  }

  TEST_CASE("kernels: store, store_scaled, add, row_dots, sum_rows") {
    for_all([]<class T>(const Kernels<T>& k, int64_t C, T) {
      const int64_t ld = C + 2;
      Values<float> from(kRows * ld), factors(kRows), dots(kRows);
      Values<T> to(kRows * C), a(kRows * C), out(C);
      std::vector<double> plain, scaled, added, e_dots(kRows), picked;
      for (int64_t r = 0; r < kRows; ++r)
        for (int64_t i = 0; i < C; ++i) {
          plain.push_back(from[r * ld + i]);
          scaled.push_back(from[r * ld + i] * factors[r]);
          added.push_back(a[r * C + i] + from[r * C + i]);
        }
      k.store(kRows, C, from.data(), ld, to.data(), C);
      check_near(to, plain);
      k.store_scaled(kRows, C, from.data(), ld, factors.data(), to.data(), C);
      check_near(to, scaled);
      k.add(kRows * C, a.data(), from.data(), to.data());
      check_near(to, added);
      for (int64_t i = 0; i < kRows * C; ++i) e_dots[size_t(i / C)] += a[i] * to[i];
      k.row_dots(kRows, C, a.data(), C, to.data(), C, dots.data());
      check_near(dots, e_dots, 8);
      const int32_t which[] = {4, 1, 4};
      for (int64_t i = 0; i < C; ++i) picked.push_back(a[4 * C + i] + a[C + i] + a[4 * C + i]);
      k.sum_rows(3, which, C, a.data(), out.data());
      check_near(out, picked, 2);
      k.sum_rows(0, which, C, a.data(), out.data());
      check_near(out, std::vector<double>(size_t(C)));
    });
  }

  TEST_CASE("kernels: swiglu forward and backward") {
    for_all([]<class T>(const Kernels<T>& k, int64_t F, T) {
      Values<float> gate_up(kRows * 2 * F, 4), dact(kRows * F);
      Values<T> saved(kRows * 2 * F), act(kRows * F), d(kRows * 2 * F), again(kRows * F);
      k.swiglu(kRows, F, gate_up.data(), saved.data(), act.data());
      k.swiglu_backward(kRows, F, saved.data(), dact.data(), d.data(), again.data());
      std::vector<double> e_saved, e_act, e_again, e_d(size_t(kRows * 2 * F));
      for (int64_t i = 0; i < kRows * 2 * F; ++i) e_saved.push_back(gate_up[i]);
      for (int64_t r = 0; r < kRows; ++r)
        for (int64_t i = 0; i < F; ++i) {
          const int64_t at = r * 2 * F + i;
          auto silu = [](double g) { return g / (1 + std::exp(-g)); };
          e_act.push_back(silu(gate_up[at]) * gate_up[at + F]);
          const double g = saved[at], up = saved[at + F], s = 1 / (1 + std::exp(-g));
          e_again.push_back(silu(g) * up);
          e_d[size_t(at)] = dact[r * F + i] * up * (s + g * s * (1 - s));
          e_d[size_t(at + F)] = dact[r * F + i] * silu(g);
        }
      check_near(saved, e_saved);
      check_near(act, e_act, 2);
      check_near(again, e_again, 2);
      check_near(d, e_d, 2);
    });
  }

  TEST_CASE("kernels: norm_add") {
    for_all([]<class T>(const Kernels<T>& k, int64_t C, T) {
      Values<T> x(kRows * C), y(kRows * C), gamma(C), sum(kRows * C);
      std::vector<double> expected;
      for (int64_t i = 0; i < kRows * C; ++i)
        expected.push_back(x[i] + y[i] * rstd(y, i / C, C) * gamma[i % C]);
      k.norm_add(kRows, C, y.data(), gamma.data(), kEps, x.data(), sum.data());
      check_near(sum, expected, 2);
    });
  }

  TEST_CASE("kernels: norms of the pieces of rows equal norms of rows") {
    for_all([]<class T>(const Kernels<T>& k, int64_t width, T) {
      constexpr int64_t pieces = 3, other = 2;  // elements of a row that do not belong to them
      const int64_t items = kRows * pieces, ld = pieces * width + other;
      Values<T> x(kRows * ld), gamma(width), d(kRows * ld), rows(items * width), dx(items * width),
          normed(items * width);
      Values<float> out(kRows * ld), dy(items * width), dgamma(width), e_gamma(width);
      const auto at = [&](int64_t i) {  // of element i of the pieces one behind the other
        return i / (pieces * width) * ld + i % (pieces * width);
      };
      for (int64_t i = 0; i < items * width; ++i) {
        rows.data()[i] = x.data()[at(i)];
        dy.data()[i] = float(d[at(i)]);
      }
      const double kept = out[pieces * width], kept_d = d[pieces * width];
      k.norm_pieces(kRows, pieces, width, x.data(), ld, gamma.data(), kEps, out.data(), ld);
      k.rms_norm_backward(items, width, rows.data(), gamma.data(), kEps, dy.data(), nullptr,
                          dx.data(), normed.data(), e_gamma.data());
      k.norm_pieces_backward(kRows, pieces, width, x.data(), ld, gamma.data(), kEps, d.data(), ld,
                             dgamma.data());
      double worst = 0;
      for (int64_t i = 0; i < items * width; ++i) {
        worst =
            std::max(worst, std::abs(out[at(i)] - normed[i]) / std::max(1.0, std::abs(normed[i])));
        REQUIRE(d[at(i)] == dx[i]);
      }
      CHECK(worst < 2 * kTolerance<T>);  // normed is rounded to T
      for (int64_t i = 0; i < width; ++i) REQUIRE(dgamma[i] == e_gamma[i]);
      CHECK(out[pieces * width] == kept);
      CHECK(d[pieces * width] == kept_d);
    });
  }

  TEST_CASE("kernels: biases and the sums of columns") {
    for_all([]<class T>(const Kernels<T>& k, int64_t columns, T) {
      const int64_t ld = columns + 3;
      Values<T> x(kRows * ld), row(columns);
      Values<float> data(kRows * ld), sums(columns), wide(kRows * ld);
      std::vector<double> expected, e_sums(static_cast<size_t>(columns)), e_wide;
      for (int64_t i = 0; i < kRows * ld; ++i) {
        const bool inside = i % ld < columns;
        expected.push_back(data[i] + (inside ? row[i % ld] : 0));
        if (inside) e_sums[size_t(i % ld)] += x[i];
        e_wide.push_back(x[i]);
      }
      k.add_row(kRows, columns, row.data(), data.data(), ld);
      k.column_sums(kRows, columns, x.data(), ld, sums.data());
      k.widen(kRows * ld, x.data(), wide.data());
      check_near(data, expected);
      check_near(sums, e_sums, 2);
      check_near(wide, e_wide);
    });
  }

  TEST_CASE("kernels: causal softmax and its backward, with and without a window") {
    for (const int64_t window : {0, 1, 2, 30})
      for_all([window]<class T>(const Kernels<T>& k, int64_t columns, T) {
        CAPTURE(window);
        const float scale = 0.7f;
        // With a window, the last row must still see the last column.
        const int64_t visible = std::max<int64_t>(1, columns - (window > 0 ? kRows - 1 : 2));
        if (window > 0 && visible + kRows - 1 > columns) return;
        Values<float> scores(kRows * columns, 6), dp(kRows * columns), delta(kRows);
        Values<float> inverse_sum(kRows), lse(kRows);
        Values<T> p(kRows * columns), ds(kRows * columns);
        std::vector<double> e_p, e_lse, e_inverse, e_back, e_ds;
        for (int64_t r = 0; r < kRows; ++r) {
          const int64_t seen = std::min(columns, visible + r);
          const int64_t begin = window > 0 ? std::max<int64_t>(0, visible + r - window) : 0;
          double maximum = -1e30, sum = 0;
          for (int64_t i = begin; i < seen; ++i)
            maximum = std::max(maximum, scores[r * columns + i]);
          for (int64_t i = 0; i < columns; ++i) {
            e_p.push_back(i >= begin && i < seen
                              ? std::exp(double{scale} * (scores[r * columns + i] - maximum))
                              : 0);
            sum += e_p.back();
          }
          e_inverse.push_back(1 / sum);
          e_lse.push_back(std::log(sum) + double{scale} * maximum);
          for (int64_t i = 0; i < columns; ++i) {
            e_back.push_back(e_p[size_t(r * columns + i)] / sum);
            e_ds.push_back(e_back.back() * (dp[r * columns + i] - delta[r]) * double{scale});
          }
        }
        k.softmax(kRows, columns, visible, window, scale, scores.data(), columns, p.data(),
                  inverse_sum.data(), lse.data());
        check_near(p, e_p, 2);
        check_near(inverse_sum, e_inverse, 4);
        check_near(lse, e_lse, 2);
        k.softmax_backward(kRows, columns, visible, window, scale, scores.data(), dp.data(),
                           columns, lse.data(), delta.data(), p.data(), ds.data());
        check_near(p, e_back, 8);
        check_near(ds, e_ds, 8);
      });
  }

  TEST_CASE("kernels: cross_entropy and its gradient, with and without z-loss") {
    for_all([]<class T>(const Kernels<T>& k, int64_t V, T) {
      const float scale = 0.3f, z_loss = V % 2 == 0 ? 0 : 0.05f;
      Values<float> logits(kRows * V, 5), losses(kRows), again(kRows);
      Values<T> d(kRows * V);
      std::vector<int32_t> targets;
      std::vector<double> e_losses, e_d;
      for (int64_t r = 0; r < kRows; ++r) {
        targets.push_back(r == 2 ? -1 : int32_t((r * 7 + 1) % V));
        if (r == 2) {  // not trained
          e_losses.push_back(0);
          e_d.resize(e_d.size() + size_t(V));
          continue;
        }
        double sum = 0;
        for (int64_t i = 0; i < V; ++i) sum += std::exp(logits[r * V + i]);
        e_losses.push_back(std::log(sum) - logits[r * V + targets.back()]);
        for (int64_t i = 0; i < V; ++i)
          e_d.push_back((std::exp(logits[r * V + i]) / sum * (1 + 2 * z_loss * std::log(sum)) -
                         (i == targets.back())) *
                        double{scale});
      }
      Values<float> copy = logits;
      k.cross_entropy(kRows, V, copy.data(), targets.data(), scale, z_loss, nullptr, again.data());
      k.cross_entropy(kRows, V, logits.data(), targets.data(), scale, z_loss, d.data(),
                      losses.data());
      check_near(losses, e_losses, 4);
      check_near(again, e_losses, 4);
      check_near(d, e_d, 2);
    });
  }

  TEST_CASE("kernels: a NaN logit makes the loss NaN; huge logits do not") {
    for (InstructionSet isa : isas()) {
      const Kernels<float>& k = kernels<float>(isa);
      std::vector<float> logits(40, 0.0f), losses(1);
      const int32_t target = 3;
      logits[20] = std::numeric_limits<float>::quiet_NaN();
      k.cross_entropy(1, 40, logits.data(), &target, 1, 0, nullptr, losses.data());
      CHECK(std::isnan(losses[0]));
      std::fill(logits.begin(), logits.end(), -3e38f);
      logits[3] = 3e38f;
      k.cross_entropy(1, 40, logits.data(), &target, 1, 0, nullptr, losses.data());
      CHECK(losses[0] == 0.0f);
    }
  }

  TEST_CASE("kernels: to_bf16 rounds like f32_to_bf16, bit for bit (except subnormal values)") {
    std::mt19937 random(3);
    std::vector<float> from(4099);
    for (float& v : from) v = std::bit_cast<float>(uint32_t(random()));
    from[0] = std::numeric_limits<float>::quiet_NaN();
    from[1] = std::numeric_limits<float>::infinity();
    from[2] = std::bit_cast<float>(0x7f7fffffu);
    for (InstructionSet isa : isas()) {
      std::vector<Bf16> to(from.size());
      shard_kernels(isa).to_bf16(int64_t(from.size()), from.data(), to.data());
      size_t wrong = 0;
      for (size_t i = 0; i < from.size(); ++i) {
        const bool normal = !(std::abs(from[i]) < std::numeric_limits<float>::min());
        const bool flushed = (to[i].bits & 0x7fff) == 0 && isa == InstructionSet::avx512_bf16;
        wrong += to[i].bits != f32_to_bf16(from[i]) && (normal || !flushed);
      }
      CHECK(wrong == 0);
    }
  }

  TEST_CASE("kernels: square_sums adds in element order in double") {
    Values<float> values(11 * 1024);
    for (InstructionSet isa : isas()) {
      std::vector<double> sums(11), expected(11);
      shard_kernels(isa).square_sums(11, values.data(), sums.data());
      for (int64_t i = 0; i < values.size(); ++i)
        expected[size_t(i / 1024)] += values[i] * values[i];
      CHECK(sums == expected);
    }
  }

  TEST_CASE("kernels: adamw") {
    const int64_t n = 1001;
    Values<float> p(n), avg(n, 0.1f), gradient(n), to_p(n), to_avg(n), to_sq(n), root(n, 0.1f),
        sq(n);
    for (int64_t i = 0; i < n; ++i) sq.data()[i] = root.data()[i] * root.data()[i];
    const ShardKernels::AdamWConstants c{0.5f, 0.99f, 0.9f, 0.95f, 1e-2f, 1.5f, 1e-8f};
    std::string first;  // replicas on different CPUs must get the same bits
    for (InstructionSet isa : isas()) {
      shard_kernels(isa).adamw(n, c, gradient.data(), p.data(), avg.data(), sq.data(), to_p.data(),
                               to_avg.data(), to_sq.data());
      std::vector<double> e_p, e_avg, e_sq;
      for (int64_t i = 0; i < n; ++i) {
        const double g = gradient[i] * 0.5;
        e_avg.push_back(0.9 * avg[i] + 0.1 * g);
        e_sq.push_back(0.95 * sq[i] + 0.05 * g * g);
        e_p.push_back(p[i] * 0.99 - 1e-2 * e_avg.back() / (std::sqrt(e_sq.back()) * 1.5 + 1e-8));
      }
      check_near(to_avg, e_avg);
      check_near(to_sq, e_sq);
      check_near(to_p, e_p);
      std::string bits;
      for (float* values : {to_p.data(), to_avg.data(), to_sq.data()})
        bits.append(reinterpret_cast<const char*>(values), size_t(n) * sizeof(float));
      if (first.empty()) first = bits;
      CHECK(bits == first);
    }
  }

  TEST_CASE("kernels: moments in bf16 are those in fp32, rounded by the bits of their element") {
    const int64_t n = 1001;
    Values<float> p(n), gradient(n), to_p(n), wide_p(n);
    Values<Bf16> avg(n, 0.1f), sq(n, 0.01f), to_avg(n), to_sq(n);
    Values<float> wide_avg(n), wide_sq(n);
    for (int64_t i = 0; i < n; ++i) sq.data()[i].bits &= 0x7fff;
    const ShardKernels::AdamWConstants c{0.5f, 0.99f, 0.9f, 0.95f, 1e-2f, 1.5f, 1e-8f};
    const ShardKernels::Rounding rounding{rounding_key(3, 7), (uint64_t{5} << 32) - 700};
    size_t wrong = 0, up = 0;
    const auto compare = [&](const Values<float>& wide, Values<Bf16>& ours, int shift) {
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t random = rounding_bits(rounding.key, rounding.element + uint64_t(i));
        const auto value = std::bit_cast<uint32_t>(float(wide[i]));
        wrong += ours.data()[i].bits != stochastic_bf16(value, random >> shift & 0xffff);
        up += ours.data()[i].bits != value >> 16;
      }
    };
    for (InstructionSet isa : isas()) {
      const ShardKernels& kernels = shard_kernels(isa);
      std::copy_n(p.data(), n, wide_p.data());
      for (int64_t i = 0; i < n; ++i) wide_avg.data()[i] = float(avg[i]);
      for (int64_t i = 0; i < n; ++i) wide_sq.data()[i] = float(sq[i]);
      kernels.adamw(n, c, gradient.data(), wide_p.data(), wide_avg.data(), wide_sq.data(),
                    wide_p.data(), wide_avg.data(), wide_sq.data());
      for (const int64_t cut : {n, int64_t{77}, int64_t{704}}) {  // as tasks cut a run
        std::fill_n(to_p.data(), n, 0.0f);
        for (const int64_t first : {int64_t{0}, cut}) {
          const int64_t count = first == 0 ? cut : n - cut;
          kernels.adamw_bf16(count, c, {rounding.key, rounding.element + uint64_t(first)},
                             gradient.data() + first, p.data() + first, avg.data() + first,
                             sq.data() + first, to_p.data() + first, to_avg.data() + first,
                             to_sq.data() + first);
        }
        CHECK(std::equal(to_p.data(), to_p.data() + n, wide_p.data()));
        compare(wide_avg, to_avg, 0);
        compare(wide_sq, to_sq, 16);
      }
      std::vector<float> g(gradient.data(), gradient.data() + n), same_g = g;
      for (int64_t i = 0; i < n; ++i) wide_avg.data()[i] = float(avg[i]);
      kernels.muon_momentum(n, 0.9f, 0.5f, g.data(), wide_avg.data(), wide_avg.data());
      kernels.muon_momentum_bf16(n, 0.9f, 0.5f, rounding, same_g.data(), avg.data(), to_avg.data());
      CHECK(g == same_g);
      compare(wide_avg, to_avg, 0);
    }
    CHECK(wrong == 0);
    const size_t compared = isas().size() * 7 * size_t(n);
    CHECK(up > compared / 3);  // about half of the values are rounded up
    CHECK(up < compared * 2 / 3);
  }

  TEST_CASE("kernels: the average has the same bits on every CPU, in place or not") {
    const int64_t n = 1001;
    Values<float> params(n), from(n), to(n);
    std::vector<float> expected;
    for (int64_t i = 0; i < n; ++i) {
      volatile float difference = params[i] - from[i], moved = difference * 0.003f;
      expected.push_back(from[i] + moved);
    }
    const std::vector<float> before(from.data(), from.data() + n);
    CHECK(before != expected);
    for (InstructionSet isa : isas()) {
      shard_kernels(isa).average(n, 0.003f, params.data(), from.data(), to.data());
      CHECK(std::ranges::equal(std::span(to.data(), size_t(n)), expected));
      shard_kernels(isa).average(n, 0.003f, params.data(), from.data(), from.data());
      CHECK(std::ranges::equal(std::span(from.data(), size_t(n)), expected));
      std::ranges::copy(before, from.data());
    }
  }
}

TEST_SUITE("thread_pool") {
  TEST_CASE("thread_pool: every task runs once, for any number of tasks and threads") {
    for (int threads : {1, 2, 3, 5}) {
      ThreadPool pool(threads);
      for (int round = 0; round < 300; ++round) {
        const int tasks = round % 17;
        std::vector<std::atomic<int>> done(static_cast<size_t>(tasks));
        std::vector<std::atomic<int>> busy(static_cast<size_t>(threads));
        std::atomic<int> clashes{0};
        pool.run(tasks, [&](int64_t task, int worker) {
          if (busy[size_t(worker)]++) ++clashes;
          ++done[size_t(task)];
          --busy[size_t(worker)];
        });
        CHECK(clashes == 0);
        CHECK(std::all_of(done.begin(), done.end(), [](const auto& n) { return n == 1; }));
      }
    }
  }
}

}  // namespace simplescale::cpu
