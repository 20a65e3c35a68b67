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

// dim, hidden, layers, heads, kv heads, vocab, block size, rope_theta, norm_eps
const Preset presets[] = {
    {"micro", {128, 352, 4, 4, 2, 4096, 256, 10'000, 1e-5}},
    {"mini", {384, 1024, 6, 6, 2, 8192, 256, 10'000, 1e-5}},
    {"small", {768, 2048, 12, 12, 4, 32'000, 1024, 10'000, 1e-5}},
    {"tinyllama", {2048, 5632, 22, 32, 4, 32'000, 2048, 10'000, 1e-5}},
    {"llama3-8b", {4096, 14'336, 32, 32, 8, 128'256, 8192, 500'000, 1e-5}},
    {"llama2-7b", {4096, 11'008, 32, 32, 32, 32'000, 4096, 10'000, 1e-5}},
};

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
  shape.tie_embeddings = model.tie_embeddings;
  if (const Status status = validate(shape); !status.ok()) {
    std::string text = status.message();  // "[model] heads = 5 ..." becomes "model.heads = 5 ..."
    if (text.starts_with("[model] ")) text = "model." + text.substr(8);
    return Status(Code::bad_config, text);
  }
  return shape;
}

}  // namespace simplescale
