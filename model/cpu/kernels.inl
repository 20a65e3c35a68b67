// The kernels of kernels.hpp, written once with vectors of SS_WIDTH floats. Each kernels_*.cpp
// compiles them for one instruction set, into the namespace SS_ISA. SS_BF16_INSTRUCTIONS: the CPU
// rounds to bf16 itself.
//
// Nothing from the standard library may be instantiated here: the linker could keep this file's
// copy of an inline function and call it on a CPU that lacks the instructions.
//
// T is float or Bf16. Arithmetic is fp32; a result is rounded to T once, when it is stored.

namespace simplescale::cpu::SS_ISA {
namespace {

#define SS_INLINE static inline __attribute__((always_inline))

constexpr int kWidth = SS_WIDTH;
typedef float Vf __attribute__((vector_size(4 * SS_WIDTH)));
typedef int32_t Vi __attribute__((vector_size(4 * SS_WIDTH)));
typedef uint32_t Vu __attribute__((vector_size(4 * SS_WIDTH)));
typedef uint16_t Vh __attribute__((vector_size(2 * SS_WIDTH)));

// --- Vectors in memory ---

SS_INLINE Vf splat(float value) {
  return Vf{} + value;
}

/// gcc makes several instructions of __builtin_convertvector() where there is one.
SS_INLINE Vu to_32_bits(Vh bits) {
#if SS_WIDTH == 16
  return (Vu)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)bits);
#elif SS_WIDTH == 8
  return (Vu)_mm256_cvtepu16_epi32((__m128i)bits);
#else
  return __builtin_convertvector(bits, Vu);
#endif
}

SS_INLINE Vh low_16_bits(Vu bits) {
#if SS_WIDTH == 16
  return (Vh)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)bits);
#else
  return __builtin_convertvector(bits, Vh);
#endif
}

SS_INLINE Vf widen(Vh bits) {
  return (Vf)(to_32_bits(bits) << 16);
}

/// Rounds to nearest even; NaN stays NaN. The same bits as f32_to_bf16, except that the processor's
/// own instruction flushes subnormal values to zero.
SS_INLINE Vh narrow(Vf value) {
#if SS_BF16_INSTRUCTIONS
  return (Vh)_mm512_cvtneps_pbh((__m512)value);
#else
  const Vu bits = (Vu)value;
  const Vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Vu nan = (bits >> 16) | 0x40u;
  return low_16_bits(value == value ? rounded : nan);
#endif
}

SS_INLINE Vf load(const float* p) {
  Vf v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
SS_INLINE Vf load(const Bf16* p) {
  Vh v;
  __builtin_memcpy(&v, p, sizeof v);
  return widen(v);
}
SS_INLINE void save(float* p, Vf value) {
  __builtin_memcpy(p, &value, sizeof value);
}
SS_INLINE void save(Bf16* p, Vh v) {
  __builtin_memcpy(p, &v, sizeof v);
}
SS_INLINE void save(Bf16* p, Vf value) {
  save(p, narrow(value));
}

/// Tags for load() and save(): a whole vector, or only the last `count` elements of a row. load()
/// sets the lanes beyond the end to `fill`.
struct Whole {};
struct Part {
  int64_t count;
};

template <class T>
SS_INLINE Vf load(const T* p, Whole, float = 0) {
  return load(p);
}
template <class T>
SS_INLINE void save(T* p, Vf value, Whole) {
  save(p, value);
}
SS_INLINE void save(Bf16* p, Vh v, Whole) {
  save(p, v);
}
#if SS_WIDTH == 16
SS_INLINE __mmask16 mask_of(Part part) {
  return static_cast<__mmask16>((1u << part.count) - 1);
}
SS_INLINE Vf load(const float* p, Part part, float fill = 0) {
  return (Vf)_mm512_mask_loadu_ps((__m512)splat(fill), mask_of(part), p);
}
SS_INLINE Vf load(const Bf16* p, Part part, float fill = 0) {
  const Vf v = widen((Vh)_mm256_maskz_loadu_epi16(mask_of(part), p));
  return (Vf)_mm512_mask_mov_ps((__m512)splat(fill), mask_of(part), (__m512)v);
}
SS_INLINE void save(float* p, Vf value, Part part) {
  _mm512_mask_storeu_ps(p, mask_of(part), (__m512)value);
}
SS_INLINE void save(Bf16* p, Vh v, Part part) {
  _mm256_mask_storeu_epi16(p, mask_of(part), (__m256i)v);
}
#else
SS_INLINE Vf load(const float* p, Part part, float fill = 0) {
  Vf v = splat(fill);
  for (int64_t i = 0; i < part.count; ++i) v[i] = p[i];
  return v;
}
SS_INLINE Vf load(const Bf16* p, Part part, float fill = 0) {
  Vf v = splat(fill);
  for (int64_t i = 0; i < part.count; ++i) {
    const uint32_t bits = uint32_t{p[i].bits} << 16;
    float value;
    __builtin_memcpy(&value, &bits, 4);
    v[i] = value;
  }
  return v;
}
SS_INLINE void save(float* p, Vf value, Part part) {
  for (int64_t i = 0; i < part.count; ++i) p[i] = value[i];
}
SS_INLINE void save(Bf16* p, Vh v, Part part) {
  for (int64_t i = 0; i < part.count; ++i) p[i].bits = v[i];
}
#endif
SS_INLINE void save(Bf16* p, Vf value, Part part) {
  save(p, narrow(value), part);
}

/// Calls body(i, Whole{}) for each whole vector of [0, count), then body(i, Part{}) for the rest.
template <class Body>
SS_INLINE void each(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) body(i, Whole{});
  if (i < count) body(i, Part{count - i});
}

// --- Sums, maxima and exp ---

template <int... kLane>
struct Lanes {};
template <int kCount>
using LanesUpTo = Lanes<__integer_pack(kCount)...>;

/// v with the lanes i and i ^ kDistance swapped. The lanes are constants of the instruction: from a
/// vector of them, gcc computes that vector anew for each row.
template <int kDistance, int... kLane>
SS_INLINE Vf swapped(Vf v, Lanes<kLane...>) {
  return __builtin_shufflevector(v, v, (kLane ^ kDistance)...);
}

template <int kDistance = kWidth / 2>
SS_INLINE float sum_of(Vf v) {
  v += swapped<kDistance>(v, LanesUpTo<kWidth>());
  if constexpr (kDistance > 1) return sum_of<kDistance / 2>(v);
  return v[0];
}

SS_INLINE Vf larger(Vf a, Vf b) {
  return a > b ? a : b;
}

template <int kDistance = kWidth / 2>
SS_INLINE float max_of(Vf v) {
  v = larger(v, swapped<kDistance>(v, LanesUpTo<kWidth>()));
  if constexpr (kDistance > 1) return max_of<kDistance / 2>(v);
  return v[0];
}

constexpr float kInfinity = __builtin_inff();

/// exp(x) within 2 ulp; 0 for x < -87, finite for x > 88, NaN for NaN. The polynomial is that of
/// expf in the Cephes library (netlib.org/cephes).
SS_INLINE Vf exp_of(Vf x) {
  const Vf low = splat(-87.0f), high = splat(88.0f), magic = splat(12582912.0f);  // 1.5 * 2^23
  Vf y = low > x ? low : x;  // as maxps and minps take a NaN
  y = high < y ? high : y;
  const Vf shifted = y * 1.44269504088896341f + magic;
  const Vf n = shifted - magic;
  const Vf r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
  Vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  const Vf result = (Vf)((Vi)p + (((Vi)shifted - (Vi)magic) << 23));
  const Vf kept = x < low ? Vf{} : result;
  return x == x ? kept : x;
}

SS_INLINE Vf sigmoid(Vf x) {
  return 1.0f / (1.0f + exp_of(-x));
}

// --- RMSNorm, arXiv 1910.07467 ---

SS_INLINE float rstd_of(float square_sum, int64_t C, float eps) {
  return 1.0f / __builtin_sqrtf(square_sum / float(C) + eps);
}

/// x, out: (rows, C); gamma: (C).
template <class T>
void rms_norm(int64_t rows, int64_t C, const T* x, const T* gamma, float eps, T* out) {
  for (; rows; --rows, x += C, out += C) {
    Vf squares{};
    each(C, [&](int64_t i, auto w) {
      const Vf v = load(x + i, w);
      squares += v * v;
    });
    const float rstd = rstd_of(sum_of(squares), C, eps);
    each(C,
         [&](int64_t i, auto w) { save(out + i, load(x + i, w) * rstd * load(gamma + i, w), w); });
  }
}

/// x, sum, out: (rows, C); delta: (rows, C) fp32; gamma: (C).
template <class T>
void add_rms_norm(int64_t rows, int64_t C, const T* x, const float* delta, const T* gamma,
                  float eps, T* sum, T* out) {
  for (; rows; --rows, x += C, delta += C, sum += C, out += C) {
    Vf squares{};
    each(C, [&](int64_t i, auto w) {
      save(sum + i, load(x + i, w) + load(delta + i, w), w);
      const Vf v = load(sum + i, w);  // the rounded value, which the backward pass reads
      squares += v * v;
    });
    const float rstd = rstd_of(sum_of(squares), C, eps);
    each(C, [&](int64_t i, auto w) {
      save(out + i, load(sum + i, w) * rstd * load(gamma + i, w), w);
    });
  }
}

/// x, residual, dx, normed: (rows, C); dy: (rows, C) fp32; gamma: (C); dgamma: (C) fp32.
///   dx = rstd * (dy * gamma) - x * rstd^3 * mean(dy * gamma * x) + residual
template <class T>
void rms_norm_backward(int64_t rows, int64_t C, const T* x, const T* gamma, float eps,
                       const float* dy, const T* residual, T* dx, T* normed, float* dgamma) {
  each(C, [&](int64_t i, auto w) { save(dgamma + i, Vf{}, w); });
  for (; rows; --rows, x += C, dy += C, dx += C, normed += C) {
    Vf squares{}, dots{};
    each(C, [&](int64_t i, auto w) {
      const Vf v = load(x + i, w);
      squares += v * v;
      dots += v * (load(dy + i, w) * load(gamma + i, w));
    });
    const float rstd = rstd_of(sum_of(squares), C, eps);
    const float back = sum_of(dots) * rstd * rstd / float(C);
    each(C, [&](int64_t i, auto w) {
      const Vf scaled = load(x + i, w) * rstd, g = load(gamma + i, w), d = load(dy + i, w);
      save(normed + i, scaled * g, w);
      save(dgamma + i, load(dgamma + i, w) + d * scaled, w);
      Vf result = (d * g) * rstd - scaled * back;
      if (residual) result += load(residual + i, w);
      save(dx + i, result, w);
    });
    if (residual) residual += C;
  }
}

/// y, x, sum: (rows, C); gamma: (C).
template <class T>
void norm_add(int64_t rows, int64_t C, const T* y, const T* gamma, float eps, const T* x, T* sum) {
  for (; rows; --rows, y += C, x += C, sum += C) {
    Vf squares{};
    each(C, [&](int64_t i, auto w) {
      const Vf v = load(y + i, w);
      squares += v * v;
    });
    const float rstd = rstd_of(sum_of(squares), C, eps);
    each(C, [&](int64_t i, auto w) {
      save(sum + i, load(x + i, w) + load(y + i, w) * rstd * load(gamma + i, w), w);
    });
  }
}

/// x: (rows, pieces * width), rows ld_x apart; out: the same, fp32, rows ld_out apart.
template <class T>
void norm_pieces(int64_t rows, int64_t pieces, int64_t width, const T* x, int64_t ld_x,
                 const T* gamma, float eps, float* out, int64_t ld_out) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t p = 0; p < pieces; ++p) {
      const T* from = x + r * ld_x + p * width;
      float* to = out + r * ld_out + p * width;
      Vf squares{};
      each(width, [&](int64_t i, auto w) {
        const Vf v = load(from + i, w);
        squares += v * v;
      });
      const float rstd = rstd_of(sum_of(squares), width, eps);
      each(width, [&](int64_t i, auto w) {
        save(to + i, load(from + i, w) * rstd * load(gamma + i, w), w);
      });
    }
}

/// x, d: (rows, pieces * width), rows ld_x and ld_d apart; gamma: (width); dgamma: (width) fp32.
template <class T>
void norm_pieces_backward(int64_t rows, int64_t pieces, int64_t width, const T* x, int64_t ld_x,
                          const T* gamma, float eps, T* d, int64_t ld_d, float* dgamma) {
  each(width, [&](int64_t i, auto w) { save(dgamma + i, Vf{}, w); });
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t p = 0; p < pieces; ++p) {
      const T* from = x + r * ld_x + p * width;
      T* dy = d + r * ld_d + p * width;
      Vf squares{}, dots{};
      each(width, [&](int64_t i, auto w) {
        const Vf v = load(from + i, w);
        squares += v * v;
        dots += v * (load(dy + i, w) * load(gamma + i, w));
      });
      const float rstd = rstd_of(sum_of(squares), width, eps);
      const float back = sum_of(dots) * rstd * rstd / float(width);
      each(width, [&](int64_t i, auto w) {
        const Vf scaled = load(from + i, w) * rstd, g = load(gamma + i, w), dv = load(dy + i, w);
        save(dgamma + i, load(dgamma + i, w) + dv * scaled, w);
        save(dy + i, (dv * g) * rstd - scaled * back, w);
      });
    }
}

// --- Biases ---

/// data: (rows, columns) fp32, rows ld apart; row: (columns).
template <class T>
void add_row(int64_t rows, int64_t columns, const T* row, float* data, int64_t ld) {
  for (; rows; --rows, data += ld)
    each(columns,
         [&](int64_t i, auto w) { save(data + i, load(data + i, w) + load(row + i, w), w); });
}

/// x: (rows, columns), rows ld apart; sum: (columns) fp32.
template <class T>
void column_sums(int64_t rows, int64_t columns, const T* x, int64_t ld, float* sum) {
  each(columns, [&](int64_t i, auto w) {
    Vf total{};
    for (int64_t r = 0; r < rows; ++r) total += load(x + r * ld + i, w);
    save(sum + i, total, w);
  });
}

// --- Residual, rounding, RoPE (arXiv 2104.09864, half-split form) ---

template <class T>
void widen(int64_t count, const T* from, float* to) {
  each(count, [&](int64_t i, auto w) { save(to + i, load(from + i, w), w); });
}

template <class T>
void add(int64_t count, const T* a, const float* b, T* out) {
  each(count, [&](int64_t i, auto w) { save(out + i, load(a + i, w) + load(b + i, w), w); });
}

/// from: (rows, columns) fp32, rows ld_from apart; to: (rows, columns), rows ld_to apart.
template <class T>
void store(int64_t rows, int64_t columns, const float* from, int64_t ld_from, T* to,
           int64_t ld_to) {
  for (; rows; --rows, from += ld_from, to += ld_to)
    each(columns, [&](int64_t i, auto w) { save(to + i, load(from + i, w), w); });
}

/// As store(); factors: (rows).
template <class T>
void store_scaled(int64_t rows, int64_t columns, const float* from, int64_t ld_from,
                  const float* factors, T* to, int64_t ld_to) {
  for (int64_t r = 0; r < rows; ++r, from += ld_from, to += ld_to)
    each(columns, [&](int64_t i, auto w) { save(to + i, load(from + i, w) * factors[r], w); });
}

/// from, to: (rows, heads * D), rows ld_from and ld_to apart; cosine, sine: (block_size, D/2).
template <class T>
void rope(int64_t rows, int64_t heads, int64_t D, int64_t position, int64_t block_size,
          const float* cosine, const float* sine, bool inverse, const float* from, int64_t ld_from,
          T* to, int64_t ld_to) {
  const int64_t half = D / 2;
  const float sign = inverse ? -1.0f : 1.0f;
  for (int64_t r = 0; r < rows; ++r, from += ld_from, to += ld_to) {
    const int64_t at = (position + r) % block_size * half;
    for (int64_t h = 0; h < heads; ++h) {
      const float* f = from + h * D;
      T* t = to + h * D;
      each(half, [&](int64_t i, auto w) {
        const Vf c = load(cosine + at + i, w), s = load(sine + at + i, w) * sign;
        const Vf first = load(f + i, w), second = load(f + half + i, w);
        save(t + i, first * c - second * s, w);
        save(t + half + i, second * c + first * s, w);
      });
    }
  }
}

// --- SwiGLU, arXiv 2002.05202 ---

/// act = silu(gate) * up. gate_up: (rows, 2 * hidden) fp32; saved: (rows, 2 * hidden);
/// act: (rows, hidden).
template <class T>
void swiglu(int64_t rows, int64_t hidden, const float* gate_up, T* saved, T* act) {
  for (; rows; --rows, gate_up += 2 * hidden, saved += 2 * hidden, act += hidden)
    each(hidden, [&](int64_t i, auto w) {
      const Vf gate = load(gate_up + i, w), up = load(gate_up + hidden + i, w);
      if (static_cast<const void*>(saved) != gate_up) {
        save(saved + i, gate, w);
        save(saved + hidden + i, up, w);
      }
      save(act + i, gate * sigmoid(gate) * up, w);
    });
}

/// With s = sigmoid(gate): dgate = dact * up * s * (1 + gate * (1 - s)), dup = dact * gate * s.
/// gate_up, dgate_up: (rows, 2 * hidden); dact: (rows, hidden) fp32; act: (rows, hidden).
template <class T>
void swiglu_backward(int64_t rows, int64_t hidden, const T* gate_up, const float* dact, T* dgate_up,
                     T* act) {
  for (; rows; --rows, gate_up += 2 * hidden, dact += hidden, dgate_up += 2 * hidden, act += hidden)
    each(hidden, [&](int64_t i, auto w) {
      const Vf gate = load(gate_up + i, w), up = load(gate_up + hidden + i, w);
      const Vf d = load(dact + i, w), s = sigmoid(gate), silu = gate * s;
      save(dgate_up + i, d * up * (s + silu * (1.0f - s)), w);
      save(dgate_up + hidden + i, d * silu, w);
      save(act + i, silu * up, w);
    });
}

/// gate_up, dgate_up: (rows, 2 * hidden); dact: (rows, hidden) fp32; act: (rows, hidden); weights,
/// dots: (rows).
template <class T>
void weighted_swiglu_backward(int64_t rows, int64_t hidden, const T* gate_up, const float* dact,
                              const float* weights, T* dgate_up, T* act, float* dots) {
  for (int64_t r = 0; r < rows; ++r) {
    const float weight = weights[r];
    Vf sums{};
    each(hidden, [&](int64_t i, auto w) {
      const Vf gate = load(gate_up + i, w), up = load(gate_up + hidden + i, w);
      const Vf dy = load(dact + i, w), d = dy * weight, s = sigmoid(gate), silu = gate * s;
      sums += dy * silu * up;
      save(dgate_up + i, d * up * (s + silu * (1.0f - s)), w);
      save(dgate_up + hidden + i, d * silu, w);
      save(act + i, silu * up * weight, w);
    });
    dots[r] = sum_of(sums);
    gate_up += 2 * hidden, dgate_up += 2 * hidden, dact += hidden, act += hidden;
  }
}

// --- Attention, arXiv 1706.03762 ---

/// The columns that a row sees.
struct Seen {
  int64_t first, count;
};
/// end: the row sees columns before it, of them only the last `window` unless that is 0.
SS_INLINE Seen seen_by(int64_t end, int64_t window, int64_t columns) {
  const int64_t first = window > 0 && end > window ? end - window : 0;
  return {first, (end < columns ? end : columns) - first};
}
template <class T>
SS_INLINE void clear_unseen(Seen seen, int64_t columns, T* row) {
  const int64_t end = seen.first + seen.count;
  each(seen.first, [&](int64_t i, auto w) { save(row + i, Vf{}, w); });
  each(columns - end, [&](int64_t i, auto w) { save(row + end + i, Vf{}, w); });
}

/// scores, p: (rows, columns), rows ld apart; inverse_sum, lse: (rows).
template <class T>
void softmax(int64_t rows, int64_t columns, int64_t visible, int64_t window, float scale,
             const float* scores, int64_t ld, T* p, float* inverse_sum, float* lse) {
  for (int64_t r = 0; r < rows; ++r, scores += ld, p += ld) {
    const Seen seen = seen_by(visible + r, window, columns);
    const float* from = scores + seen.first;
    T* to = p + seen.first;
    Vf maxima = splat(-kInfinity);
    each(seen.count,
         [&](int64_t i, auto w) { maxima = larger(maxima, load(from + i, w, -kInfinity)); });
    const float maximum = max_of(maxima);
    Vf sums{};
    each(seen.count, [&](int64_t i, auto w) {
      const Vf e = exp_of((load(from + i, w, -kInfinity) - maximum) * scale);
      sums += e;
      save(to + i, e, w);
    });
    clear_unseen(seen, columns, p);
    const float sum = sum_of(sums);
    inverse_sum[r] = 1.0f / sum;
    lse[r] = maximum * scale + __builtin_logf(sum);
  }
}

/// scores, dp, p, ds: (rows, columns), rows ld apart; lse, delta: (rows).
template <class T>
void softmax_backward(int64_t rows, int64_t columns, int64_t visible, int64_t window, float scale,
                      const float* scores, const float* dp, int64_t ld, const float* lse,
                      const float* delta, T* p, T* ds) {
  for (int64_t r = 0; r < rows; ++r, scores += ld, dp += ld, p += ld, ds += ld) {
    const Seen seen = seen_by(visible + r, window, columns);
    const float *score = scores + seen.first, *slope = dp + seen.first;
    T *to_p = p + seen.first, *to_ds = ds + seen.first;
    each(seen.count, [&](int64_t i, auto w) {
      const Vf e = exp_of(load(score + i, w) * scale - lse[r]);
      const Vf d = e * (load(slope + i, w) - delta[r]) * scale;
      save(to_p + i, e, w);
      save(to_ds + i, d, w);
    });
    clear_unseen(seen, columns, p);
    clear_unseen(seen, columns, ds);
  }
}

/// a, b: (rows, columns), rows ld_a and ld_b apart; out: (rows).
template <class T>
void row_dots(int64_t rows, int64_t columns, const T* a, int64_t ld_a, const T* b, int64_t ld_b,
              float* out) {
  for (int64_t r = 0; r < rows; ++r, a += ld_a, b += ld_b) {
    Vf sums{};
    each(columns, [&](int64_t i, auto w) { sums += load(a + i, w) * load(b + i, w); });
    out[r] = sum_of(sums);
  }
}

// --- Loss and embeddings ---

/// logits: (rows, V) fp32, overwritten by exp(logits - max); targets, losses: (rows);
/// dlogits: (rows, V) or null.
template <class T>
void cross_entropy(int64_t rows, int64_t V, float* logits, const int32_t* targets, float scale,
                   float z_loss, T* dlogits, float* losses) {
  for (int64_t r = 0; r < rows; ++r, logits += V) {
    const int32_t target = targets[r];
    if (target < 0) {
      losses[r] = 0;
      if (dlogits) each(V, [&](int64_t i, auto w) { save(dlogits + r * V + i, Vf{}, w); });
      continue;
    }
    const float chosen = logits[target];
    Vf maxima = splat(-kInfinity);
    each(V, [&](int64_t i, auto w) { maxima = larger(maxima, load(logits + i, w, -kInfinity)); });
    const float maximum = max_of(maxima);
    Vf sums{};
    each(V, [&](int64_t i, auto w) {
      const Vf e = exp_of(load(logits + i, w, -kInfinity) - maximum);
      sums += e;
      save(logits + i, e, w);
    });
    const float sum = sum_of(sums);
    const float log_sum = __builtin_logf(sum) + maximum;
    losses[r] = log_sum - chosen;
    if (!dlogits) continue;
    T* d = dlogits + r * V;
    const float factor = scale * (1 + 2 * z_loss * log_sum) / sum;
    const float e_target = logits[target];
    each(V, [&](int64_t i, auto w) { save(d + i, load(logits + i, w) * factor, w); });
    save(d + target, splat(e_target * factor - scale), Part{1});
  }
}

/// which: (count) row indices; x: (any, C); out: (C).
template <class T>
void sum_rows(int64_t count, const int32_t* which, int64_t C, const T* x, T* out) {
  each(C, [&](int64_t i, auto w) {
    Vf sum = {};
    for (int64_t k = 0; k < count; ++k) sum += load(x + which[k] * C + i, w);
    save(out + i, sum, w);
  });
}

template <class T>
void weighted_sum_rows(int64_t count, const int32_t* which, const float* weights, int64_t C,
                       const T* x, float* out) {
  each(C, [&](int64_t i, auto w) {
    Vf sum = {};
    for (int64_t k = 0; k < count; ++k)
      sum += load(x + which[k] * C + i, w) * (weights ? weights[k] : 1.0f);
    save(out + i, sum, w);
  });
}

// --- A shard's state ---

void to_bf16(int64_t count, const float* from, Bf16* to) {
  each(count, [&](int64_t i, auto w) { save(to + i, load(from + i, w), w); });
}

/// values: (blocks, 1024); sums: (blocks). Eight blocks at a time, each with its own chain of
/// additions. The square of a float is exact in double.
void square_sums(int64_t blocks, const float* values, double* sums) {
  constexpr int64_t kBlock = 1024;
  constexpr int kChains = 8;
  for (; blocks >= kChains; blocks -= kChains, values += kChains * kBlock, sums += kChains) {
    double sum[kChains] = {};
    for (int64_t i = 0; i < kBlock; ++i)
      for (int c = 0; c < kChains; ++c) {
        const double v = values[c * kBlock + i];
        sum[c] += v * v;
      }
    for (int c = 0; c < kChains; ++c) sums[c] = sum[c];
  }
  for (; blocks; --blocks, values += kBlock, ++sums) {
    double sum = 0;
    for (int64_t i = 0; i < kBlock; ++i) {
      const double v = values[i];
      sum += v * v;
    }
    *sums = sum;
  }
}

SS_INLINE Vf root(Vf v) {
#if !defined(__x86_64__)
  for (int i = 0; i < kWidth; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#elif SS_WIDTH == 16
  return (Vf)_mm512_maskz_sqrt_ps(0xffff, (__m512)v);
#elif SS_WIDTH == 8
  return (Vf)_mm256_sqrt_ps((__m256)v);
#else
  return (Vf)_mm_sqrt_ps((__m128)v);
#endif
}

/// Keeps the compiler from contracting the product `v` and a following sum to a fused multiply-add.
SS_INLINE Vf rounded(Vf v) {
#if defined(__x86_64__)
  __asm__("" : "+x"(v));
#else
  for (int i = 0; i < kWidth; ++i) {
    volatile float one = v[i];
    v[i] = one;
  }
#endif
  return v;
}

/// AdamW, arXiv 1711.05101. All arrays: (count). Every replica of a shard computes this update by
/// itself, possibly on another kind of CPU, and must get the same bits: hence rounded().
// --- Stochastic rounding, as in stochastic_rounding.hpp ---

SS_INLINE Vu mix_bits(Vu x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

/// rounding_bits() of the elements from rounding.element + i on.
SS_INLINE Vu random_bits(const ShardKernels::Rounding& rounding, int64_t i) {
  const uint64_t first = rounding.element + static_cast<uint64_t>(i);
  Vu low;
  for (int lane = 0; lane < kWidth; ++lane) low[lane] = static_cast<uint32_t>(lane);
  low += static_cast<uint32_t>(first);
  // A comparison is -1 where it is true: the lanes beyond a multiple of 2^32.
  const Vu high = static_cast<uint32_t>(first >> 32) - (Vu)(low < static_cast<uint32_t>(first));
  return mix_bits(mix_bits(low ^ rounding.key.low) ^ high ^ rounding.key.high);
}

/// stochastic_bf16(). random: below 2^16.
SS_INLINE Vh narrow(Vf value, Vu random) {
  const Vu bits = (Vu)value;
  const Vu rounded = (bits + random) >> 16, nan = (bits >> 16) | 0x40u;
  return low_16_bits(value == value ? rounded : nan);
}

template <class W>
SS_INLINE void save_moment(float* p, Vf value, Vu, W w) {
  save(p, value, w);
}
template <class W>
SS_INLINE void save_moment(Bf16* p, Vf value, Vu random, W w) {
  save(p, narrow(value, random), w);
}

// --- The optimizers ---

/// M: of the moments. rounding: not used if M is float.
template <class M>
SS_INLINE void adamw_of(int64_t count, const ShardKernels::AdamWConstants& c,
                        const ShardKernels::Rounding& rounding, const float* gradient,
                        const float* from_params, const M* from_avg, const M* from_avg_sq,
                        float* to_params, M* to_avg, M* to_avg_sq) {
  each(count, [&](int64_t i, auto w) {
    const Vf g = load(gradient + i, w) * c.gradient_scale;
    const Vf avg = rounded(load(from_avg + i, w) * c.beta1) + rounded(g * (1.0f - c.beta1));
    const Vf avg_sq =
        rounded(load(from_avg_sq + i, w) * c.beta2) + rounded(g * g * (1.0f - c.beta2));
    const Vf denominator = rounded(root(avg_sq) * c.inverse_root_correction2) + c.eps;
    const Vu random = random_bits(rounding, i);
    save_moment(to_avg + i, avg, random & 0xffffu, w);
    save_moment(to_avg_sq + i, avg_sq, random >> 16, w);
    save(to_params + i,
         rounded(load(from_params + i, w) * c.keep) - c.step_size * avg / denominator, w);
  });
}

void adamw(int64_t count, const ShardKernels::AdamWConstants& c, const float* gradient,
           const float* from_params, const float* from_avg, const float* from_avg_sq,
           float* to_params, float* to_avg, float* to_avg_sq) {
  adamw_of(count, c, {}, gradient, from_params, from_avg, from_avg_sq, to_params, to_avg,
           to_avg_sq);
}

void adamw_bf16(int64_t count, const ShardKernels::AdamWConstants& c,
                const ShardKernels::Rounding& rounding, const float* gradient,
                const float* from_params, const Bf16* from_avg, const Bf16* from_avg_sq,
                float* to_params, Bf16* to_avg, Bf16* to_avg_sq) {
  adamw_of(count, c, rounding, gradient, from_params, from_avg, from_avg_sq, to_params, to_avg,
           to_avg_sq);
}

template <class M>
SS_INLINE void muon_momentum_of(int64_t count, float momentum, float gradient_scale,
                                const ShardKernels::Rounding& rounding, float* gradient,
                                const M* from_avg, M* to_avg) {
  each(count, [&](int64_t i, auto w) {
    const Vf g = rounded(load(gradient + i, w) * gradient_scale * (1.0f - momentum));
    const Vf avg = rounded(load(from_avg + i, w) * momentum) + g;
    save_moment(to_avg + i, avg, random_bits(rounding, i) & 0xffffu, w);
    save(gradient + i, rounded(avg * momentum) + g, w);
  });
}

void muon_momentum(int64_t count, float momentum, float gradient_scale, float* gradient,
                   const float* from_avg, float* to_avg) {
  muon_momentum_of(count, momentum, gradient_scale, {}, gradient, from_avg, to_avg);
}

void muon_momentum_bf16(int64_t count, float momentum, float gradient_scale,
                        const ShardKernels::Rounding& rounding, float* gradient,
                        const Bf16* from_avg, Bf16* to_avg) {
  muon_momentum_of(count, momentum, gradient_scale, rounding, gradient, from_avg, to_avg);
}

void average(int64_t count, float weight, const float* params, const float* from, float* to) {
  each(count, [&](int64_t i, auto w) {
    const Vf old = load(from + i, w);
    save(to + i, old + rounded((load(params + i, w) - old) * weight), w);
  });
}

/// A sum over ranks turns -0 into 0, and a layout without such a sum keeps -0; update + 0 is 0 in
/// both.
template <class T>
void muon_update(int64_t count, float keep, float step, const T* update, const float* from_params,
                 float* to_params) {
  each(count, [&](int64_t i, auto w) {
    save(to_params + i,
         rounded(load(from_params + i, w) * keep) - rounded((load(update + i, w) + Vf{}) * step),
         w);
  });
}

/// out = a * x + b * y. All: (count).
template <class T>
void combine(int64_t count, float a, const T* x, float b, const float* y, T* out) {
  each(count,
       [&](int64_t i, auto w) { save(out + i, load(x + i, w) * a + load(y + i, w) * b, w); });
}

template <class T>
constexpr Kernels<T> table() {
  return {.rms_norm = rms_norm<T>,
          .add_rms_norm = add_rms_norm<T>,
          .rms_norm_backward = rms_norm_backward<T>,
          .norm_add = norm_add<T>,
          .norm_pieces = norm_pieces<T>,
          .norm_pieces_backward = norm_pieces_backward<T>,
          .add_row = add_row<T>,
          .column_sums = column_sums<T>,
          .widen = widen<T>,
          .add = add<T>,
          .store = store<T>,
          .store_scaled = store_scaled<T>,
          .rope = rope<T>,
          .swiglu = swiglu<T>,
          .swiglu_backward = swiglu_backward<T>,
          .weighted_swiglu_backward = weighted_swiglu_backward<T>,
          .softmax = softmax<T>,
          .softmax_backward = softmax_backward<T>,
          .row_dots = row_dots<T>,
          .cross_entropy = cross_entropy<T>,
          .combine = combine<T>,
          .muon_update = muon_update<T>,
          .sum_rows = sum_rows<T>,
          .weighted_sum_rows = weighted_sum_rows<T>};
}

}  // namespace

extern const Kernels<float> float_kernels;
extern const Kernels<Bf16> bf16_kernels;
extern const ShardKernels kernels_of_a_shard;
constinit const Kernels<float> float_kernels = table<float>();
constinit const Kernels<Bf16> bf16_kernels = table<Bf16>();
constinit const ShardKernels kernels_of_a_shard = {.to_bf16 = to_bf16,
                                                   .square_sums = square_sums,
                                                   .adamw = adamw,
                                                   .adamw_bf16 = adamw_bf16,
                                                   .muon_momentum = muon_momentum,
                                                   .muon_momentum_bf16 = muon_momentum_bf16,
                                                   .average = average};

}  // namespace simplescale::cpu::SS_ISA
