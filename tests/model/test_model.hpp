// A small model with random parameters and tokens, and one micro-batch of it through a Backend: the
// common part of this folder's tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <sstream>
#include <string>
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

/// `base` with mixtures of experts of several kinds, and three layers.
inline std::vector<ModelShape> with_experts(ModelShape base) {
  base.layers = 3;
  std::vector<ModelShape> shapes;
  const auto add = [&](const Experts& experts) {
    shapes.emplace_back(base).experts = experts;
    shapes.back() = canonical(shapes.back());
  };
  add({.count = 5, .per_token = 2, .hidden = 24});                      // Mixtral, Qwen3
  add({.count = 3, .per_token = 3, .hidden = 70, .normalize = false});  // all of them
  add({.count = 9,  // one; a weight that is divided by itself would have no gradient
       .per_token = 1,
       .hidden = 20,
       .dense_layers = 1,
       .normalize = false,
       .scale = 2});
  add({.count = 6, .per_token = 2, .hidden = 20, .shared = 2, .dense_layers = 2});
  add({.count = 8, .per_token = 3, .hidden = 24, .groups = 4, .groups_per_token = 2});
  add({.count = 8,  // DeepSeek-V3
       .per_token = 2,
       .hidden = 16,
       .shared = 1,
       .dense_layers = 1,
       .score = RouterScore::sigmoid,
       .scale = 2.5,
       .bias = true,
       .groups = 2,
       .groups_per_token = 1});
  shapes[0].qk_norm = QkNorm::head, shapes[1].qk_norm = QkNorm::whole;
  shapes[2].tie_embeddings = true, shapes[3].sliding_window = 5, shapes[4].qkv_bias = true;
  return shapes;
}

/// As the scripts of this folder read them.
inline std::string experts_json(const Experts& x) {
  std::ostringstream out;
  out << R"({"count":)" << x.count << R"(,"per_token":)" << x.per_token << R"(,"hidden":)"
      << x.hidden << R"(,"shared":)" << x.shared << R"(,"dense_layers":)" << x.dense_layers
      << R"(,"score":")" << to_string(x.score) << R"(","normalize":)"
      << (x.normalize ? "true" : "false") << R"(,"scale":)" << x.scale << R"(,"bias":)"
      << (x.bias ? "true" : "false") << R"(,"groups":)" << x.groups << R"(,"groups_per_token":)"
      << x.groups_per_token << "}";
  return out.str();
}

/// The same, but every token passes all experts: a choice is no smooth function of the parameters.
inline std::vector<ModelShape> with_all_experts(const ModelShape& base) {
  std::vector<ModelShape> shapes = with_experts(base);
  for (ModelShape& shape : shapes) {
    shape.experts.groups = shape.experts.groups_per_token = 1;
    shape.experts.per_token = shape.experts.count;
  }
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

/// Forward and, if `backward`, backward of micro-batches that pass each unit together, a frame each,
/// over the backend's memory. Gradients start as garbage, which the backend must overwrite.
inline std::vector<Outcome> run_frames(Backend& backend, const TestModel& m,
                                       std::span<const std::vector<int32_t>> tokens, DType dtype,
                                       bool backward = true, float scale = 1) {
  auto upload = [&](const std::vector<unsigned char>& bytes) {
    const auto memory = backend.allocate(bytes.size());
    SS_ASSERT(memory.ok());
    backend.copy_to_device(*memory, bytes.data(), bytes.size());
    return *memory;
  };
  std::vector<void*> params, grads;
  for (const auto& flat : m.params) {
    params.push_back(upload(encode(flat, dtype)));
    const std::vector<unsigned char> garbage(flat.size() * bytes_of(dtype), 0x3f);
    grads.push_back(backward ? upload(garbage) : nullptr);
  }
  const auto read = [&](size_t unit, void* from) {
    std::vector<unsigned char> bytes(m.params[unit].size() * bytes_of(dtype));
    backend.copy_to_host(bytes.data(), from, bytes.size());
    return decode(bytes, dtype);
  };
  const int frames = int(tokens.size());
  const size_t head = m.params.size() - 1;
  const void* tied = m.shape.tie_embeddings ? params[0] : nullptr;
  void* of_head = backward && tied ? upload(encode(m.params[0], dtype)) : nullptr;
  std::vector<Outcome> out(tokens.size());
  for (int f = 0; f < frames; ++f) backend.embed(f, params[0], tokens[size_t(f)].data());
  const auto has_experts = [&](size_t unit) { return m.units[unit].kind == Unit::Kind::experts; };
  for (size_t unit = 1; unit < head; ++unit)
    for (int f = 0; f < frames; ++f)
      if (const int layer = m.units[unit].layer; has_experts(unit))
        backend.forward_experts(f, layer, params[unit]);
      else
        backend.forward_block(f, layer, params[unit]);
  for (int f = 0; f < frames; ++f) {
    Outcome& o = out[size_t(f)];
    o.logits.resize(size_t(m.micro_batch_size) * size_t(m.shape.block_size * m.shape.vocab));
    backend.logits(f, params[head], tied, o.logits.data());
    backend.head(f, params[head], tied, scale, grads[head], of_head);
    if (!backward) continue;
    o.grads.resize(m.params.size());
    o.grads[head] = read(head, grads[head]);
    if (tied) o.grads[0] = read(0, of_head);
  }
  for (int f = 0; f < frames; ++f) {
    out[size_t(f)].loss = backend.loss(f);
    out[size_t(f)].losses.assign(backend.losses(f).begin(), backend.losses(f).end());
  }
  if (!backward) return out;
  for (size_t unit = head - 1; unit > 0; --unit)
    for (int f = 0; f < frames; ++f) {
      if (const int layer = m.units[unit].layer; has_experts(unit))
        backend.backward_experts(f, layer, params[unit - 1], params[unit], grads[unit]);
      else
        backend.backward_block(f, layer, params[unit], grads[unit]);
      out[size_t(f)].grads[unit] = read(unit, grads[unit]);
    }
  for (int f = 0; f < frames; ++f) {
    backend.backward_embed(f, grads[0]);
    std::vector<float>& sum = out[size_t(f)].grads[0];
    const std::vector<float> grad = read(0, grads[0]);
    sum.resize(grad.size());
    for (size_t i = 0; i < grad.size(); ++i) sum[i] += grad[i];
  }
  return out;
}

/// As run_frames(), of the model's tokens.
inline Outcome run_micro_batch(Backend& backend, const TestModel& m, DType dtype,
                               bool backward = true, float scale = 1) {
  return std::move(run_frames(backend, m, {&m.tokens, 1}, dtype, backward, scale)[0]);
}

/// The outcomes of three micro-batches, one after the other in a backend with one frame, and together
/// in one with three.
inline std::pair<std::vector<Outcome>, std::vector<Outcome>> alone_and_together(
    const std::function<std::unique_ptr<Backend>(const BackendOptions&)>& make,
    BackendOptions options, const TestModel& m) {
  std::vector<std::vector<int32_t>> tokens{m.tokens, m.tokens, with_documents(m, 7).tokens};
  std::ranges::reverse(tokens[1]);
  std::pair<std::vector<Outcome>, std::vector<Outcome>> found;
  const auto one = make(options);
  for (const std::vector<int32_t>& of_one : tokens)
    found.first.push_back(run_frames(*one, m, {&of_one, 1}, options.precision)[0]);
  options.frames = 3;
  found.second = run_frames(*make(options), m, tokens, options.precision);
  return found;
}

}  // namespace simplescale::testing
