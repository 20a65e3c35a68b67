#include "tools/convert/hf_config.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/printable.hpp"
#include "runtime/checkpoint/checkpoint_format.hpp"
#include "tools/convert/huggingface.hpp"

namespace simplescale {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

/// What a family of transformers fixes, and where its config.json differs from the others'.
struct Family {
  const char* architecture;
  const char* model_type;
  bool qkv_bias;
  QkNorm qk_norm;
  NormPlacement norm;
  double norm_eps;                // if rms_norm_eps is missing
  int64_t head_dim;               // if head_dim is missing; 0: hidden_size / num_attention_heads
  int64_t kv_heads;               // if num_key_value_heads is missing; 0: num_attention_heads
  int64_t block_size;             // if max_position_embeddings is missing
  bool attention_bias, mlp_bias;  // it has these keys
  /// Which layers have sliding_window: none; all; all if use_sliding_window is set; those of
  /// layer_types or max_window_layers, for which some families need use_sliding_window, too.
  enum Window { never, always, flagged, by_layer, by_layer_unflagged } window;
  enum Router { none, mixtral, qwen, olmoe, deepseek } router = none;
  double rope_theta = 10000;       // if it is missing
  int64_t sliding_window = 4096;   // if it is missing; 0: none
  int64_t max_window_layers = 28;  // if it is missing
};
constexpr Family families[] = {
    {"LlamaForCausalLM", "llama", false, QkNorm::none, NormPlacement::pre, 1e-6, 0, 0, 2048, true,
     true, Family::never},
    {"MistralForCausalLM", "mistral", false, QkNorm::none, NormPlacement::pre, 1e-6, 0, 8, 131072,
     false, false, Family::always},
    {"Qwen2ForCausalLM", "qwen2", true, QkNorm::none, NormPlacement::pre, 1e-6, 0, 32, 32768, false,
     false, Family::by_layer},
    {"Qwen3ForCausalLM", "qwen3", false, QkNorm::head, NormPlacement::pre, 1e-6, 128, 32, 32768,
     true, false, Family::by_layer},
    {"Olmo2ForCausalLM", "olmo2", false, QkNorm::whole, NormPlacement::post, 1e-5, 0, 0, 2048, true,
     false, Family::never},
    {"MixtralForCausalLM", "mixtral", false, QkNorm::none, NormPlacement::pre, 1e-5, 0, 8, 131072,
     false, false, Family::always, Family::mixtral, 1e6, 0},
    {"Qwen3MoeForCausalLM", "qwen3_moe", false, QkNorm::head, NormPlacement::pre, 1e-6, 0, 4, 32768,
     true, false, Family::flagged, Family::qwen},
    {"OlmoeForCausalLM", "olmoe", false, QkNorm::whole, NormPlacement::pre, 1e-5, 0, 0, 4096, true,
     false, Family::never, Family::olmoe},
    {"Dots1ForCausalLM", "dots1", false, QkNorm::head, NormPlacement::pre, 1e-6, 0, 32, 2048, true,
     false, Family::by_layer_unflagged, Family::deepseek, 10000, 4096, 62},
    // Its keys say whether it has biases and norms of queries and keys.
    {"Glm4MoeForCausalLM", "glm4_moe", false, QkNorm::none, NormPlacement::pre, 1e-5, 0, 8, 131072,
     false, false, Family::never, Family::deepseek}};

bool is_glm(const Family& family) {
  return family.architecture == std::string_view("Glm4MoeForCausalLM");
}

/// Reads values of config.json. status() is the first error, which names the key.
class Config {
 public:
  Config(const json& object, std::string path) : object_(object), path_(std::move(path)) {}

  int64_t size(const char* key, std::optional<int64_t> otherwise = {}) {
    const json* value = find(key);
    if (!value && otherwise) return *otherwise;
    if (!value)
      fail(key, "is missing");
    else if (!value->is_number_unsigned() || value->get<uint64_t>() > INT64_MAX)
      fail(key, "is not a whole number");
    else
      return value->get<int64_t>();
    return 0;
  }
  double real(const char* key, double otherwise) {
    const json* value = find(key);
    if (value && value->is_number()) return value->get<double>();
    if (value) fail(key, "is not a number");
    return otherwise;
  }
  bool flag(const char* key, bool otherwise) {
    const json* value = find(key);
    if (value && value->is_boolean()) return value->get<bool>();
    if (value) fail(key, "is neither true nor false");
    return otherwise;
  }
  /// Fails if the key has another value; a missing key is fine.
  void expect(const char* key, const json& wanted, const std::string& why) {
    const json* value = find(key);
    if (value && *value != wanted) fail(key, "is " + shown_name(json_text(*value)) + "; " + why);
  }
  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  /// The key is there, even if it is null.
  bool has(const char* key) const { return object_.contains(key); }
  void fail(const char* key, const std::string& what) {
    if (status_.ok()) status_ = Status(Code::bad_data, path_ + ": \"" + key + "\" " + what);
  }
  const Status& status() const { return status_; }

 private:
  const json& object_;
  std::string path_;
  Status status_;
};

/// The family that `architectures` names. A config.json without it, or that of a model without its
/// head ("LlamaModel"), has the family of its type, as in transformers. Null after an error.
const Family* family_of(Config& config) {
  const json* architectures = config.find("architectures");
  const json* type = config.find("model_type");
  const auto named = [&](const std::string& architecture) {
    return architectures && architectures->is_array() &&
           std::ranges::find(*architectures, json(architecture)) != architectures->end();
  };
  std::string known;
  for (const Family& family : families) {
    const std::string architecture = family.architecture;
    const std::string headless = architecture.substr(0, architecture.rfind("For")) + "Model";
    if (named(architecture)) {
      config.expect("model_type", family.model_type,
                    "a " + architecture + " is of type " + family.model_type);
      return &family;
    }
    const bool unsaid = !architectures || (architectures->is_array() && architectures->empty());
    if ((unsaid || named(headless)) && type && *type == family.model_type) return &family;
    known += (known.empty() ? "" : ", ") + architecture;
  }
  config.fail("architectures", "names none of the models that can be imported: " + known);
  return nullptr;
}

/// One of the members of rope_scaling or rope_parameters, which are floats or missing.
double rope_number(Config& config, const char* key, const json& rope, const char* name,
                   std::optional<double> otherwise) {
  const auto found = rope.find(name);
  if (found != rope.end() && found->is_number()) return found->get<double>();
  if (otherwise && (found == rope.end() || found->is_null())) return *otherwise;
  config.fail(key, std::string("has no number \"") + name + "\"");
  return 1;
}

/// YaRN's: what cosines and sines are multiplied with. 0: by the factor alone.
double attention_factor(Config& config, const char* key, const json& rope, double factor) {
  const double own = rope_number(config, key, rope, "attention_factor", 0.0);
  const double scale = rope_number(config, key, rope, "mscale", 0.0),
               all = rope_number(config, key, rope, "mscale_all_dim", 0.0);
  const auto of = [&](double part) {
    return factor <= 1 ? 1.0 : 0.1 * part * std::log(factor) + 1;
  };
  const bool has_own = rope.contains("attention_factor") && !rope["attention_factor"].is_null();
  const double found = has_own ? own : scale != 0 && all != 0 ? of(scale) / of(all) : of(1);
  if (!(found > 0) || !std::isfinite(found))
    config.fail(key, "has an attention factor that is not above 0");
  return has_own || found != of(1) ? found : 0;
}

/// block_size: max_position_embeddings.
RopeScaling rope_scaling(Config& config, const char* key, const json& rope, const std::string& type,
                         int64_t block_size) {
  RopeScaling scaling;
  if (type == "default") return scaling;
  const auto kinds = {RopeScaling::Kind::linear, RopeScaling::Kind::llama3,
                      RopeScaling::Kind::yarn};
  const auto kind =
      std::ranges::find_if(kinds, [&](RopeScaling::Kind k) { return type == to_string(k); });
  if (kind == kinds.end()) {
    config.fail(key,
                "asks for \"" + shown_name(type) +
                    "\"; only default, linear, llama3 and yarn are supported" +
                    (type == "dynamic" ? ": the angles of dynamic depend on the length of each "
                                         "sequence"
                                       : ""));
    return scaling;
  }
  scaling.kind = *kind;
  const bool yarn = scaling.kind == RopeScaling::Kind::yarn;
  const bool by_length = yarn && rope.contains("factor") && rope["factor"].is_null();
  if (!by_length) scaling.factor = rope_number(config, key, rope, "factor", {});
  if (scaling.kind == RopeScaling::Kind::linear) return scaling;
  if (yarn) {
    if (const auto set = rope.find("truncate");
        set != rope.end() && !set->is_null() && *set != json(true))
      config.fail(key, "sets \"truncate\", which is not supported");
    scaling.low_factor = rope_number(config, key, rope, "beta_slow", 1.0);
    scaling.high_factor = rope_number(config, key, rope, "beta_fast", 32.0);
  } else {
    scaling.low_factor = rope_number(config, key, rope, "low_freq_factor", {});
    scaling.high_factor = rope_number(config, key, rope, "high_freq_factor", {});
  }
  const auto length = static_cast<double>(block_size);
  double original = rope_number(config, key, rope, "original_max_position_embeddings", length);
  // A key of config.json itself counts before the one beside the factors.
  if (config.find("original_max_position_embeddings"))
    original = config.real("original_max_position_embeddings", original);
  if (original < 1 || original > 1e9 || original != static_cast<double>(int64_t(original)))
    config.fail(key, "has an impossible \"original_max_position_embeddings\"");
  else
    scaling.original_block_size = static_cast<int64_t>(original);
  if (by_length) scaling.factor = length / original;
  if (yarn) scaling.attention_factor = attention_factor(config, key, rope, scaling.factor);
  return scaling;
}

/// rope_theta is a key of its own (transformers 4) or of rope_parameters (5), which then also has
/// what was rope_scaling. Of both, transformers reads rope_scaling, if it has any member.
void read_rope(Config& config, const Family& family, ModelShape& s) {
  s.rope_theta = config.real("rope_theta", family.rope_theta);
  config.expect("partial_rotary_factor", 1.0, "only whole heads can be rotated");
  if (is_glm(family) && !config.find("partial_rotary_factor")) {
    const json* rope = config.find("rope_parameters");
    if (!rope || !rope->is_object() || !rope->contains("partial_rotary_factor"))
      config.fail("partial_rotary_factor", "is missing, which means 0.5 to " +
                                               std::string(family.architecture) +
                                               "; only whole heads can be rotated");
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* rope = config.find(key);
    if (!rope) continue;
    if (!rope->is_object()) {
      config.fail(key, "is not an object");
      continue;
    }
    if (rope->empty()) continue;
    for (const auto& [name, value] : rope->items())
      if (value.is_object())
        config.fail(key, "has values for \"" + shown_name(name) +
                             "\" alone; layers that differ are not supported");
    for (const char* name : {"rope_type", "type"})
      if (const auto type = rope->find(name); type != rope->end() && !type->is_null()) {
        if (type->is_string())
          s.rope_scaling = rope_scaling(config, key, *rope, type->get<std::string>(), s.block_size);
        else
          config.fail(key, "has a \"" + std::string(name) + "\" that is no text");
        break;
      }
    s.rope_theta = rope_number(config, key, *rope, "rope_theta", s.rope_theta);
    if (rope_number(config, key, *rope, "partial_rotary_factor", 1.0) != 1)
      config.fail(key, "rotates only a part of each head; only whole heads can be rotated");
    return;
  }
}

/// All layers must have the same window, as our block has. layer_types, if it is there, says which
/// layers have it, else max_window_layers does.
int64_t read_window(Config& config, const Family& family, int64_t layers) {
  const auto window = [&]() -> int64_t {
    if (config.has("sliding_window") && !config.find("sliding_window")) return 0;  // null
    return config.size("sliding_window", family.sliding_window);
  };
  if (family.window == Family::always) return window();
  if (family.window == Family::flagged)
    return config.flag("use_sliding_window", false) ? window() : 0;
  const bool uses = family.window == Family::by_layer_unflagged ||
                    (family.window == Family::by_layer && config.flag("use_sliding_window", false));
  if (const json* types = config.find("layer_types")) {
    const bool uniform =
        types->is_array() && types->size() == static_cast<uint64_t>(layers) &&
        std::ranges::all_of(*types, [&](const json& t) { return t == types->front(); });
    const json type = uniform && layers > 0 ? types->front() : json();
    const bool slides = type == "sliding_attention" && uses && window() > 0;
    if (!slides && type != "full_attention")
      config.fail("layer_types",
                  "is not \"full_attention\" for each layer" +
                      std::string(uses ? ", nor \"sliding_attention\" for each" : "") +
                      "; layers that differ are not supported");
    return slides ? window() : 0;
  }
  if (!uses || window() == 0) return 0;
  const int64_t first =
      config.size("max_window_layers", family.max_window_layers);  // those below see all
  if (first > 0 && first < layers)
    config.fail("max_window_layers", "is " + std::to_string(first) +
                                         ": layers with and without a sliding window in one "
                                         "model are not supported");
  return first == 0 ? window() : 0;
}

/// mlp_only_layers: how many of the first layers have an MLP instead of experts.
int64_t read_dense_layers(Config& config) {
  const json* layers = config.find("mlp_only_layers");
  if (!layers) return 0;
  std::vector<int64_t> sorted;
  for (const json& layer : *layers)
    if (layer.is_number_unsigned() && layer.get<uint64_t>() < INT64_MAX)
      sorted.push_back(layer.get<int64_t>());
  std::ranges::sort(sorted);
  bool first = layers->is_array() && sorted.size() == layers->size();
  for (size_t i = 0; first && i < sorted.size(); ++i) first = sorted[i] == static_cast<int64_t>(i);
  if (!first)
    config.fail("mlp_only_layers", "is " + shown_name(json_text(*layers)) +
                                       "; only the first layers can have an MLP instead of "
                                       "experts, as [0, 1]");
  return static_cast<int64_t>(sorted.size());
}

/// The router of DeepSeek-V3, which other families took over.
void read_sigmoid_router(Config& config, bool glm, Experts& e) {
  e.score = RouterScore::sigmoid, e.bias = true;
  e.scale = config.real("routed_scaling_factor", 1.0);
  e.groups = config.size("n_group", 1), e.groups_per_token = config.size("topk_group", 1);
  e.shared = config.size("n_shared_experts", glm ? 1 : 0);
  e.dense_layers = config.size("first_k_dense_replace", glm ? 1 : 0);
  if (e.shared == 0)
    config.fail("n_shared_experts",
                "is 0 or missing; only models with shared experts are supported");
  if (e.groups > 0 && e.count / e.groups < 2)
    config.fail("n_group", "is " + std::to_string(e.groups) +
                               ", so that groups have fewer than two "
                               "experts");
  config.expect("topk_method", "noaux_tc", "only noaux_tc is supported");
  if (const json* score = config.find("scoring_func"); score && *score != "noaux_tc")
    config.expect("scoring_func", "sigmoid", "only sigmoid is supported");
  config.expect("moe_layer_freq", 1, "all layers after the first ones must have experts");
}

void read_experts(Config& config, const Family& family, ModelShape& s) {
  if (family.router == Family::none) return;
  Experts& e = s.experts;
  const bool glm = is_glm(family), deepseek = family.router == Family::deepseek;
  const bool qwen = family.router == Family::qwen, olmoe = family.router == Family::olmoe;
  // transformers reads both keys as one.
  const char* const key = deepseek ? "n_routed_experts" : "num_experts";
  e.count = config.size(config.find(key) ? key : "num_local_experts");
  config.expect("num_local_experts", e.count, std::string(key) + " is " + std::to_string(e.count));
  if (e.count == 0) config.fail(key, "is 0; a model without experts is of another class");
  e.per_token = config.size("num_experts_per_tok");
  e.hidden = qwen || deepseek ? config.size("moe_intermediate_size") : s.hidden;
  e.normalize = family.router == Family::mixtral || config.flag("norm_topk_prob", glm);
  if (qwen) {
    config.expect("decoder_sparse_step", 1, "all layers after the first ones must have experts");
    e.dense_layers = read_dense_layers(config);
  }
  if (olmoe) {
    config.expect("clip_qkv", nullptr, "clipping of queries, keys and values is not supported");
    config.expect("sliding_window", nullptr, "transformers' attentions do not agree on it");
  }
  if (deepseek) read_sigmoid_router(config, glm, e);
}

/// What read_experts() reads.
ordered_json experts_config(const Family& family, const ModelShape& s) {
  const Experts& e = s.experts;
  ordered_json config = {{"num_experts_per_tok", e.per_token}, {"output_router_logits", false}};
  const bool deepseek = family.router == Family::deepseek;
  config[deepseek                           ? "n_routed_experts"
         : family.router == Family::mixtral ? "num_local_experts"
                                            : "num_experts"] = e.count;
  if (family.router != Family::mixtral) config["norm_topk_prob"] = e.normalize;
  if (family.router == Family::olmoe) config["clip_qkv"] = nullptr;
  if (deepseek || family.router == Family::qwen) config["moe_intermediate_size"] = e.hidden;
  if (family.router == Family::qwen) {
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = ordered_json::array();
    for (int64_t i = 0; i < e.dense_layers; ++i) config["mlp_only_layers"].push_back(i);
  }
  if (deepseek)
    config.update({{"n_shared_experts", e.shared},
                   {"first_k_dense_replace", e.dense_layers},
                   {"routed_scaling_factor", e.scale},
                   {"n_group", e.groups},
                   {"topk_group", e.groups_per_token}});
  if (is_glm(family))
    config.update({{"partial_rotary_factor", 1.0},
                   {"attention_bias", s.qkv_bias},
                   {"use_qk_norm", s.qk_norm == QkNorm::head},
                   {"num_nextn_predict_layers", 0}});
  return config;
}

}  // namespace

Result<ModelShape> read_hf_config(const std::string& path) {
  SS_ASSIGN(const std::string text, read_text_inside(path, 16 << 20));
  const json object = parse_json(text);
  if (!object.is_object())
    return Status(Code::bad_data, path + ": not a JSON object, or nested deeper than " +
                                      std::to_string(kJsonDepthMax));
  Config config(object, path);
  if (config.find("kv_lora_rank"))
    config.fail("kv_lora_rank",
                "is set: multi-head latent attention (MLA), as in DeepSeek-V2 and -V3, is not "
                "supported");
  const Family* family = family_of(config);
  if (!family) return config.status();
  if (const json* act = config.find("hidden_act"); act && *act != "swish")  // the same
    config.expect("hidden_act", "silu", "only silu is supported");
  if (config.find("transformers_weights"))
    config.fail("transformers_weights",
                "names another file of weights; only model.safetensors and "
                "its index are read");
  if (!is_glm(*family))
    config.expect("attention_bias", false, "biases of this kind are not supported");
  config.expect("mlp_bias", false, "biases of the MLP are not supported");
  if (config.find("quantization_config"))
    config.fail("quantization_config", "is set; import the unquantized model");

  ModelShape s;
  s.dim = config.size("hidden_size");
  s.hidden = config.size("intermediate_size");
  s.layers = config.size("num_hidden_layers");
  s.heads = config.size("num_attention_heads");
  s.kv_heads = config.size(
      "num_key_value_heads",
      family->kv_heads > 0 && !config.has("num_key_value_heads") ? family->kv_heads : s.heads);
  s.vocab = config.size("vocab_size");
  s.block_size = config.size("max_position_embeddings", family->block_size);
  s.norm_eps = config.real("rms_norm_eps", family->norm_eps);
  s.tie_embeddings = config.flag("tie_word_embeddings", false);
  s.head_width = config.size("head_dim", family->head_dim);
  s.qkv_bias = family->qkv_bias, s.qk_norm = family->qk_norm, s.norm = family->norm;
  if (is_glm(*family)) {
    s.qkv_bias = config.flag("attention_bias", false);
    s.qk_norm = config.flag("use_qk_norm", false) ? QkNorm::head : QkNorm::none;
  }
  read_experts(config, *family, s);
  s.sliding_window = read_window(config, *family, s.layers);
  read_rope(config, *family, s);
  SS_RETURN_IF_ERROR(config.status());
  SS_RETURN_IF_ERROR(checkpoint_format::validate_stored_shape(s).in(path));
  return canonical(s);
}

ordered_json hf_config(const ModelShape& s, DType dtype) {
  const std::string architecture = hugging_face_class(s);
  const Family& family = *std::ranges::find_if(
      families, [&](const Family& f) { return architecture == f.architecture; });
  ordered_json config = {{"architectures", ordered_json::array({architecture})},
                         {"model_type", family.model_type},
                         {"hidden_size", s.dim},
                         {"intermediate_size", s.hidden},
                         {"num_hidden_layers", s.layers},
                         {"num_attention_heads", s.heads},
                         {"num_key_value_heads", s.kv_heads},
                         {"head_dim", s.head_dim()},
                         {"vocab_size", s.vocab},
                         {"max_position_embeddings", s.block_size},
                         {"rms_norm_eps", s.norm_eps},
                         {"rope_theta", s.rope_theta},
                         {"rope_scaling", nullptr},
                         {"hidden_act", "silu"}};
  if (const RopeScaling& rope = s.rope_scaling; rope.kind != RopeScaling::Kind::none) {
    config["rope_scaling"] = {{"rope_type", to_string(rope.kind)}, {"factor", rope.factor}};
    const bool yarn = rope.kind == RopeScaling::Kind::yarn;
    if (rope.kind != RopeScaling::Kind::linear)
      config["rope_scaling"].update(
          {{yarn ? "beta_slow" : "low_freq_factor", rope.low_factor},
           {yarn ? "beta_fast" : "high_freq_factor", rope.high_factor},
           {"original_max_position_embeddings", rope.original_block_size}});
    if (rope.attention_factor > 0)
      config["rope_scaling"]["attention_factor"] = rope.attention_factor;
  }
  if (family.attention_bias) config["attention_bias"] = false;
  config["attention_dropout"] = 0.0;
  if (family.mlp_bias) config["mlp_bias"] = false;
  const bool slides = s.sliding_window > 0;
  if (family.window != Family::never)
    config["sliding_window"] = slides ? ordered_json(s.sliding_window) : ordered_json(nullptr);
  const bool by_layer =
      family.window == Family::by_layer || family.window == Family::by_layer_unflagged;
  if (family.window == Family::by_layer || family.window == Family::flagged)
    config["use_sliding_window"] = slides;
  if (by_layer) config["max_window_layers"] = slides ? 0 : s.layers;
  if (family.router != Family::none) config.update(experts_config(family, s));
  config["initializer_range"] = 0.02;
  config["tie_word_embeddings"] = s.tie_embeddings;
  config["use_cache"] = true;
  config["torch_dtype"] = to_string(dtype);
  return config;
}

std::string hf_tensor_name(const ModelShape& shape, const std::string& parameter) {
  const size_t at = parameter.find(".mlp.");
  const char* const architecture = hugging_face_class(shape);
  if (at == std::string::npos || !architecture ||
      architecture != std::string_view("MixtralForCausalLM"))
    return parameter;
  std::string name = parameter.substr(0, at) + ".block_sparse_moe." + parameter.substr(at + 5);
  const std::pair<std::string_view, const char*> projections[] = {{"gate_proj.weight", "w1.weight"},
                                                                  {"down_proj.weight", "w2.weight"},
                                                                  {"up_proj.weight", "w3.weight"}};
  for (const auto& [ours, theirs] : projections)
    if (name.ends_with(ours)) name.replace(name.size() - ours.size(), ours.size(), theirs);
  return name;
}

}  // namespace simplescale
