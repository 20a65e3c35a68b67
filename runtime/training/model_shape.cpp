#include "runtime/training/model_shape.hpp"

namespace simplescale {

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
  if (s.dim % s.heads)
    return bad("heads = " + std::to_string(s.heads) +
               " does not divide dim = " + std::to_string(s.dim));
  if (s.heads % s.kv_heads)
    return bad("kv_heads = " + std::to_string(s.kv_heads) +
               " does not divide heads = " + std::to_string(s.heads));
  if (s.head_dim() % 2)
    return bad("dim / heads = " + std::to_string(s.head_dim()) + " must be even for RoPE");
  if (!(s.norm_eps > 0)) return bad("norm_eps must be above 0");
  if (!(s.rope_theta > 0)) return bad("rope_theta must be above 0");
  return {};
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
  units.push_back({"embed", {}, 0});
  add("model.embed_tokens.weight", {s.vocab, s.dim});
  const int64_t kv_dim = s.kv_heads * s.head_dim();
  for (int64_t i = 0; i < s.layers; ++i) {
    units.push_back({"layers." + std::to_string(i), {}, 0});
    const std::string at = "model.layers." + std::to_string(i) + ".";
    add(at + "input_layernorm.weight", {s.dim});
    add(at + "self_attn.q_proj.weight", {s.dim, s.dim});
    add(at + "self_attn.k_proj.weight", {kv_dim, s.dim});
    add(at + "self_attn.v_proj.weight", {kv_dim, s.dim});
    add(at + "self_attn.o_proj.weight", {s.dim, s.dim});
    add(at + "post_attention_layernorm.weight", {s.dim});
    add(at + "mlp.gate_proj.weight", {s.hidden, s.dim});
    add(at + "mlp.up_proj.weight", {s.hidden, s.dim});
    add(at + "mlp.down_proj.weight", {s.dim, s.hidden});
  }
  units.push_back({"head", {}, 0});
  add("model.norm.weight", {s.dim});
  if (!s.tie_embeddings) add("lm_head.weight", {s.vocab, s.dim});
  return units;
}

size_t parameter_count(const ModelShape& shape) {
  size_t count = 0;
  for (const Unit& unit : units_of(shape)) count += unit.count;
  return count;
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

}  // namespace simplescale
