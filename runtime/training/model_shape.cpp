#include "runtime/training/model_shape.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace simplescale {

namespace {

Status validate_rope_scaling(const RopeScaling& r) {
  auto bad = [](const char* text) {
    return Status(Code::bad_config, "[model] " + std::string(text));
  };
  if (r.kind == RopeScaling::Kind::none) return {};
  if (!(r.factor >= 1) || !std::isfinite(r.factor)) return bad("rope_factor must be at least 1");
  if (r.kind == RopeScaling::Kind::linear) return {};
  if (!(r.low_factor > 0) || !(r.high_factor > r.low_factor) || !std::isfinite(r.high_factor))
    return bad("rope_high_factor must be above rope_low_factor, and that one above 0");
  if (r.original_block_size < 1) return bad("rope_original_block_size must be at least 1");
  if (!(r.attention_factor >= 0) || !std::isfinite(r.attention_factor))
    return bad("rope_attention_factor must be at least 0");
  return {};
}

Status validate_experts(const ModelShape& s) {
  const Experts& e = s.experts;
  const auto bad = [](const std::string& text) {
    return Status(Code::bad_config, "[model] " + text);
  };
  const auto number = [](const char* name, int64_t value) {
    return std::string(name) + " = " + std::to_string(value);
  };
  if (e.count < 0) return bad(number("experts", e.count) + " must be at least 0");
  if (e.count == 0)
    return e == Experts{} ? Status() : bad("experts is not set, but another key of experts is");
  if (e.hidden < 1) return bad(number("expert_hidden", e.hidden) + " must be at least 1");
  if (e.per_token < 1 || e.per_token > e.count)
    return bad(number("experts_per_token", e.per_token) + " must be from 1 to " +
               number("experts", e.count));
  if (e.shared < 0) return bad(number("shared_experts", e.shared) + " must be at least 0");
  if (e.dense_layers < 0 || e.dense_layers >= s.layers)
    return bad(number("dense_layers", e.dense_layers) + " must be from 0 to below " +
               number("layers", s.layers));
  if (e.groups < 1 || e.count % e.groups)
    return bad(number("router_groups", e.groups) + " does not divide " +
               number("experts", e.count));
  if (e.groups_per_token < 1 || e.groups_per_token > e.groups)
    return bad(number("router_groups_per_token", e.groups_per_token) + " must be from 1 to " +
               number("router_groups", e.groups));
  if (e.per_token > e.count / e.groups * e.groups_per_token)
    return bad(number("experts_per_token", e.per_token) + " is more than " +
               number("router_groups_per_token", e.groups_per_token) + " groups have experts");
  if (!(e.scale > 0) || !std::isfinite(e.scale)) return bad("router_scale must be above 0");
  if (s.norm == NormPlacement::post)
    return bad(
        "experts need norm = \"pre\"; with norms after attention and MLP they are not "
        "supported");
  return {};
}

}  // namespace

Status validate(const ModelShape& s) {
  auto bad = [](const std::string& text) { return Status(Code::bad_config, "[model] " + text); };
  const std::pair<const char*, int64_t> positive[] = {{"dim", s.dim},
                                                      {"hidden", s.hidden},
                                                      {"layers", s.layers},
                                                      {"heads", s.heads},
                                                      {"kv_heads", s.kv_heads},
                                                      {"vocab", s.vocab},
                                                      {"block_size", s.block_size}};
  for (const auto& [name, value] : positive)
    if (value < 1)
      return bad(std::string(name) + " = " + std::to_string(value) + " must be at least 1");
  if (s.head_width < 0)
    return bad("head_dim = " + std::to_string(s.head_width) + " must be at least 0");
  if (s.head_width == 0 && s.dim % s.heads)
    return bad("heads = " + std::to_string(s.heads) +
               " does not divide dim = " + std::to_string(s.dim));
  if (s.heads % s.kv_heads)
    return bad("kv_heads = " + std::to_string(s.kv_heads) +
               " does not divide heads = " + std::to_string(s.heads));
  if (s.head_dim() % 2)
    return bad((s.head_width > 0 ? "head_dim = " : "dim / heads = ") +
               std::to_string(s.head_dim()) + " must be even for RoPE");
  if (!(s.norm_eps > 0)) return bad("norm_eps must be above 0");
  if (!(s.rope_theta > 0)) return bad("rope_theta must be above 0");
  if (s.rope_scaling.kind == RopeScaling::Kind::yarn && !(s.rope_theta > 1))
    return bad("rope_theta must be above 1 with rope_scaling = \"yarn\"");
  if (s.sliding_window < 0) return bad("sliding_window must be at least 0");
  SS_RETURN_IF_ERROR(validate_experts(s));
  return validate_rope_scaling(s.rope_scaling);
}

Status validate_fp8(const ModelShape& s, int64_t micro_batch_size) {
  const std::pair<const char*, int64_t> sides[] = {
      {"dim", s.dim},
      {"hidden", s.hidden},
      {"heads * head_dim", s.q_dim()},
      {"(heads + 2 kv_heads) * head_dim", s.q_dim() + 2 * s.kv_dim()},
      {"micro_batch_size * block_size", micro_batch_size * s.block_size}};
  for (const auto& [name, value] : sides)
    if (value % 16)
      return Status(Code::bad_config, "products in fp8 on a GPU need " + std::string(name) +
                                          " as a multiple of 16, and it is " +
                                          std::to_string(value));
  return {};
}

Status validate_gpu_heads(const ModelShape& s, DType precision) {
  const int64_t multiple = precision == DType::f32 ? 4 : 8;
  if (s.head_dim() % multiple == 0 && s.head_dim() <= 256) return {};
  return Status(Code::bad_config, "heads of " + std::to_string(s.head_dim()) +
                                      " elements: on a GPU they must be multiples of " +
                                      std::to_string(multiple) + " and at most 256");
}

ModelShape canonical(ModelShape s) {
  if (s.head_width * s.heads == s.dim) s.head_width = 0;
  if (s.experts.count > 0 && s.experts.dense_layers == 0) s.hidden = s.experts.hidden;
  RopeScaling& r = s.rope_scaling;
  if (r.kind == RopeScaling::Kind::none) r = {};
  if (r.kind == RopeScaling::Kind::linear) r = {.kind = r.kind, .factor = r.factor};
  if (r.kind != RopeScaling::Kind::yarn || r.attention_factor == 0.1 * std::log(r.factor) + 1)
    r.attention_factor = 0;
  return s;
}

std::string identity_text(const ModelShape& s) {
  std::ostringstream text;
  text << std::hexfloat;
  for (int64_t n : {s.dim, s.hidden, s.layers, s.heads, s.kv_heads, s.vocab, s.block_size,
                    s.head_dim(), s.sliding_window, s.rope_scaling.original_block_size})
    text << n << ' ';
  if (const Experts& e = s.experts; e.count > 0) {
    for (int64_t n :
         {e.count, e.per_token, e.hidden, e.shared, e.dense_layers, e.groups, e.groups_per_token,
          int64_t{e.normalize}, int64_t{e.bias}, static_cast<int64_t>(e.score)})
      text << n << ' ';
    text << e.scale << ' ';
  }
  for (int n : {int(s.tie_embeddings), int(s.qkv_bias), int(s.qk_norm), int(s.norm),
                int(s.rope_scaling.kind)})
    text << n << ' ';
  for (double x : {s.rope_theta, s.norm_eps, s.rope_scaling.factor, s.rope_scaling.low_factor,
                   s.rope_scaling.high_factor, s.rope_scaling.attention_factor})
    text << x << ' ';
  return text.str();
}

std::string options_text(const ModelShape& s) {
  std::string text;
  auto add = [&](bool set, const std::string& option) {
    if (set) text += (text.empty() ? "" : ", ") + option;
  };
  add(s.head_width > 0, "head_dim " + std::to_string(s.head_dim()));
  add(s.qkv_bias, "qkv_bias");
  add(s.qk_norm != QkNorm::none, "qk_norm " + std::string(to_string(s.qk_norm)));
  add(s.norm != NormPlacement::pre, "norm " + std::string(to_string(s.norm)));
  add(s.sliding_window > 0, "sliding_window " + std::to_string(s.sliding_window));
  add(s.rope_scaling.kind != RopeScaling::Kind::none,
      "rope_scaling " + std::string(to_string(s.rope_scaling.kind)));
  add(s.tie_embeddings, "tied embeddings");
  if (const Experts& e = s.experts; e.count > 0) {
    add(true, std::to_string(e.per_token) + " of " + std::to_string(e.count) + " experts of " +
                  std::to_string(e.hidden));
    add(e.shared > 0, std::to_string(e.shared) + " shared");
    add(e.dense_layers > 0, "dense layers " + std::to_string(e.dense_layers));
    add(e.score != RouterScore::softmax, "router " + std::string(to_string(e.score)));
    add(e.bias, "router bias");
    add(e.groups > 1,
        "router groups " + std::to_string(e.groups_per_token) + " of " + std::to_string(e.groups));
  }
  return text;
}

const char* to_string(RopeScaling::Kind kind) {
  constexpr const char* names[] = {"none", "linear", "llama3", "yarn"};
  return names[static_cast<int>(kind)];
}
const char* to_string(QkNorm norm) {
  constexpr const char* names[] = {"none", "head", "whole"};
  return names[static_cast<int>(norm)];
}
const char* to_string(NormPlacement placement) {
  return placement == NormPlacement::pre ? "pre" : "post";
}

const char* to_string(RouterScore score) {
  return score == RouterScore::softmax ? "softmax" : "sigmoid";
}

namespace {

/// hugging_face_class() of a model with experts.
const char* class_with_experts(const ModelShape& s) {
  const Experts& e = s.experts;
  if (e.score == RouterScore::sigmoid) {
    // Their routers add two experts of each group, and have a bias; their blocks have shared experts.
    if (!e.bias || e.shared == 0 || e.count / e.groups < 2 || s.qk_norm == QkNorm::whole)
      return nullptr;
    if (s.qk_norm == QkNorm::head && !s.qkv_bias) return "Dots1ForCausalLM";
    return s.sliding_window > 0 ? nullptr : "Glm4MoeForCausalLM";
  }
  if (s.qkv_bias || e.bias || e.shared > 0 || e.scale != 1 || e.groups_per_token < e.groups)
    return nullptr;
  if (s.qk_norm == QkNorm::head) return "Qwen3MoeForCausalLM";
  if (e.dense_layers > 0) return nullptr;
  if (s.qk_norm == QkNorm::none) return e.normalize ? "MixtralForCausalLM" : nullptr;
  return s.sliding_window == 0 && s.q_dim() == s.dim ? "OlmoeForCausalLM" : nullptr;
}

}  // namespace

const char* hugging_face_class(const ModelShape& s) {
  if (s.experts.count > 0) return class_with_experts(s);
  if (s.norm == NormPlacement::post) {
    const bool olmo2 =
        s.qk_norm == QkNorm::whole && !s.qkv_bias && s.sliding_window == 0 && s.q_dim() == s.dim;
    return olmo2 ? "Olmo2ForCausalLM" : nullptr;
  }
  switch (s.qk_norm) {
    case QkNorm::whole:
      return nullptr;
    case QkNorm::head:
      return s.qkv_bias ? nullptr : "Qwen3ForCausalLM";
    case QkNorm::none:
      break;
  }
  if (s.qkv_bias) return "Qwen2ForCausalLM";
  // LlamaForCausalLM refuses heads that do not divide dim; MistralForCausalLM computes the same.
  return s.sliding_window > 0 || s.dim % s.heads ? "MistralForCausalLM" : "LlamaForCausalLM";
}

std::vector<Unit> units_of(const ModelShape& s) {
  std::vector<Unit> units;
  uint64_t id = 0;
  auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    Unit& unit = units.back();
    size_t count = 1;
    for (int64_t n : shape) count *= static_cast<size_t>(n);
    unit.parameters.push_back({name, std::move(shape), unit.count, count, id++});
    unit.count += count;
  };
  const auto begin = [&](const std::string& name, Unit::Kind kind, int64_t layer) {
    units.push_back({name, {}, 0, kind, static_cast<int>(layer)});
  };
  const auto add_mlp = [&](const std::string& at, int64_t hidden) {
    add(at + "gate_proj.weight", {hidden, s.dim});
    add(at + "up_proj.weight", {hidden, s.dim});
    add(at + "down_proj.weight", {s.dim, hidden});
  };
  begin("embed", Unit::Kind::embed, -1);
  add("model.embed_tokens.weight", {s.vocab, s.dim});
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string name = "layers." + std::to_string(i);
    begin(name, Unit::Kind::block, i);
    const std::string at = "model.layers." + std::to_string(i) + ".", self = at + "self_attn.";
    const bool pre = s.norm == NormPlacement::pre;
    const std::pair<const char*, int64_t> qkv[] = {
        {"q_proj", s.q_dim()}, {"k_proj", s.kv_dim()}, {"v_proj", s.kv_dim()}};
    add(at + (pre ? "input_layernorm.weight" : "post_attention_layernorm.weight"), {s.dim});
    for (const auto& [name, width] : qkv) add(self + name + ".weight", {width, s.dim});
    if (s.qkv_bias)
      for (const auto& [name, width] : qkv) add(self + name + ".bias", {width});
    if (s.qk_norm != QkNorm::none) {
      add(self + "q_norm.weight", {s.q_norm_width()});
      add(self + "k_norm.weight", {s.k_norm_width()});
    }
    add(self + "o_proj.weight", {s.dim, s.q_dim()});
    add(at + (pre ? "post_attention_layernorm.weight" : "post_feedforward_layernorm.weight"),
        {s.dim});
    const std::string mlp = at + "mlp.";
    const bool has_experts = s.has_experts(i);
    if (has_experts) {
      add(mlp + "gate.weight", {s.experts.count, s.dim});
      if (s.experts.bias) add(mlp + "gate.e_score_correction_bias", {s.experts.count});
    }
    if (const int64_t width = s.mlp_width(i); width > 0)
      add_mlp(has_experts ? mlp + "shared_experts." : mlp, width);
    if (!has_experts) continue;
    begin(name + ".experts", Unit::Kind::experts, i);
    for (int64_t e = 0; e < s.experts.count; ++e)
      add_mlp(mlp + "experts." + std::to_string(e) + ".", s.experts.hidden);
  }
  begin("head", Unit::Kind::head, -1);
  add("model.norm.weight", {s.dim});
  if (!s.tie_embeddings) add("lm_head.weight", {s.vocab, s.dim});
  return units;
}

size_t unit_of_block(const ModelShape& s, int64_t layer) {
  const int64_t with_experts =
      s.experts.count > 0 ? std::max<int64_t>(0, layer - s.experts.dense_layers) : 0;
  return static_cast<size_t>(1 + layer + with_experts);
}

size_t parameter_count(const ModelShape& shape) {
  size_t count = 0;
  for (const Unit& unit : units_of(shape)) count += unit.count;
  return count;
}

size_t active_parameters(const ModelShape& s) {
  if (s.experts.count == 0) return parameter_count(s);
  const int64_t resting = (s.layers - s.experts.dense_layers) *
                          (s.experts.count - s.experts.per_token) * 3 * s.experts.hidden * s.dim;
  return parameter_count(s) - static_cast<size_t>(resting);
}

ShardLayout shard_layout(const std::vector<Unit>& units, size_t shards) {
  ShardLayout layout;
  layout.shards = shards;
  for (const Unit& unit : units) {
    layout.offset.push_back(layout.total);
    layout.count.push_back(shard_count(unit.count, shards));
    layout.total += layout.count.back();
  }
  return layout;
}

bool has_whole_experts(const ModelShape& shape, size_t shards) {
  const Experts& x = shape.experts;
  const auto S = static_cast<int64_t>(shards);
  return S > 1 && x.count > 0 && x.count % S == 0 &&
         x.count / S * 3 * x.hidden * shape.dim % static_cast<int64_t>(kShardAlign) == 0;
}

std::vector<Piece> common_pieces(const std::vector<Unit>& units, size_t from_shards,
                                 size_t from_shard, size_t to_shards, size_t to_shard) {
  const ShardLayout from = shard_layout(units, from_shards), to = shard_layout(units, to_shards);
  std::vector<Piece> pieces;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const size_t from_first = from_shard * from.count[unit], to_first = to_shard * to.count[unit];
    const size_t first = std::max(from_first, to_first),
                 end = std::min({from_first + from.count[unit], to_first + to.count[unit],
                                 shard_count(units[unit].count, 1)});
    if (first < end)
      pieces.push_back({from.offset[unit] + first - from_first, to.offset[unit] + first - to_first,
                        end - first});
  }
  return pieces;
}

}  // namespace simplescale
