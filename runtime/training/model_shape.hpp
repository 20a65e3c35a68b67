// A model as data: its shape, its parameters under their Hugging Face names, and their places in
// flat units and shards. One block with a few options describes Llama, Mistral, Qwen and OLMo
// (docs/models.md). Pure functions, any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

/// RMSNorm of queries and keys, before RoPE. head: each head alone, with one weight (head_dim) for
/// all heads. whole: all heads of a token as one row, with a weight of its length.
enum class QkNorm : unsigned char { none, head, whole };
/// Where a block's two norms are. pre: x + f(norm(x)). post: x + norm(f(x)).
enum class NormPlacement : unsigned char { pre, post };

/// How RoPE's frequencies differ from those of rope_theta, for contexts longer than in pretraining.
struct RopeScaling {
  enum class Kind : unsigned char {
    none,
    linear,  // all frequencies are divided by factor
    llama3,  // only long waves; as in Llama 3.1
    yarn,    // as llama3, and the angles' cosines and sines grow; arXiv 2309.00071
  };
  Kind kind = Kind::none;
  double factor = 1;  // at least 1
  // llama3, yarn: waves longer than original_block_size / low_factor are scaled, waves shorter than
  // original_block_size / high_factor are not, and waves between them are scaled in part. For yarn,
  // the literature calls the factors beta_slow and beta_fast, and high_factor is usually 32.
  double low_factor = 1, high_factor = 4;
  int64_t original_block_size = 8192;
  /// yarn: factor of cosines and sines. 0: 0.1 ln(factor) + 1, as in the paper.
  double attention_factor = 0;
  bool operator==(const RopeScaling&) const = default;
};

/// How a router makes a token's weights of experts out of its logits: their softmax, or the sigmoid of
/// each.
enum class RouterScore : unsigned char { softmax, sigmoid };

/// A mixture of experts instead of a block's MLP: each token goes to `per_token` of `count` SwiGLUs of
/// width `hidden`, none is dropped, and what they give is added with the router's weights. Every token
/// goes to the `shared` ones, too. In formulas E = count, k = per_token.
struct Experts {
  int64_t count = 0;  // 0: every block has an MLP
  int64_t per_token = 0, hidden = 0;
  int64_t shared = 0;        // computed as one SwiGLU of width shared * hidden
  int64_t dense_layers = 0;  // the first so many blocks have an MLP of width ModelShape::hidden
  // The router (model/router.hpp).
  RouterScore score = RouterScore::softmax;
  bool normalize = true;  // the weights of a token's experts are divided by their sum
  double scale = 1;       // and multiplied by this
  bool bias = false;      // experts are chosen by score + bias, and weighted by score
  int64_t groups = 1, groups_per_token = 1;  // a token's experts are in so many of the groups
  bool operator==(const Experts&) const = default;
};

/// In formulas T = block_size, C = dim, L = layers, V = vocab (and B = micro_batch_size).
struct ModelShape {
  int64_t dim = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, vocab = 0, block_size = 0;
  double rope_theta = 10000.0, norm_eps = 1e-5;
  bool tie_embeddings = false;
  // Options of the block. The defaults are Llama 2's.
  int64_t head_width = 0;  // elements of a head; 0: dim / heads. Read it by head_dim().
  bool qkv_bias = false;   // the projections to queries, keys and values add a bias
  QkNorm qk_norm = QkNorm::none;
  NormPlacement norm = NormPlacement::pre;
  int64_t sliding_window = 0;  // a token attends to itself and window - 1 before it; 0: to all
  RopeScaling rope_scaling;
  Experts experts;

  bool operator==(const ModelShape&) const = default;
  int64_t head_dim() const { return head_width > 0 ? head_width : dim / heads; }
  /// The sliding window; 0 if it is so long that every token of a block sees all tokens before it.
  int64_t window() const { return sliding_window < block_size ? sliding_window : 0; }
  bool has_experts(int64_t layer) const {
    return experts.count > 0 && layer >= experts.dense_layers;
  }
  /// Width of the SwiGLU that every token of a block passes: the MLP or the shared experts. May be 0.
  int64_t mlp_width(int64_t layer) const {
    return has_experts(layer) ? experts.shared * experts.hidden : hidden;
  }
  /// The largest mlp_width() of all blocks.
  int64_t widest_mlp() const { return std::max(mlp_width(0), mlp_width(layers - 1)); }
  /// Width of a token's queries, and of its keys or values.
  int64_t q_dim() const { return heads * head_dim(); }
  int64_t kv_dim() const { return kv_heads * head_dim(); }
  /// Elements of the biases of q, k and v, and of the weights of the norms of q and of k.
  int64_t bias_width() const { return qkv_bias ? q_dim() + 2 * kv_dim() : 0; }
  int64_t q_norm_width() const { return qk_norm_width(q_dim()); }
  int64_t k_norm_width() const { return qk_norm_width(kv_dim()); }

 private:
  int64_t qk_norm_width(int64_t whole) const {
    return qk_norm == QkNorm::none ? 0 : qk_norm == QkNorm::head ? head_dim() : whole;
  }
};

/// bad_config: a message of one line that names the first impossible value.
Status validate(const ModelShape& shape);
/// bad_config unless a GPU can multiply a block's matrices in fp8, for which their sides must be
/// multiples of 16. The message has one line and names the first side that is not.
Status validate_fp8(const ModelShape& shape, int64_t micro_batch_size);
/// bad_config unless a GPU's attention supports heads of this width.
Status validate_gpu_heads(const ModelShape& shape, DType precision);
/// A unique value for each model: a head_width of dim / heads becomes 0, and unused parts of
/// rope_scaling get their defaults.
ModelShape canonical(ModelShape shape);
/// A text with all facts of the shape. Shapes with equal texts are equal.
std::string identity_text(const ModelShape& shape);
/// The options that differ from Llama 2's, for users: "head_dim 128, qk_norm head"; "" if none
/// differs.
std::string options_text(const ModelShape& shape);
const char* to_string(RopeScaling::Kind kind);
const char* to_string(QkNorm norm);
const char* to_string(NormPlacement placement);
const char* to_string(RouterScore score);

/// The class of Hugging Face's transformers that computes this model: "Qwen3ForCausalLM". Null if
/// no class does.
const char* hugging_face_class(const ModelShape& shape);

struct Parameter {
  std::string name;            // "model.layers.3.mlp.up_proj.weight"
  std::vector<int64_t> shape;  // (out, in), (vocab, dim) or (elements)
  size_t offset = 0;           // in elements, from the start of its unit
  size_t count = 0;
  uint64_t id = 0;  // index among all parameters; initial values depend on it
  /// True for the parameters that AdamW decays. All others are norms and biases.
  bool is_matrix() const { return shape.size() == 2; }
  bool is_router_bias() const { return name.ends_with("e_score_correction_bias"); }
  bool is_bias() const { return name.ends_with("bias"); }
};

/// A group of parameters that is gathered at once. They are stored without gaps.
struct Unit {
  enum class Kind : unsigned char { embed, block, experts, head };
  std::string name;  // "embed", "layers.0", "layers.0.experts", ..., "head"
  std::vector<Parameter> parameters;
  size_t count = 0;  // elements, without padding
  Kind kind = Kind::embed;
  int layer = -1;  // of a block and of its experts
};

/// The units of a model, in this order:
///   "embed"      embed_tokens
///   "layers.i"   norm of attention, q, k, v, their biases, norms of q and k, o, norm of the MLP,
///                gate, up, down; biases and norms of q and k only if the shape has them. A block
///                with experts has the router and its bias after the norm of the MLP, and gate, up and
///                down of the shared experts if there are any
///   "layers.i.experts"   of such a block: gate, up, down of each expert
///   "head"       norm, lm_head (norm only if the embeddings are tied)
std::vector<Unit> units_of(const ModelShape& shape);
/// Index of a block's unit; that of its experts, if it has some, is the next one. Of `layers`: the head's.
size_t unit_of_block(const ModelShape& shape, int64_t layer);
size_t parameter_count(const ModelShape& shape);
/// Those that a token passes: of the experts only experts.per_token in each block.
size_t active_parameters(const ModelShape& shape);

/// Shards are multiples of this many elements, so sums over blocks of this size do not depend on
/// the number of shards.
inline constexpr size_t kShardAlign = 1024;

/// Elements of one shard of a unit, padding included. The last shards may be padding in part or as
/// a whole; padding is always zero.
constexpr size_t shard_count(size_t unit_count, size_t shards) {
  const size_t blocks = (unit_count + kShardAlign - 1) / kShardAlign;
  return (blocks + shards - 1) / shards * kShardAlign;
}

/// The places of the units in a shard's training state: unit u has count[u] elements from offset[u]
/// on. Units are stored one after the other.
struct ShardLayout {
  size_t shards = 1;
  std::vector<size_t> offset;  // per unit
  std::vector<size_t> count;   // per unit: shard_count()
  size_t total = 0;
};
ShardLayout shard_layout(const std::vector<Unit>& units, size_t shards);
/// True if each of several shards of a unit of experts is some whole experts, as many of each shard.
bool has_whole_experts(const ModelShape& shape, size_t shards);

/// Elements from `from` on of one shard are those from `to` on of another one.
struct Piece {
  size_t from = 0, to = 0, count = 0;
  bool operator==(const Piece&) const = default;
};
/// The elements that two shards of different cuts have in common, in order; multiples of
/// kShardAlign. What lies between the pieces of a shard, over all shards of the other cut, is padding.
std::vector<Piece> common_pieces(const std::vector<Unit>& units, size_t from_shards,
                                 size_t from_shard, size_t to_shards, size_t to_shard);

}  // namespace simplescale
