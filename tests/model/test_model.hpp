// A small model with random parameters and tokens, and one micro-batch of it through a Backend: the
// common part of this folder's tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "model/backend.hpp"
#include "runtime/training/token_marks.hpp"

namespace simplescale::testing {

/// One flat tensor per unit.
using Tensors = std::vector<std::vector<float>>;

/// `base` with each option of a block by itself, and with all that a family of models combines.
/// base: several heads, and a block_size of at least 9.
inline std::vector<ModelShape> with_options(const ModelShape& base) {
  std::vector<ModelShape> shapes;
  const auto add = [&](auto edit) { edit(shapes.emplace_back(base)); };
  const RopeScaling llama3{.kind = RopeScaling::Kind::llama3,
                           .factor = 8,
                           .low_factor = 1,
                           .high_factor = 4,
                           .original_block_size = 16};
  add([&](ModelShape& s) { s.rope_theta = 100, s.rope_scaling = llama3; });
  add([](ModelShape& s) { s.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 2.5}; });
  add([](ModelShape& s) {
    s.rope_theta = 100, s.rope_scaling = {RopeScaling::Kind::yarn, 4, 0.5, 3, 16};
  });
  add([&](ModelShape& s) { s.head_width = base.head_dim() + 4; });  // wider than dim
  add([&](ModelShape& s) { s.head_width = 2; });                    // narrower
  add([](ModelShape& s) { s.qkv_bias = true; });
  add([](ModelShape& s) { s.qk_norm = QkNorm::head; });
  add([](ModelShape& s) { s.qk_norm = QkNorm::whole; });
  add([](ModelShape& s) { s.sliding_window = 1; });
  add([](ModelShape& s) { s.sliding_window = 5; });
  add([&](ModelShape& s) { s.sliding_window = base.block_size - 1; });
  add([](ModelShape& s) { s.norm = NormPlacement::post; });
  // OLMo 2; Qwen 3 with a window; and everything at once.
  add([](ModelShape& s) { s.norm = NormPlacement::post, s.qk_norm = QkNorm::whole; });
  add([&](ModelShape& s) {
    s.qk_norm = QkNorm::head, s.head_width = base.head_dim() + 4, s.sliding_window = 4;
    s.tie_embeddings = true;
  });
  add([&](ModelShape& s) {
    s.qk_norm = QkNorm::head, s.qkv_bias = true, s.norm = NormPlacement::post;
    s.head_width = base.head_dim() + 4, s.sliding_window = 4, s.rope_scaling = llama3;
    s.tie_embeddings = true;
  });
  return shapes;
}

struct TestModel {
  ModelShape shape;
  int micro_batch_size = 1;
  std::vector<Unit> units;
  Tensors params;
  std::vector<int32_t> tokens;  // (B, T + 1)

  TestModel(const ModelShape& s, int B, uint32_t seed = 1)
      : shape(s), micro_batch_size(B), units(units_of(s)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (const Unit& unit : units) {
      std::vector<float>& flat = params.emplace_back(unit.count);
      for (const Parameter& p : unit.parameters) {
        const float mean = p.is_matrix() || p.is_bias() ? 0.0f : 1.0f;
        // Wide enough to make attention and SwiGLU strongly nonlinear.
        const float width = p.is_matrix() ? 1.5f / std::sqrt(float(s.dim)) : 0.2f;
        for (size_t i = 0; i < p.count; ++i) flat[p.offset + i] = mean + width * normal(random);
      }
    }
    std::uniform_int_distribution<int32_t> token(0, int32_t(s.vocab) - 1);
    tokens.resize(size_t(B) * size_t(s.block_size + 1));
    for (int32_t& t : tokens) t = token(random);
  }

  BackendOptions options(DType precision = DType::f32, int threads = 1) const {
    return {.shape = shape,
            .micro_batch_size = micro_batch_size,
            .precision = precision,
            .threads = threads};
  }
};

/// `m` with documents of several lengths, some of one token, and with targets that are not trained.
inline TestModel with_documents(TestModel m, uint32_t seed = 1) {
  std::mt19937 random(seed);
  for (int32_t& token : m.tokens)
    token |= (random() % 5 == 0 ? kBeginsDocument : 0) | (random() % 6 == 0 ? kNotTrained : 0);
  return m;
}

/// encode() converts fp32 values to the backend's precision, decode() converts them back.
inline std::vector<unsigned char> encode(const std::vector<float>& values, DType dtype) {
  std::vector<unsigned char> bytes(values.size() * bytes_of(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = f32_to_bf16(values[i]);
    if (dtype == DType::f32)
      std::memcpy(&bytes[i * 4], &values[i], 4);
    else
      std::memcpy(&bytes[i * 2], &half, 2);
  }
  return bytes;
}

inline std::vector<float> decode(const std::vector<unsigned char>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / bytes_of(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half = 0;
    if (dtype == DType::f32) {
      std::memcpy(&values[i], &bytes[i * 4], 4);
    } else {
      std::memcpy(&half, &bytes[i * 2], 2);
      values[i] = bf16_to_f32(half);
    }
  }
  return values;
}

struct Outcome {
  double loss = 0;
  Tensors grads;
  std::vector<float> logits;  // (B, T, V)
  std::vector<float> losses;  // (B, T)
};

/// Forward and, if `backward`, backward of the model's tokens, over the backend's memory. Gradients
/// start as garbage, which the backend must overwrite.
inline Outcome run_micro_batch(Backend& backend, const TestModel& m, DType dtype,
                               bool backward = true, float scale = 1) {
  std::vector<void*> params, grads;
  auto upload = [&](std::vector<void*>& to, const std::vector<unsigned char>& bytes) {
    const auto memory = backend.allocate(bytes.size());
    SS_ASSERT(memory.ok());
    backend.copy_to_device(*memory, bytes.data(), bytes.size());
    to.push_back(*memory);
  };
  for (const auto& flat : m.params) {
    upload(params, encode(flat, dtype));
    const std::vector<unsigned char> garbage(flat.size() * bytes_of(dtype), 0x3f);
    if (backward) upload(grads, garbage);
  }
  const int layers = int(m.shape.layers);
  const size_t head = m.params.size() - 1;
  const bool tie = m.shape.tie_embeddings;
  Outcome out;
  backend.embed(params[0], m.tokens.data());
  for (int i = 0; i < layers; ++i) backend.forward_block(i, params[size_t(i) + 1]);
  const void* tied = tie ? params[0] : nullptr;
  out.logits.resize(size_t(m.micro_batch_size) * size_t(m.shape.block_size * m.shape.vocab));
  backend.logits(params[head], tied, out.logits.data());
  backend.head(params[head], tied, scale, backward ? grads[head] : nullptr,
               backward && tie ? grads[0] : nullptr);
  out.loss = backend.loss();
  out.losses.assign(backend.losses().begin(), backend.losses().end());
  if (!backward) return out;
  for (int i = layers; i-- > 0;)
    backend.backward_block(i, params[size_t(i) + 1], grads[size_t(i) + 1]);
  backend.backward_embed(grads[0], tie);
  for (size_t u = 0; u < grads.size(); ++u) {
    std::vector<unsigned char> bytes(m.params[u].size() * bytes_of(dtype));
    backend.copy_to_host(bytes.data(), grads[u], bytes.size());
    out.grads.push_back(decode(bytes, dtype));
  }
  return out;
}

}  // namespace simplescale::testing
