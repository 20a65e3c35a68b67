// What the CPU and the CUDA backend have in common: the model's sizes, where a block's parameters
// lie in its unit, how buffers are allocated, the RoPE tables and AdamW's constants.
//
// Header only, because the CUDA library is linked without the rest of the program. Called by the
// compute thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numbers>
#include <utility>
#include <vector>

#include "model/backend.hpp"

namespace simplescale {

/// Llama 3.1's scaling of one of RoPE's frequencies, in fp32 as Hugging Face computes it.
inline float llama3_frequency(const RopeScaling& r, float frequency) {
  const auto original = static_cast<float>(r.original_block_size);
  const auto factor = static_cast<float>(r.factor), low = static_cast<float>(r.low_factor),
             high = static_cast<float>(r.high_factor);
  const float wave = 2 * std::numbers::pi_v<float> / frequency;
  if (wave > original / low) return frequency / factor;
  if (wave < original / high) return frequency;
  const float smooth = (original / wave - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

/// YaRN's scaling of frequency i of a head's D / 2, in fp32 as Hugging Face computes it.
inline float yarn_frequency(const ModelShape& shape, int64_t i, float frequency) {
  const RopeScaling& r = shape.rope_scaling;
  const auto D = static_cast<double>(shape.head_dim());
  const auto index_of = [&](double waves) {  // of the frequency with so many waves in the original
    return D *
           std::log(static_cast<double>(r.original_block_size) / (waves * 2 * std::numbers::pi)) /
           (2 * std::log(shape.rope_theta));
  };
  const double first = std::max(std::floor(index_of(r.high_factor)), 0.0);
  const double last = std::min(std::ceil(index_of(r.low_factor)), D - 1);
  const auto width = static_cast<float>(first == last ? 0.001 : last - first);
  const float scaled =
      std::clamp((static_cast<float>(i) - static_cast<float>(first)) / width, 0.0f, 1.0f);
  return frequency / static_cast<float>(r.factor) * scaled + frequency * (1 - scaled);
}

/// What all cosines and sines are multiplied with: 1, or YaRN's temperature of attention.
inline float rope_scale(const RopeScaling& r) {
  if (r.kind != RopeScaling::Kind::yarn) return 1;
  return static_cast<float>(r.attention_factor > 0 ? r.attention_factor
                                                   : 0.1 * std::log(r.factor) + 1);
}

/// RoPE, arXiv 2104.09864: the cosines and sines of all angles, computed in fp32 as Hugging Face
/// does. cosine, sine: become (T, D/2).
inline void rope_tables(const ModelShape& shape, std::vector<float>& cosine,
                        std::vector<float>& sine) {
  const int64_t T = shape.block_size, D = shape.head_dim(), half = D / 2;
  const float scale = rope_scale(shape.rope_scaling);
  cosine.resize(static_cast<size_t>(T * half));
  sine.resize(cosine.size());
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(D);
    float frequency = 1.0f / std::pow(static_cast<float>(shape.rope_theta), exponent);
    if (shape.rope_scaling.kind == RopeScaling::Kind::linear)
      frequency /= static_cast<float>(shape.rope_scaling.factor);
    if (shape.rope_scaling.kind == RopeScaling::Kind::llama3)
      frequency = llama3_frequency(shape.rope_scaling, frequency);
    if (shape.rope_scaling.kind == RopeScaling::Kind::yarn)
      frequency = yarn_frequency(shape, i, frequency);
    for (int64_t t = 0; t < T; ++t) {
      const float angle = static_cast<float>(t) * frequency;
      cosine[static_cast<size_t>(t * half + i)] = scale * std::cos(angle);
      sine[static_cast<size_t>(t * half + i)] = scale * std::sin(angle);
    }
  }
}

/// A block's parameters, or their gradients, in their flat unit; as units_of() orders them.
template <class E>
struct BlockParameters {
  BlockParameters(E* unit, const ModelShape& s, int64_t layer)
      : hidden(s.mlp_width(layer)),
        routed(s.has_experts(layer)),
        norm1(unit),
        qkv(norm1 + s.dim),
        bias(qkv + (s.q_dim() + 2 * s.kv_dim()) * s.dim),
        q_norm(bias + s.bias_width()),
        k_norm(q_norm + s.q_norm_width()),
        o(k_norm + s.k_norm_width()),
        norm2(o + s.dim * s.q_dim()),
        router(norm2 + s.dim),
        router_bias(router + (routed ? s.experts.count * s.dim : 0)),
        gate_up(router_bias + (routed && s.experts.bias ? s.experts.count : 0)),
        down(gate_up + 2 * hidden * s.dim) {}
  const int64_t hidden;  // F of the MLP or of the shared experts; may be 0 with experts
  const bool routed;     // has experts
  E* norm1;              // (C)
  E* qkv;                // (Q, C)
  E* bias;               // (Q), if shape.qkv_bias
  E *q_norm, *k_norm;    // (D) or (A) and (K), if shape.qk_norm
  E* o;                  // (C, A)
  E* norm2;              // (C)
  E* router;             // (experts, C), if routed
  E* router_bias;        // (experts), if routed and shape.experts.bias
  E* gate_up;            // (2F, C)
  E* down;               // (C, F)
};

/// An expert's parameters, or their gradients, in the unit of a block's experts. F: experts.hidden.
template <class E>
struct ExpertParameters {
  ExpertParameters(E* unit, const ModelShape& s, int64_t expert)
      : gate_up(unit + expert * 3 * s.experts.hidden * s.dim),
        down(gate_up + 2 * s.experts.hidden * s.dim) {}
  E* gate_up;  // (2F, C)
  E* down;     // (C, F)
};

/// A kernel's constants of the update of a run.
template <class Constants>
Constants adamw_constants(const AdamW& o, const ParameterRun& run) {
  const auto step = static_cast<double>(o.step);
  const float learning_rate = o.learning_rate * run.rate_factor;
  return {.gradient_scale = o.gradient_scale,
          .keep = 1 - learning_rate * run.weight_decay,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .step_size = static_cast<float>(learning_rate / (1 - std::pow(double{o.beta1}, step))),
          .inverse_root_correction2 =
              static_cast<float>(1 / std::sqrt(1 - std::pow(double{o.beta2}, step))),
          .eps = o.eps};
}

class LlamaBackend : public Backend {
 public:
  /// Constructs a B, allocates its buffers and fills its RoPE tables. options are valid.
  template <class B>
  static Result<std::unique_ptr<Backend>> make(const BackendOptions& options) {
    std::unique_ptr<LlamaBackend> backend = std::make_unique<B>(options);
    SS_RETURN_IF_ERROR(backend->allocate_buffers());
    backend->fill_rope_tables();
    return std::unique_ptr<Backend>(std::move(backend));
  }

  double loss(int frame) final {
    double sum = 0;
    for (const float loss : losses(frame)) sum += double{loss};
    return sum / static_cast<double>(N_);
  }

 protected:
  explicit LlamaBackend(const BackendOptions& options)
      : options_(options),
        B_(options.micro_batch_size),
        T_(options.shape.block_size),
        N_(B_ * T_),
        C_(options.shape.dim),
        D_(options.shape.head_dim()),
        F_(options.shape.widest_mlp()),
        A_(options.shape.q_dim()),
        K_(options.shape.kv_dim()),
        Q_(A_ + 2 * K_),
        V_(options.shape.vocab),
        eps_(static_cast<float>(options.shape.norm_eps)) {}

  /// The norms of a block come after attention and MLP, not before.
  bool post_norm() const { return shape_.norm == NormPlacement::post; }
  bool has_qk_norm() const { return shape_.qk_norm != QkNorm::none; }
  /// One of the norms of queries or keys: every row has `pieces` pieces of `width` elements, which
  /// are normalized one by one with the same weight (width).
  struct QkPieces {
    int64_t pieces, width;
  };
  /// elements: A for queries, K for keys.
  QkPieces qk_pieces(int64_t elements) const {
    return shape_.qk_norm == QkNorm::head ? QkPieces{elements / D_, D_} : QkPieces{1, elements};
  }

  /// Allocates all buffers by take() and sets cosine_ and sine_; returns allocated_.
  virtual Status allocate_buffers() = 0;
  /// Memory for `count` elements. After a failure returns null and allocated_ is the error.
  template <class E>
  E* take(int64_t count) {
    Result<void*> memory = allocate(static_cast<size_t>(count) * sizeof(E));
    if (!memory.ok()) {
      if (allocated_.ok()) allocated_ = memory.status().in("activations");
      return nullptr;
    }
    return static_cast<E*>(*memory);
  }

  /// Muon's Newton-Schulz step X = a X + (b A + c A^2) X with A = X X^T, and the bound of the norm.
  static constexpr int kMuonSteps = arithmetic::kMuonSteps;
  static constexpr float kMuonA = arithmetic::kMuonA, kMuonB = arithmetic::kMuonB,
                         kMuonC = arithmetic::kMuonC;
  static constexpr double kMuonEpsilon = arithmetic::kMuonEpsilon;
  /// Over all matrices of a block and its experts: the largest side beside C, the largest smaller side,
  /// and the most elements.
  int64_t muon_width() const {
    return std::max({A_, K_, F_, shape_.experts.count, shape_.experts.hidden});
  }
  int64_t muon_side() const { return std::min(muon_width(), C_); }
  int64_t muon_elements() const { return muon_width() * C_; }
  static float muon_keep(const Muon& o, const ParameterRun& run) {
    return 1 - o.learning_rate * run.rate_factor * run.weight_decay;
  }
  static float muon_step(const Muon& o, const ParameterRun& run) {
    return o.learning_rate * run.rate_factor * run.muon_scale;
  }

  const BackendOptions options_;
  const ModelShape& shape_ = options_.shape;
  const int64_t B_, T_, N_, C_, D_, F_, A_, K_, Q_, V_;
  const float eps_;
  Status allocated_;                           // the first error of take()
  float *cosine_ = nullptr, *sine_ = nullptr;  // (T, D/2)

 private:
  /// rope_tables(), rounded to the precision.
  void fill_rope_tables() {
    std::vector<float> cosine, sine;
    rope_tables(shape_, cosine, sine);
    if (options_.precision != DType::f32)
      for (std::vector<float>* table : {&cosine, &sine})
        for (float& value : *table) value = bf16_to_f32(f32_to_bf16(value));
    copy_to_device(cosine_, cosine.data(), cosine.size() * sizeof(float));
    copy_to_device(sine_, sine.data(), sine.size() * sizeof(float));
  }
};

}  // namespace simplescale
