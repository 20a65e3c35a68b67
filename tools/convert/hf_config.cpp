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
  enum Window { never, always, by_layer } window;
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
     false, Family::never}};

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
void read_rope(Config& config, ModelShape& s) {
  s.rope_theta = config.real("rope_theta", 10000.0);
  config.expect("partial_rotary_factor", 1.0, "only whole heads can be rotated");
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
    return config.size("sliding_window", 4096);
  };
  if (family.window == Family::always) return window();
  const bool uses = family.window == Family::by_layer && config.flag("use_sliding_window", false);
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
  const int64_t first = config.size("max_window_layers", 28);  // the layers below see all
  if (first > 0 && first < layers)
    config.fail("max_window_layers", "is " + std::to_string(first) +
                                         ": layers with and without a sliding window in one "
                                         "model are not supported");
  return first == 0 ? window() : 0;
}

}  // namespace

Result<ModelShape> read_hf_config(const std::string& path) {
  SS_ASSIGN(const std::string text, read_text_inside(path, 16 << 20));
  const json object = parse_json(text);
  if (!object.is_object())
    return Status(Code::bad_data, path + ": not a JSON object, or nested deeper than " +
                                      std::to_string(kJsonDepthMax));
  Config config(object, path);
  const Family* family = family_of(config);
  if (!family) return config.status();
  if (const json* act = config.find("hidden_act"); act && *act != "swish")  // the same
    config.expect("hidden_act", "silu", "only silu is supported");
  if (config.find("transformers_weights"))
    config.fail("transformers_weights",
                "names another file of weights; only model.safetensors and "
                "its index are read");
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
  s.sliding_window = read_window(config, *family, s.layers);
  read_rope(config, s);
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
  if (family.window == Family::by_layer) {
    config["use_sliding_window"] = slides;
    config["max_window_layers"] = slides ? 0 : s.layers;
  }
  config["initializer_range"] = 0.02;
  config["tie_word_embeddings"] = s.tie_embeddings;
  config["use_cache"] = true;
  config["torch_dtype"] = to_string(dtype);
  return config;
}

}  // namespace simplescale
