// The mathematics of kernels.hpp as plain loops over host memory, with the same arguments and
// shapes: the reference that the tests compare the kernels with. Sums are in double, so that a
// difference is the kernel's rounding.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "model/cuda/kernels.hpp"
#include "runtime/base/dtype.hpp"

namespace simplescale::cuda::reference {

inline float value(float x) {
  return x;
}
inline float value(Bf16 x) {
  return bf16_to_f32(x.bits);
}
inline void assign(float& to, double from) {
  to = static_cast<float>(from);
}
inline void assign(Bf16& to, double from) {
  to = {f32_to_bf16(static_cast<float>(from))};
}

template <class T>
double rstd_of(int64_t C, const T* x, double eps) {
  double squares = 0;
  for (int64_t i = 0; i < C; ++i) squares += double{value(x[i])} * value(x[i]);
  return 1 / std::sqrt(squares / static_cast<double>(C) + eps);
}

template <class T>
void rms_norm(int64_t rows, int64_t C, const T* x, const T* gamma, float eps, T* out) {
  for (int64_t r = 0; r < rows; ++r, x += C, out += C) {
    const double rstd = rstd_of(C, x, eps);
    for (int64_t i = 0; i < C; ++i) assign(out[i], value(x[i]) * rstd * value(gamma[i]));
  }
}

template <class T>
void add(int64_t count, const T* a, const T* b, T* out) {
  for (int64_t i = 0; i < count; ++i) assign(out[i], double{value(a[i])} + value(b[i]));
}

/// dgamma: (C), the complete gradient of gamma. residual may be null.
template <class T>
void rms_norm_backward(int64_t rows, int64_t C, const T* x, const T* gamma, float eps, const T* dy,
                       const T* residual, T* dx, T* normed, double* dgamma) {
  rms_norm(rows, C, x, gamma, eps, normed);
  for (int64_t i = 0; i < C; ++i) dgamma[i] = 0;
  for (int64_t at = 0; at < rows * C; at += C) {
    const double rstd = rstd_of(C, x + at, eps);
    double mean = 0;  // of dy * gamma * normalized
    for (int64_t i = 0; i < C; ++i)
      mean += double{value(dy[at + i])} * value(gamma[i]) * value(x[at + i]) * rstd;
    mean /= static_cast<double>(C);
    for (int64_t i = 0; i < C; ++i) {
      const double normalized = value(x[at + i]) * rstd, d = value(dy[at + i]);
      dgamma[i] += d * normalized;
      assign(dx[at + i], rstd * (d * value(gamma[i]) - normalized * mean) +
                             (residual ? value(residual[at + i]) : 0.0f));
    }
  }
}

template <class T>
void norm_add(int64_t rows, int64_t C, const T* y, const T* gamma, float eps, const T* x, T* sum) {
  for (int64_t at = 0; at < rows * C; at += C) {
    const double rstd = rstd_of(C, y + at, eps);
    for (int64_t i = 0; i < C; ++i)
      assign(sum[at + i], value(x[at + i]) + value(y[at + i]) * rstd * value(gamma[i]));
  }
}

/// The pieces lie one behind the other: (rows * pieces, width) each. dgamma: (width), the complete
/// gradient of gamma.
template <class T>
void norm_pieces_backward(int64_t items, int64_t width, const T* before, const T* gamma, float eps,
                          T* d, double* dgamma) {
  std::vector<T> dx(static_cast<size_t>(items * width)), normed = dx;
  rms_norm_backward<T>(items, width, before, gamma, eps, d, nullptr, dx.data(), normed.data(),
                       dgamma);
  std::copy(dx.begin(), dx.end(), d);
}

inline double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

template <class T>
void swiglu(int64_t rows, int64_t hidden, const T* gate_up, T* act) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < hidden; ++i) {
      const double gate = value(gate_up[r * 2 * hidden + i]);
      assign(act[r * hidden + i], gate * sigmoid(gate) * value(gate_up[(2 * r + 1) * hidden + i]));
    }
}

template <class T>
void swiglu_backward(int64_t rows, int64_t hidden, const T* gate_up, const T* dact, T* dgate_up,
                     T* act) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < hidden; ++i) {
      const int64_t gate_at = r * 2 * hidden + i, up_at = gate_at + hidden, at = r * hidden + i;
      const double gate = value(gate_up[gate_at]), up = value(gate_up[up_at]), d = value(dact[at]);
      const double s = sigmoid(gate);
      assign(dgate_up[gate_at], d * up * s * (1 + gate * (1 - s)));
      assign(dgate_up[up_at], d * gate * s);
      assign(act[at], gate * s * up);
    }
}

/// Rotates the first `heads` heads of each row in place; inverse: back. data: (rows, ld).
template <class T>
void rope(int64_t rows, int64_t heads, int64_t D, int64_t block_size, const float* cosine,
          const float* sine, bool inverse, T* data, int64_t ld) {
  const int64_t half = D / 2;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < half; ++i) {
        T& first = data[r * ld + h * D + i];
        T& second = data[r * ld + h * D + half + i];
        const int64_t at = r % block_size * half + i;
        const double a = value(first), b = value(second), c = cosine[at],
                     s = inverse ? -sine[at] : sine[at];
        assign(first, a * c - b * s);
        assign(second, b * c + a * s);
      }
}

template <class T>
void cross_entropy(int64_t rows, int64_t V, T* logits, const int32_t* targets, float scale,
                   float z_loss, bool gradient, float* losses) {
  for (int64_t r = 0; r < rows; ++r, logits += V) {
    if (targets[r] < 0) {
      losses[r] = 0;
      for (int64_t v = 0; gradient && v < V; ++v) assign(logits[v], 0.0);
      continue;
    }
    double max = value(logits[0]), sum = 0;
    for (int64_t v = 0; v < V; ++v) max = std::max<double>(max, value(logits[v]));
    for (int64_t v = 0; v < V; ++v) sum += std::exp(value(logits[v]) - max);
    const double log_sum = std::log(sum) + max, factor = 1 + 2 * double{z_loss} * log_sum;
    losses[r] = static_cast<float>(log_sum - value(logits[targets[r]]));
    for (int64_t v = 0; gradient && v < V; ++v)
      assign(logits[v],
             (std::exp(value(logits[v]) - max) / sum * factor - (v == targets[r] ? 1 : 0)) *
                 double{scale});
  }
}

/// inputs: (rows), the token of each row of d.
template <class T>
void embed_backward(int64_t rows, int64_t V, int64_t C, const int32_t* inputs, const T* d,
                    T* grad) {
  std::vector<double> sums(static_cast<size_t>(V * C));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < C; ++i)
      sums[static_cast<size_t>(inputs[r] * C + i)] += value(d[r * C + i]);
  for (int64_t i = 0; i < V * C; ++i) assign(grad[i], sums[static_cast<size_t>(i)]);
}

inline double square_sum(const float* values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += double{values[i]} * values[i];
  return sum;
}

/// Rounds each operation to fp32, so the bits are the kernel's. In fp64 a product of two fp32 is exact.
inline void adamw(const AdamWConstants& c, float gradient, float& param, float& avg,
                  float& avg_sq) {
  const auto times = [](float a, float b) { return static_cast<float>(double{a} * b); };
  const float g = times(gradient, c.gradient_scale);
  avg = times(avg, c.beta1) + times(g, 1 - c.beta1);
  avg_sq = times(avg_sq, c.beta2) + times(times(g, g), 1 - c.beta2);
  const float denominator = times(std::sqrt(avg_sq), c.inverse_root_correction2) + c.eps;
  param = times(param, c.keep) - times(c.step_size, avg) / denominator;
}

}  // namespace simplescale::cuda::reference
