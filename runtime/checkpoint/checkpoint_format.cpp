#include "runtime/checkpoint/checkpoint_format.hpp"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/base/parse_json.hpp"
#include "runtime/base/printable.hpp"

namespace simplescale {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char* kBf16Moments = "bf16";  // fp32 moments are not mentioned

std::optional<Hash128> parse_hash(const std::string& hex) {
  if (hex.size() != 32 || hex.find_first_not_of("0123456789abcdef") != std::string::npos)
    return std::nullopt;
  return Hash128{std::stoull(hex.substr(0, 16), nullptr, 16),
                 std::stoull(hex.substr(16), nullptr, 16)};
}

/// Reads typed values of an object; remembers the first key that is missing or has another type.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {
    if (!object.is_object()) missing_ = "(not an object)";
  }
  uint64_t number(const char* key) {
    const json* value = get(key, [](const json& v) { return v.is_number_unsigned(); });
    return value ? value->get<uint64_t>() : 0;
  }
  double real(const char* key) {
    const json* value = get(key, [](const json& v) { return v.is_number(); });
    return value ? value->get<double>() : 0;
  }
  std::string text(const char* key) {
    const json* value = get(key, [](const json& v) { return v.is_string(); });
    return value ? value->get<std::string>() : "";
  }
  bool flag(const char* key) {
    const json* value = get(key, [](const json& v) { return v.is_boolean(); });
    return value && value->get<bool>();
  }
  Hash128 hash(const char* key) {
    const json* value =
        get(key, [](const json& v) { return v.is_string() && parse_hash(v).has_value(); });
    return value ? *parse_hash(*value) : Hash128{};
  }
  const json& object(const char* key) {
    static const json empty = json::object();
    const json* value = get(key, [](const json& v) { return v.is_object(); });
    return value ? *value : empty;
  }
  Status status(const std::string& where) const {
    return missing_.empty()
               ? Status()
               : bad_data(where + ": \"" + missing_ + "\" is missing or has a wrong type");
  }

 private:
  template <class Check>
  const json* get(const char* key, Check check) {
    const auto found = object_.find(key);
    if (missing_.empty() && found != object_.end() && check(*found)) return &*found;
    if (missing_.empty()) missing_ = key;
    return nullptr;
  }
  const json& object_;
  std::string missing_;
};

ordered_json json_of(const ShardRecord& record) {
  ordered_json tensors = ordered_json::object();
  for (const auto& [name, hash] : record.tensors) tensors[name] = hash.hex();
  return {{"file", record.file},
          {"bytes", record.bytes},
          {"header", record.header.hex()},
          {"tensors", tensors}};
}

Result<ShardRecord> record_of(const json& object) {
  Fields fields(object);
  ShardRecord record{fields.text("file"), fields.number("bytes"), fields.hash("header"), {}};
  const json& tensors = fields.object("tensors");
  SS_RETURN_IF_ERROR(fields.status("shard record"));
  for (const auto& [name, value] : tensors.items()) {
    const auto hash = value.is_string() ? parse_hash(value) : std::nullopt;
    if (!hash)
      return bad_data("shard record " + record.file + ": tensor \"" + shown_name(name) +
                      "\" has no checksum");
    record.tensors[name] = *hash;
  }
  return record;
}

/// Options of the block only where they differ from Llama 2's.
ordered_json json_of(const ModelShape& s) {
  ordered_json out = {{"dim", s.dim},
                      {"hidden", s.hidden},
                      {"layers", s.layers},
                      {"heads", s.heads},
                      {"kv_heads", s.kv_heads},
                      {"vocab", s.vocab},
                      {"block_size", s.block_size},
                      {"rope_theta", s.rope_theta},
                      {"norm_eps", s.norm_eps},
                      {"tie_embeddings", s.tie_embeddings}};
  if (s.head_width > 0) out["head_dim"] = s.head_width;
  if (s.qkv_bias) out["qkv_bias"] = true;
  if (s.qk_norm != QkNorm::none) out["qk_norm"] = to_string(s.qk_norm);
  if (s.norm != NormPlacement::pre) out["norm"] = to_string(s.norm);
  if (s.sliding_window > 0) out["sliding_window"] = s.sliding_window;
  if (const RopeScaling& rope = s.rope_scaling; rope.kind != RopeScaling::Kind::none)
    out["rope_scaling"] = {{"kind", to_string(rope.kind)},
                           {"factor", rope.factor},
                           {"low_factor", rope.low_factor},
                           {"high_factor", rope.high_factor},
                           {"original_block_size", rope.original_block_size}};
  if (const double factor = s.rope_scaling.attention_factor; factor > 0)
    out["rope_attention_factor"] = factor;
  if (const Experts& e = s.experts; e.count > 0)
    out["experts"] = {{"count", e.count},
                      {"per_token", e.per_token},
                      {"hidden", e.hidden},
                      {"shared", e.shared},
                      {"dense_layers", e.dense_layers},
                      {"score", to_string(e.score)},
                      {"normalize", e.normalize},
                      {"scale", e.scale},
                      {"bias", e.bias},
                      {"groups", e.groups},
                      {"groups_per_token", e.groups_per_token}};
  return out;
}

/// The value of an enumeration whose names are to_string() of its first `count` values.
template <class E>
Status named(const std::string& name, int count, E& to) {
  for (int i = 0; i < count; ++i)
    if (name == to_string(static_cast<E>(i))) {
      to = static_cast<E>(i);
      return {};
    }
  return bad_data("shape: \"" + shown_name(name) + "\" is not known to this program");
}

int64_t size_of(Fields& fields, const char* key) {
  return static_cast<int64_t>(std::min<uint64_t>(fields.number(key), INT64_MAX));
}

Status read_options(const json& object, ModelShape& s) {
  constexpr const char* known[] = {"dim",
                                   "hidden",
                                   "layers",
                                   "heads",
                                   "kv_heads",
                                   "vocab",
                                   "block_size",
                                   "rope_theta",
                                   "norm_eps",
                                   "tie_embeddings",
                                   "head_dim",
                                   "qkv_bias",
                                   "qk_norm",
                                   "norm",
                                   "sliding_window",
                                   "rope_scaling",
                                   "rope_attention_factor",
                                   "experts"};
  // A key of a later version would mean another model.
  for (const auto& [key, value] : object.items())
    if (std::ranges::find(known, key) == std::end(known))
      return bad_data("shape: \"" + shown_name(key) + "\" is not known to this program");
  Fields fields(object);
  if (object.contains("head_dim")) s.head_width = size_of(fields, "head_dim");
  if (object.contains("qkv_bias")) s.qkv_bias = fields.flag("qkv_bias");
  if (object.contains("qk_norm")) SS_RETURN_IF_ERROR(named(fields.text("qk_norm"), 3, s.qk_norm));
  if (object.contains("norm")) SS_RETURN_IF_ERROR(named(fields.text("norm"), 2, s.norm));
  if (object.contains("sliding_window")) s.sliding_window = size_of(fields, "sliding_window");
  if (object.contains("rope_scaling")) {
    Fields rope(fields.object("rope_scaling"));
    SS_RETURN_IF_ERROR(named(rope.text("kind"), 4, s.rope_scaling.kind));
    s.rope_scaling.factor = rope.real("factor");
    s.rope_scaling.low_factor = rope.real("low_factor");
    s.rope_scaling.high_factor = rope.real("high_factor");
    s.rope_scaling.original_block_size = size_of(rope, "original_block_size");
    SS_RETURN_IF_ERROR(rope.status("shape"));
  }
  if (object.contains("experts")) {
    Fields of(fields.object("experts"));
    Experts& e = s.experts;
    e.count = size_of(of, "count"), e.per_token = size_of(of, "per_token");
    e.hidden = size_of(of, "hidden"), e.shared = size_of(of, "shared");
    e.dense_layers = size_of(of, "dense_layers");
    e.groups = size_of(of, "groups"), e.groups_per_token = size_of(of, "groups_per_token");
    SS_RETURN_IF_ERROR(named(of.text("score"), 2, e.score));
    e.normalize = of.flag("normalize"), e.bias = of.flag("bias"), e.scale = of.real("scale");
    SS_RETURN_IF_ERROR(of.status("shape"));
  }
  if (object.contains("rope_attention_factor"))
    s.rope_scaling.attention_factor = fields.real("rope_attention_factor");
  return fields.status("shape");
}

Result<ModelShape> shape_of(const json& object) {
  Fields fields(object);
  auto size = [&](const char* key) { return size_of(fields, key); };
  ModelShape s;
  s.dim = size("dim"), s.hidden = size("hidden"), s.layers = size("layers"),
  s.heads = size("heads");
  s.kv_heads = size("kv_heads"), s.vocab = size("vocab"), s.block_size = size("block_size");
  s.rope_theta = fields.real("rope_theta"), s.norm_eps = fields.real("norm_eps");
  s.tie_embeddings = fields.flag("tie_embeddings");
  SS_RETURN_IF_ERROR(fields.status("shape"));
  SS_RETURN_IF_ERROR(read_options(object, s));
  SS_RETURN_IF_ERROR(checkpoint_format::validate_stored_shape(s).in("shape"));
  return s;
}

constexpr size_t kHashSuffix = 32 + 4;  // 32 digits, then `"` newline `}` newline

}  // namespace

std::string to_json(const ShardRecord& record) {
  return json_of(record).dump();
}

Result<ShardRecord> parse_shard_record(const std::string& text) {
  return record_of(parse_json(text));
}

namespace checkpoint_format {

std::string step_folder_name(uint64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08" PRIu64, step);
  return name;
}

std::optional<uint64_t> parse_step_folder(const std::string& name) {
  std::string digits = name.starts_with("step-") ? name.substr(5) : "";
  if (digits.ends_with(kReplaced)) digits.resize(digits.size() - std::string(kReplaced).size());
  if (digits.size() < 8 || digits.size() > 19 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoull(digits);
}

std::string shard_file_name(size_t shard, size_t shards) {
  char name[80];
  std::snprintf(name, sizeof name, "shard-%05zu-of-%05zu.safetensors", shard, shards);
  return name;
}

std::string tensor_name(StateKind kind, const Unit& unit) {
  return std::string(to_string(kind)) + "." + unit.name;
}

Status check_finite(std::span<const float> values, size_t first, const std::string& where,
                    const std::string& tensor) {
  float sum = 0.0f;  // x * 0 is NaN unless x is finite; a loop without branches is vectorized
  for (const float value : values) sum += value * 0.0f;
  if (sum == 0.0f) return {};
  const auto found = std::ranges::find_if_not(values, [](float v) { return std::isfinite(v); });
  return bad_data(where + ": tensor \"" + tensor + "\" holds " +
                  (std::isnan(*found) ? "NaN" : "an infinite value") + " (element " +
                  std::to_string(first + static_cast<size_t>(found - values.begin())) +
                  "), so no model with it can be trained; take the weights of another checkpoint");
}

Range shard_range(const Unit& unit, size_t shards, size_t shard) {
  const size_t count = shard_count(unit.count, shards);
  return {std::min(shard * count, unit.count), std::min((shard + 1) * count, unit.count)};
}

std::vector<TensorEntry> shard_tensors(const std::vector<Unit>& units, size_t shards, size_t shard,
                                       const StateFormat& format) {
  std::vector<TensorEntry> tensors;
  for (const StateKind kind : state_kinds(format.ema))
    for (const Unit& unit : units) {
      const Range range = shard_range(unit, shards, shard);
      tensors.push_back({tensor_name(kind, unit),
                         format.dtype(kind) == DType::f32 ? "F32" : "BF16",
                         {static_cast<int64_t>(range.end - range.begin)}});
    }
  return tensors;
}

Status validate_stored_shape(const ModelShape& s) {
  constexpr int64_t width_max = 1 << 24, layers_max = 1 << 12, experts_max = 1 << 20;
  for (const int64_t n : {s.dim, s.hidden, s.vocab, s.block_size, s.heads, s.kv_heads, s.head_width,
                          s.sliding_window, s.experts.count, s.experts.hidden, s.experts.shared})
    if (n > width_max)
      return bad_data("a size of " + std::to_string(n) + " is more than " +
                      std::to_string(width_max));
  if (s.layers > layers_max)
    return bad_data(std::to_string(s.layers) + " layers are more than " +
                    std::to_string(layers_max));
  if (s.heads * s.head_width > width_max)
    return bad_data("heads * head_dim is more than " + std::to_string(width_max));
  if (s.experts.count * std::max<int64_t>(1, s.layers) > experts_max ||
      s.experts.shared * s.experts.hidden > width_max)
    return bad_data("more than " + std::to_string(experts_max) +
                    " experts in all blocks, or shared ones wider than " +
                    std::to_string(width_max));
  const Status status = validate(s);
  return status.ok() ? Status() : bad_data(status.message());
}

std::string manifest_text(const Manifest& m) {
  const CheckpointInfo& info = m.info;
  ordered_json files = ordered_json::array();
  for (const ShardRecord& record : m.records) files.push_back(json_of(record));
  ordered_json out = {{"format", "simplescale-checkpoint"},
                      {"version", kVersion},
                      {"step", info.step},
                      {"next_sample", info.next_sample},
                      {"tokens_seen", info.tokens_seen},
                      {"seed", info.seed},
                      {"precision", info.precision},
                      {"shape", json_of(info.shape)},
                      {"resume", ordered_json::parse(info.resume)},
                      {"shards", info.shards},
                      {"files", files}};
  if (info.state.ema) out["ema"] = true;
  if (info.state.moments == DType::bf16) out["moments"] = kBf16Moments;
  if (info.val_loss) out["val_loss"] = *info.val_loss;
  if (m.tokenizer)
    out["tokenizer"] = {{"file", m.tokenizer->file},
                        {"bytes", m.tokenizer->bytes},
                        {"hash", m.tokenizer->hash.hex()}};
  std::string text = out.dump(1);
  text.resize(text.size() - 2);  // newline and '}'
  text += ",\n \"manifest_hash\": \"";
  return text + hash128(text.data(), text.size()).hex() + "\"\n}\n";
}

Result<Manifest> parse_manifest(const std::string& text) {
  const size_t covered = text.size() < kHashSuffix ? 0 : text.size() - kHashSuffix;
  if (covered == 0 || text.substr(covered) != hash128(text.data(), covered).hex() + "\"\n}\n")
    return bad_data("its checksum is wrong");
  const json object = parse_json(text);
  Fields fields(object);
  if (fields.text("format") != "simplescale-checkpoint")
    return bad_data("not a simplescale checkpoint");
  if (const uint64_t version = fields.number("version"); version != kVersion)
    return bad_data("version " + std::to_string(version) + " is not " + std::to_string(kVersion) +
                    ", the version that this program reads");
  Manifest m;
  CheckpointInfo& info = m.info;
  info.step = fields.number("step"), info.next_sample = fields.number("next_sample");
  info.tokens_seen = fields.number("tokens_seen"), info.seed = fields.number("seed");
  info.precision = fields.text("precision"), info.shards = fields.number("shards");
  info.resume = fields.object("resume").dump();
  if (object.contains("ema")) info.state.ema = fields.flag("ema");
  if (object.contains("moments")) {
    if (fields.text("moments") != kBf16Moments)
      return bad_data("moments: \"" + fields.text("moments") + "\" is not \"bf16\"");
    info.state.moments = DType::bf16;
  }
  const json& shape = fields.object("shape");
  SS_RETURN_IF_ERROR(fields.status("manifest"));
  SS_ASSIGN(info.shape, shape_of(shape));

  const auto files = object.find("files");
  if (files == object.end() || !files->is_array() || files->empty() || files->size() != info.shards)
    return bad_data("it does not name one file per shard");
  const std::vector<Unit> units = units_of(info.shape);
  for (size_t s = 0; s < info.shards; ++s) {
    SS_ASSIGN(ShardRecord record, record_of((*files)[s]));
    if (record.file != shard_file_name(s, info.shards))
      return bad_data("file " + std::to_string(s) + " is \"" + record.file + "\", not " +
                      shard_file_name(s, info.shards));
    for (const StateKind kind : state_kinds(info.state.ema))
      for (const Unit& unit : units)
        if (!record.tensors.contains(tensor_name(kind, unit)))
          return bad_data(record.file + ": no checksum of " + tensor_name(kind, unit));
    m.records.push_back(std::move(record));
  }
  if (object.contains("val_loss")) info.val_loss = fields.real("val_loss");
  if (object.contains("tokenizer")) {
    const json& tokenizer = fields.object("tokenizer");
    Fields inner(tokenizer);
    m.tokenizer = TokenizerRecord{inner.text("file"), inner.number("bytes"), inner.hash("hash")};
    SS_RETURN_IF_ERROR(inner.status("tokenizer"));
    if (m.tokenizer->file != kSentencePieceFile && m.tokenizer->file != kTokenizerJsonFile)
      return bad_data("tokenizer: \"" + m.tokenizer->file + "\" is no name of a tokenizer's file");
  }
  SS_RETURN_IF_ERROR(fields.status("manifest"));
  return m;
}

}  // namespace checkpoint_format
}  // namespace simplescale
