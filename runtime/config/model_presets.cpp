// Model shapes by name, as published, and the shape of a config.
#include <algorithm>
#include <utility>

#include "runtime/config/config.hpp"

namespace simplescale {
namespace {

struct Preset {
  const char* name;
  ModelShape shape;
};

ModelShape llama3(ModelShape shape, double factor) {
  shape.rope_theta = 500'000;
  shape.rope_scaling = {.kind = RopeScaling::Kind::llama3, .factor = factor};
  return shape;
}
ModelShape qwen(ModelShape shape, int64_t head_dim, bool tied) {
  shape.rope_theta = 1'000'000, shape.norm_eps = 1e-6;
  shape.head_width = head_dim, shape.tie_embeddings = tied;
  shape.qk_norm = head_dim > 0 ? QkNorm::head : QkNorm::none;  // Qwen3, or Qwen2.5
  shape.qkv_bias = head_dim == 0;
  return canonical(shape);
}
ModelShape olmo2(ModelShape shape) {
  shape.rope_theta = 500'000, shape.norm_eps = 1e-6;
  shape.norm = NormPlacement::post, shape.qk_norm = QkNorm::whole;
  return shape;
}
ModelShape with_window(ModelShape shape, int64_t window) {
  shape.sliding_window = window;
  return shape;
}
ModelShape with_experts(ModelShape shape, const Experts& experts) {
  shape.experts = experts;
  return canonical(shape);
}
ModelShape olmoe(ModelShape shape) {
  shape.qk_norm = QkNorm::whole;
  return with_experts(shape, {.count = 64, .per_token = 8, .hidden = 1024, .normalize = false});
}
ModelShape tied(ModelShape shape) {
  shape.tie_embeddings = true;
  return shape;
}

// dim, hidden, layers, heads, kv heads, vocab, block size, rope_theta, norm_eps. Where the published
// context is longer than 8192, the block size is 8192, or rope_scaling's original one.
const Preset presets[] = {
    {"micro", {128, 352, 4, 4, 2, 4096, 256, 10'000, 1e-5}},
    {"moe-micro", with_experts({128, 352, 4, 4, 2, 4096, 256, 10'000, 1e-5},
                               {.count = 8, .per_token = 2, .hidden = 176})},
    {"mini", {384, 1024, 6, 6, 2, 8192, 256, 10'000, 1e-5}},
    {"small", {768, 2048, 12, 12, 4, 32'000, 1024, 10'000, 1e-5}},
    {"tinyllama", {2048, 5632, 22, 32, 4, 32'000, 2048, 10'000, 1e-5}},
    {"llama3-8b", {4096, 14'336, 32, 32, 8, 128'256, 8192, 500'000, 1e-5}},
    {"llama2-7b", {4096, 11'008, 32, 32, 32, 32'000, 4096, 10'000, 1e-5}},
    {"llama-3.1-8b", llama3({4096, 14'336, 32, 32, 8, 128'256, 8192}, 8)},
    {"llama-3.2-1b", tied(llama3({2048, 8192, 16, 32, 8, 128'256, 8192}, 32))},
    {"llama-3.2-3b", tied(llama3({3072, 8192, 28, 24, 8, 128'256, 8192}, 32))},
    {"mistral-7b", with_window({4096, 14'336, 32, 32, 8, 32'000, 8192}, 4096)},
    {"qwen2.5-0.5b", qwen({896, 4864, 24, 14, 2, 151'936, 8192}, 0, true)},
    {"qwen2.5-7b", qwen({3584, 18'944, 28, 28, 4, 152'064, 8192}, 0, false)},
    {"qwen3-0.6b", qwen({1024, 3072, 28, 16, 8, 151'936, 8192}, 128, true)},
    {"qwen3-8b", qwen({4096, 12'288, 36, 32, 8, 151'936, 8192}, 128, false)},
    {"qwen3-30b-a3b", with_experts(qwen({2048, 6144, 48, 32, 4, 151'936, 8192}, 128, false),
                                   {.count = 128, .per_token = 8, .hidden = 768})},
    {"mixtral-8x7b", with_experts({4096, 14'336, 32, 32, 8, 32'000, 8192, 1'000'000, 1e-5},
                                  {.count = 8, .per_token = 2, .hidden = 14'336})},
    {"olmoe-1b-7b", olmoe({2048, 1024, 16, 16, 16, 50'304, 4096, 10'000, 1e-5})},
    {"olmo2-1b", olmo2({2048, 8192, 16, 16, 16, 100'352, 4096})},
    {"olmo2-7b", olmo2({4096, 11'008, 32, 32, 32, 100'352, 4096})},
};

/// Sets `member` unless the key is automatic, whose byte is 0; the other names are in member's order.
template <class Key, class Member>
void choose(Key key, Member& member) {
  if (key != Key::automatic) member = static_cast<Member>(static_cast<int>(key) - 1);
}
template <class Key, class Member>
Key chosen(Member member) {
  return static_cast<Key>(static_cast<int>(member) + 1);
}

Status set_experts(const ModelConfig& model, ModelShape& shape) {
  Experts& e = shape.experts;
  if (model.experts >= 0) e.count = model.experts;
  const std::pair<const char*, bool> set[] = {
      {"experts_per_token", model.experts_per_token > 0},
      {"expert_hidden", model.expert_hidden > 0},
      {"shared_experts", model.shared_experts > 0},
      {"dense_layers", model.dense_layers > 0},
      {"router_score", model.router_score != RouterScoreChoice::automatic},
      {"router_normalize", model.router_normalize != Choice::automatic},
      {"router_scale", model.router_scale > 0},
      {"router_bias", model.router_bias != Choice::automatic},
      {"router_groups", model.router_groups > 0},
      {"router_groups_per_token", model.router_groups_per_token > 0}};
  if (e.count == 0) {
    e = {};
    for (const auto& [name, is_set] : set)
      if (is_set)
        return Status(Code::bad_config, std::string("model.") + name +
                                            " has no effect without experts; remove it, or set "
                                            "model.experts");
    return {};
  }
  if (model.experts_per_token > 0) e.per_token = model.experts_per_token;
  if (e.per_token == 0) e.per_token = 2;
  if (model.expert_hidden > 0) e.hidden = model.expert_hidden;
  if (e.hidden == 0) e.hidden = shape.hidden;
  if (model.shared_experts >= 0) e.shared = model.shared_experts;
  if (model.dense_layers >= 0) e.dense_layers = model.dense_layers;
  choose(model.router_score, e.score);
  choose(model.router_normalize, e.normalize);
  choose(model.router_bias, e.bias);
  if (model.router_scale > 0) e.scale = model.router_scale;
  if (model.router_groups > 0) e.groups = model.router_groups;
  if (model.router_groups_per_token > 0) e.groups_per_token = model.router_groups_per_token;
  return {};
}

Status set_rope_scaling(const ModelConfig& model, RopeScaling& rope) {
  if (model.rope_scaling == RopeScalingChoice::dynamic)
    return Status(Code::bad_config,
                  "model.rope_scaling = \"dynamic\" is not supported: its angles depend on the "
                  "length of each sequence; take \"yarn\", \"llama3\" or \"linear\"");
  const RopeScaling::Kind before = rope.kind;
  choose(model.rope_scaling, rope.kind);
  if (rope.kind != before && rope.kind == RopeScaling::Kind::yarn) rope.high_factor = 32;
  const std::pair<const char*, bool> set[] = {
      {"rope_factor", model.rope_factor > 0},
      {"rope_low_factor", model.rope_low_factor > 0},
      {"rope_high_factor", model.rope_high_factor > 0},
      {"rope_original_block_size", model.rope_original_block_size > 0},
      {"rope_attention_factor", model.rope_attention_factor > 0}};
  const int used = rope.kind == RopeScaling::Kind::none     ? 0
                   : rope.kind == RopeScaling::Kind::linear ? 1
                   : rope.kind == RopeScaling::Kind::llama3 ? 4
                                                            : 5;
  for (int i = used; i < 5; ++i)
    if (set[i].second)
      return Status(Code::bad_config, std::string("model.") + set[i].first +
                                          " has no effect with rope_scaling = \"" +
                                          to_string(rope.kind) +
                                          "\"; remove it, or set "
                                          "model.rope_scaling");
  if (rope.kind == RopeScaling::Kind::none) return {};
  if (model.rope_factor > 0) rope.factor = model.rope_factor;
  if (rope.factor == 1 && model.rope_factor == 0) rope.factor = 8;
  if (model.rope_low_factor > 0) rope.low_factor = model.rope_low_factor;
  if (model.rope_high_factor > 0) rope.high_factor = model.rope_high_factor;
  if (model.rope_original_block_size > 0) rope.original_block_size = model.rope_original_block_size;
  if (model.rope_attention_factor > 0) rope.attention_factor = model.rope_attention_factor;
  return {};
}

}  // namespace

const std::vector<std::string>& model_presets() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Preset& preset : presets) list.push_back(preset.name);
    return list;
  }();
  return names;
}

Result<ModelShape> model_shape(const Config& config) {
  const ModelConfig& model = config.model;
  ModelShape shape;
  if (!model.preset.empty()) {
    const auto found =
        std::find_if(std::begin(presets), std::end(presets),
                     [&](const Preset& preset) { return model.preset == preset.name; });
    if (found == std::end(presets)) {
      std::string known;
      for (const std::string& name : model_presets()) known += (known.empty() ? "" : ", ") + name;
      return Status(Code::bad_config,
                    "model.preset = \"" + model.preset + "\" is not known; presets are " + known);
    }
    shape = found->shape;
  }
  const std::pair<const char*, std::pair<int64_t, int64_t*>> sizes[] = {
      {"dim", {model.dim, &shape.dim}},
      {"hidden", {model.hidden, &shape.hidden}},
      {"layers", {model.layers, &shape.layers}},
      {"heads", {model.heads, &shape.heads}},
      {"kv_heads", {model.kv_heads, &shape.kv_heads}},
      {"vocab", {model.vocab, &shape.vocab}},
      {"block_size", {model.block_size, &shape.block_size}}};
  for (const auto& [name, value] : sizes) {
    const auto [wanted, member] = value;
    if (wanted > 0) *member = wanted;
    if (*member == 0)
      return Status(Code::bad_config,
                    std::string("model.") + name + " is not set: set it, or model.preset");
  }
  if (model.rope_theta > 0) shape.rope_theta = model.rope_theta;
  if (model.norm_eps > 0) shape.norm_eps = model.norm_eps;
  choose(model.tie_embeddings, shape.tie_embeddings);
  choose(model.qkv_bias, shape.qkv_bias);
  choose(model.qk_norm, shape.qk_norm);
  choose(model.norm, shape.norm);
  if (model.head_dim > 0) shape.head_width = model.head_dim;
  if (model.sliding_window >= 0) shape.sliding_window = model.sliding_window;
  SS_RETURN_IF_ERROR(set_rope_scaling(model, shape.rope_scaling));
  SS_RETURN_IF_ERROR(set_experts(model, shape));
  if (const Status status = validate(shape); !status.ok()) {
    std::string text = status.message();  // "[model] heads = 5 ..." becomes "model.heads = 5 ..."
    if (text.starts_with("[model] ")) text = "model." + text.substr(8);
    return Status(Code::bad_config, text);
  }
  return canonical(shape);
}

ModelConfig model_config(const ModelShape& s, const std::string& preset) {
  ModelConfig model;
  model.preset = preset;
  model.dim = s.dim, model.hidden = s.hidden, model.layers = s.layers, model.heads = s.heads;
  model.kv_heads = s.kv_heads, model.vocab = s.vocab, model.block_size = s.block_size;
  model.rope_theta = s.rope_theta, model.norm_eps = s.norm_eps;
  model.tie_embeddings = chosen<Choice>(s.tie_embeddings);
  model.head_dim = s.head_dim();
  model.qkv_bias = chosen<Choice>(s.qkv_bias);
  model.qk_norm = chosen<QkNormChoice>(s.qk_norm);
  model.norm = chosen<NormChoice>(s.norm);
  model.sliding_window = s.sliding_window;
  if (const Experts& e = s.experts; e.count > 0) {
    model.experts_per_token = e.per_token, model.expert_hidden = e.hidden;
    model.shared_experts = e.shared, model.dense_layers = e.dense_layers;
    model.router_score = chosen<RouterScoreChoice>(e.score);
    model.router_normalize = chosen<Choice>(e.normalize);
    model.router_bias = chosen<Choice>(e.bias);
    model.router_scale = e.scale;
    model.router_groups = e.groups, model.router_groups_per_token = e.groups_per_token;
  }
  model.experts = s.experts.count;
  const RopeScaling& rope = s.rope_scaling;
  model.rope_scaling = chosen<RopeScalingChoice>(rope.kind);
  if (rope.kind == RopeScaling::Kind::none) return model;
  model.rope_factor = rope.factor;
  if (rope.kind == RopeScaling::Kind::linear) return model;
  model.rope_low_factor = rope.low_factor, model.rope_high_factor = rope.high_factor;
  model.rope_original_block_size = rope.original_block_size;
  model.rope_attention_factor = rope.attention_factor;
  return model;
}

}  // namespace simplescale
