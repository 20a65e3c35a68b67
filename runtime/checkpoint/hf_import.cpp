#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/checkpoint/checkpoint_format.hpp"
#include "runtime/checkpoint/huggingface.hpp"
#include "runtime/checkpoint/shard_writer.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

using nlohmann::json;
using namespace checkpoint_format;

namespace {

Status bad(const std::string& text) {
  return {Code::bad_data, text};
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
  void expect(const char* key, const json& wanted, const char* why) {
    const json* value = find(key);
    if (value && *value != wanted) fail(key, "is " + value->dump() + "; " + why);
  }
  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  void fail(const char* key, const std::string& what) {
    if (status_.ok()) status_ = bad(path_ + ": \"" + key + "\" " + what);
  }
  const Status& status() const { return status_; }

 private:
  const json& object_;
  std::string path_;
  Status status_;
};

/// rope_theta is a key of its own (transformers 4) or of rope_parameters (5). Refuses scaled RoPE.
double rope_theta(Config& config) {
  double theta = config.real("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* rope = config.find(key);
    if (!rope) continue;
    if (!rope->is_object()) {
      config.fail(key, "is not an object");
      continue;
    }
    for (const char* type : {"rope_type", "type"})
      if (rope->contains(type) && !(*rope)[type].is_null() && (*rope)[type] != "default")
        config.fail(key, "asks for " + (*rope)[type].dump() + "; only unscaled RoPE is supported");
    if (rope->contains("rope_theta") && (*rope)["rope_theta"].is_number())
      theta = (*rope)["rope_theta"];
  }
  return theta;
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

/// The file of a tied model may repeat the embeddings as lm_head; they must be the same bytes.
Status check_tied_head(const SafetensorsFolder& weights, const std::string& folder) {
  const auto head = weights.find("lm_head.weight"),
             embed = weights.find("model.embed_tokens.weight");
  if (!head || !embed) return {};
  const Status differ =
      bad(folder + ": tie_word_embeddings is true, but lm_head.weight differs from the embeddings");
  if (head->tensor->dtype != embed->tensor->dtype || head->tensor->shape != embed->tensor->shape)
    return differ;
  const uint64_t bytes = embed->tensor->end - embed->tensor->begin;
  std::vector<char> a(kPieceElements), b(kPieceElements);
  for (uint64_t at = 0; at < bytes; at += a.size()) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(a.size(), bytes - at));
    SS_RETURN_IF_ERROR(head->file->read(*head->tensor, at, a.data(), n));
    SS_RETURN_IF_ERROR(embed->file->read(*embed->tensor, at, b.data(), n));
    if (!std::equal(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin())) return differ;
  }
  return {};
}

/// Checks that every parameter exists with its shape and a readable dtype, and that there are no
/// others.
Status check_weights(const SafetensorsFolder& weights, const std::vector<Unit>& units, bool tied,
                     const std::string& folder) {
  std::map<std::string, const Parameter*> expected;
  for (const Unit& unit : units)
    for (const Parameter& parameter : unit.parameters) expected[parameter.name] = &parameter;
  for (const auto& [name, parameter] : expected) {
    const auto place = weights.find(name);
    if (!place) return bad(folder + ": tensor " + name + " is missing");
    if (place->tensor->shape != parameter->shape)
      return bad(place->file->path() + ": tensor " + name + " has shape " +
                 text_of(place->tensor->shape) + ", config.json asks for " +
                 text_of(parameter->shape));
    SS_RETURN_IF_ERROR(place->file->read_f32(*place->tensor, 0, 0, nullptr));  // checks the dtype
  }
  for (const std::string& name : weights.names()) {
    if (expected.contains(name) || name.ends_with(".rotary_emb.inv_freq") ||
        (tied && name == "lm_head.weight"))
      continue;
    return bad(weights.find(name)->file->path() + ": tensor " + name +
               " does not belong to this model");
  }
  return tied ? check_tied_head(weights, folder) : Status();
}

/// A source of shard 0 of 1 that reads the weights; moments are zero.
ShardSource source_of(const SafetensorsFolder& weights, const std::vector<Unit>& units,
                      std::vector<float>& buffer) {
  return [&weights, &units, &buffer](StateKind kind, size_t unit, size_t begin,
                                     size_t end) -> Result<std::span<const float>> {
    buffer.assign(end - begin, 0.0f);
    if (kind != StateKind::params) return std::span<const float>(buffer);
    for (const Parameter& parameter : units[unit].parameters) {
      const size_t first = std::max(begin, parameter.offset);
      const size_t last = std::min(end, parameter.offset + parameter.count);
      if (first >= last) continue;
      const auto place = weights.find(parameter.name);
      SS_RETURN_IF_ERROR(place->file->read_f32(*place->tensor, first - parameter.offset,
                                               last - first, buffer.data() + (first - begin)));
    }
    return std::span<const float>(buffer);
  };
}

}  // namespace

Result<ModelShape> read_hf_config(const std::string& path) {
  SS_ASSIGN(const std::string text, read_text_file(path, 16 << 20));
  const json object = parse_json(text);
  if (!object.is_object())
    return bad(path + ": not a JSON object, or nested deeper than " +
               std::to_string(kJsonDepthMax));
  Config config(object, path);
  const json* architectures = config.find("architectures");
  if (!architectures || !architectures->is_array() ||
      std::find(architectures->begin(), architectures->end(), json("LlamaForCausalLM")) ==
          architectures->end())
    config.fail("architectures", "does not name LlamaForCausalLM; no other model can be imported");
  config.expect("model_type", "llama", "only llama can be imported");
  config.expect("hidden_act", "silu", "only silu is supported");
  config.expect("attention_bias", false, "biases are not supported");
  config.expect("mlp_bias", false, "biases are not supported");
  if (config.find("quantization_config"))
    config.fail("quantization_config", "is set; import the unquantized model");

  ModelShape s;
  s.dim = config.size("hidden_size");
  s.hidden = config.size("intermediate_size");
  s.layers = config.size("num_hidden_layers");
  s.heads = config.size("num_attention_heads");
  s.kv_heads = config.size("num_key_value_heads", s.heads);
  s.vocab = config.size("vocab_size");
  s.block_size = config.size("max_position_embeddings", 2048);
  s.norm_eps = config.real("rms_norm_eps", 1e-6);
  s.rope_theta = rope_theta(config);
  s.tie_embeddings = config.flag("tie_word_embeddings", false);
  SS_RETURN_IF_ERROR(config.status());
  SS_RETURN_IF_ERROR(validate_stored_shape(s).in(path));
  if (const int64_t head_dim = config.size("head_dim", s.head_dim()); head_dim != s.head_dim())
    config.fail("head_dim",
                "is " + std::to_string(head_dim) + ", not hidden_size / num_attention_heads");
  SS_RETURN_IF_ERROR(config.status());
  return s;
}

Status check_hf_links(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (error) return {Code::bad_data, folder + ": cannot read the folder: " + error.message()};
  // The cache of huggingface_hub: snapshots/REVISION holds links to ../../blobs.
  const fs::path blobs = real.parent_path().filename() == "snapshots"
                             ? real.parent_path().parent_path() / "blobs"
                             : real;
  for (const std::string& name : list_folder(folder)) {
    const fs::path path = real / name;
    const bool read =
        name.ends_with(".json") || name.ends_with(".safetensors") || name == kSentencePieceFile;
    if (!read || !fs::is_symlink(path, error)) continue;
    const fs::path target = fs::canonical(path, error);
    if (!error && (target.parent_path() == real || target.parent_path() == blobs)) continue;
    return bad(folder + "/" + name + " is a link to " + fs::read_symlink(path, error).string() +
               ", outside of the folder; replace it by the file itself if you trust it");
  }
  return {};
}

Status import_hf(const std::string& folder, const std::string& checkpoint_folder, FileOps& ops) {
  SS_RETURN_IF_ERROR(check_hf_links(folder));
  auto shape = read_hf_config(folder + "/config.json");
  if (!shape.ok()) return {Code::bad_data, shape.status().message()};
  const std::vector<Unit> units = units_of(*shape);
  SS_ASSIGN(const SafetensorsFolder weights, SafetensorsFolder::open(folder));
  SS_RETURN_IF_ERROR(check_weights(weights, units, shape->tie_embeddings, folder));

  std::string target = checkpoint_folder;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  std::error_code error;
  if (std::filesystem::exists(target, error))
    return bad(target + ": exists already; name another folder or remove it");
  SS_RETURN_IF_ERROR(make_folders(ops, parent_folder(target)));
  const std::string partial = target + ".partial";
  SS_RETURN_IF_ERROR(remove_folder(ops, partial));

  CheckpointInfo info;
  info.shape = *shape;
  info.resume = json_text({{"imported_from", folder}});
  info.tokenizer = find_tokenizer(folder);
  std::vector<float> buffer;
  auto record = write_shard_from(partial, units, 1, 0, source_of(weights, units, buffer), {}, ops);
  if (!record.ok()) {
    (void)remove_folder(ops, partial);
    return record.status();
  }
  return publish_checkpoint_as(target, partial, info, {*record}, ops);
}

}  // namespace simplescale
