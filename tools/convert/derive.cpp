#include "tools/convert/derive.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/checkpoint_format.hpp"
#include "runtime/checkpoint/shard_writer.hpp"

namespace simplescale {

using checkpoint_format::check_finite;

namespace {

/// `values` of a (rows, columns) matrix grow to new_rows rows; each new row is the mean of the old
/// ones, or zero.
void add_rows(std::vector<float>& values, size_t at, int64_t rows, int64_t columns,
              int64_t new_rows, bool mean) {
  const auto width = static_cast<size_t>(columns), old = static_cast<size_t>(rows);
  std::vector<double> sums(width);
  for (size_t r = 0; mean && r < old; ++r)
    for (size_t i = 0; i < width; ++i) sums[i] += double{values[at + r * width + i]};
  std::vector<float> row(width);
  for (size_t i = 0; i < width; ++i)
    row[i] = static_cast<float>(sums[i] / static_cast<double>(rows));
  std::vector<float> added;
  added.reserve(width * static_cast<size_t>(new_rows - rows));
  for (int64_t r = rows; r < new_rows; ++r) added.insert(added.end(), row.begin(), row.end());
  values.insert(values.begin() + static_cast<ptrdiff_t>(at + old * width), added.begin(),
                added.end());
}

/// Reads whole units, since only a whole tensor can be verified, and passes on their pieces. units:
/// of the new model, whose vocabulary may be larger than the old one's.
class UnitSource {
 public:
  UnitSource(Checkpoint& from, const std::vector<Unit>& units, bool with_optimizer)
      : from_(from), units_(units), with_optimizer_(with_optimizer) {}

  Result<std::span<const std::byte>> read(StateKind kind, size_t unit, size_t begin, size_t end) {
    if (values_.empty() || kind != kind_ || unit != unit_) {
      kind_ = kind, unit_ = unit;
      values_.assign(from_.units()[unit].count, 0.0f);
      if (kind == StateKind::params || kind == StateKind::ema || with_optimizer_)
        SS_RETURN_IF_ERROR(
            from_.stream_unit(kind, unit, [this](size_t offset, std::span<const float> piece) {
              std::ranges::copy(piece, values_.begin() + static_cast<ptrdiff_t>(offset));
              return Status();
            }));
      SS_RETURN_IF_ERROR(check());
      grow();
    }
    return std::as_bytes(std::span(values_).subspan(begin, end - begin));
  }

 private:
  Status check() const {
    for (const Parameter& p : from_.units()[unit_].parameters)
      SS_RETURN_IF_ERROR(check_finite(
          std::span(values_).subspan(p.offset, p.count), 0, from_.folder(),
          (kind_ == StateKind::params ? "" : to_string(kind_) + std::string(".")) + p.name));
    return {};
  }

  void grow() {
    for (size_t p = 0; p < units_[unit_].parameters.size(); ++p) {
      const Parameter& now = units_[unit_].parameters[p];
      const Parameter& before = from_.units()[unit_].parameters[p];
      if (now.count > before.count)
        add_rows(values_, now.offset, before.shape[0], before.shape[1], now.shape[0],
                 kind_ == StateKind::params || kind_ == StateKind::ema);
    }
  }

  Checkpoint& from_;
  const std::vector<Unit>& units_;
  const bool with_optimizer_;
  StateKind kind_ = StateKind::params;
  size_t unit_ = 0;
  std::vector<float> values_;
};

/// The keys of [model] that would give `has` instead of `wanted`: "dim = 64, qk_norm = \"head\"".
std::string keys_to_set(const ModelShape& wanted, const ModelShape& has) {
  std::string text;
  const auto add = [&](const char* name, const auto& want, const auto& value) {
    if (want == value) return;
    // TOML reads numbers, texts and truth values as JSON writes them, with every digit of a number.
    text += (text.empty() ? "" : ", ") + std::string(name) + " = " + nlohmann::json(value).dump();
  };
  const RopeScaling &r = wanted.rope_scaling, &s = has.rope_scaling;
  add("dim", wanted.dim, has.dim);
  add("hidden", wanted.hidden, has.hidden);
  add("layers", wanted.layers, has.layers);
  add("heads", wanted.heads, has.heads);
  add("kv_heads", wanted.kv_heads, has.kv_heads);
  add("vocab", wanted.vocab, has.vocab);
  add("rope_theta", wanted.rope_theta, has.rope_theta);
  add("norm_eps", wanted.norm_eps, has.norm_eps);
  add("tie_embeddings", wanted.tie_embeddings, has.tie_embeddings);
  add("head_dim", wanted.head_dim(), has.head_dim());
  add("qkv_bias", wanted.qkv_bias, has.qkv_bias);
  add("qk_norm", std::string_view(to_string(wanted.qk_norm)),
      std::string_view(to_string(has.qk_norm)));
  add("norm", std::string_view(to_string(wanted.norm)), std::string_view(to_string(has.norm)));
  add("sliding_window", wanted.sliding_window, has.sliding_window);
  add("rope_scaling", std::string_view(to_string(r.kind)), std::string_view(to_string(s.kind)));
  const Experts &e = wanted.experts, &x = has.experts;
  add("experts", e.count, x.count);
  if (x.count > 0) {
    add("experts_per_token", e.per_token, x.per_token);
    add("expert_hidden", e.hidden, x.hidden);
    add("shared_experts", e.shared, x.shared);
    add("dense_layers", e.dense_layers, x.dense_layers);
    add("router_score", std::string_view(to_string(e.score)), std::string_view(to_string(x.score)));
    add("router_normalize", e.normalize, x.normalize);
    add("router_scale", e.scale, x.scale);
    add("router_bias", e.bias, x.bias);
    add("router_groups", e.groups, x.groups);
    add("router_groups_per_token", e.groups_per_token, x.groups_per_token);
  }
  if (s.kind == RopeScaling::Kind::none) return text;
  add("rope_factor", r.factor, s.factor);
  if (s.kind == RopeScaling::Kind::linear) return text;
  add("rope_low_factor", r.low_factor, s.low_factor);
  add("rope_high_factor", r.high_factor, s.high_factor);
  add("rope_original_block_size", r.original_block_size, s.original_block_size);
  add("rope_attention_factor", r.attention_factor, s.attention_factor);
  return text;
}

/// No weight depends on RoPE, but a model that was trained with other angles is another one, unless
/// its context is stretched on purpose.
bool stretches_context(const ModelShape& has, const ModelShape& wanted) {
  return wanted.rope_scaling.kind != RopeScaling::Kind::none && wanted.block_size > has.block_size;
}

}  // namespace

Status check_derivable(const std::string& from, ModelShape shape, const ModelShape& wanted) {
  if (stretches_context(shape, wanted)) shape.rope_scaling = wanted.rope_scaling;
  shape.block_size = wanted.block_size;                        // no weight depends on it
  if (shape.vocab < wanted.vocab) shape.vocab = wanted.vocab;  // new tokens are added
  if (shape == wanted) return {};
  if (shape.experts.count == 0 && wanted.experts.count > 0)
    return {Code::bad_config,
            from + " holds a model without experts, and the configuration's has " +
                std::to_string(wanted.experts.count) +
                "; to make experts of its MLPs: simplescale import " + from +
                " NEW_CHECKPOINT --upcycle experts=" + std::to_string(wanted.experts.count) +
                ",top_k=" + std::to_string(wanted.experts.per_token) +
                "; then begin with that checkpoint"};
  return {Code::bad_config,
          from + " holds a model of another shape than the configuration's; set in [model]: " +
              keys_to_set(wanted, shape)};
}

Status derive_checkpoint(Checkpoint& from, bool with_optimizer, const CheckpointInfo& info,
                         const std::string& checkpoints, FileOps& ops) {
  SS_RETURN_IF_ERROR(check_derivable(from.folder(), from.info().shape, info.shape));
  SS_ASSERT(!info.state.ema || from.info().state.ema);
  SS_ASSERT(info.state.moments == DType::f32);
  const std::vector<Unit> units = units_of(info.shape);
  UnitSource source(from, units, with_optimizer);
  const std::string partial = checkpoint_tmp_folder(checkpoints, info.step, 0);
  SS_RETURN_IF_ERROR(remove_folder(ops, partial));
  auto record = write_shard_from(
      partial, units, 1, 0, info.state,
      [&](StateKind kind, size_t unit, size_t begin, size_t end) {
        return source.read(kind, unit, begin, end);
      },
      {}, ops);
  if (!record.ok()) {
    (void)remove_folder(ops, partial);
    return record.status();
  }
  return publish_checkpoint(checkpoints, partial, "derived", info, {*record}, ops).status();
}

}  // namespace simplescale
