// A Llama model as data: its shape, its parameters under their Hugging Face names, and their places
// in flat units and shards. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

/// In formulas T = block_size, C = dim, L = layers, V = vocab (and B = micro_batch_size).
struct ModelShape {
  int64_t dim = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, vocab = 0, block_size = 0;
  double rope_theta = 10000.0, norm_eps = 1e-5;
  bool tie_embeddings = false;
  bool operator==(const ModelShape&) const = default;
  int64_t head_dim() const { return dim / heads; }
};

/// bad_config: a message of one line that names the first impossible value.
Status validate(const ModelShape& shape);

struct Parameter {
  std::string name;            // "model.layers.3.mlp.up_proj.weight"
  std::vector<int64_t> shape;  // (out, in), (vocab, dim) or (dim)
  size_t offset = 0;           // in elements, from the start of its unit
  size_t count = 0;
  uint64_t id = 0;  // index among all parameters; the counter-based initial values depend on it
  /// True if AdamW decays it. All others are norms, whose initial value is 1.
  bool is_matrix() const { return shape.size() == 2; }
};

/// A group of parameters that is gathered at once. They follow each other without gaps.
struct Unit {
  std::string name;  // "embed", "layers.0", ..., "head"
  std::vector<Parameter> parameters;
  size_t count = 0;  // elements, without padding
};

/// The units of a model, in this order:
///   "embed"      embed_tokens
///   "layers.i"   input norm, q, k, v, o, post-attention norm, gate, up, down
///   "head"       norm, lm_head (norm only if the embeddings are tied)
std::vector<Unit> units_of(const ModelShape& shape);
size_t parameter_count(const ModelShape& shape);

/// Shards are multiples of this many elements, so that sums over blocks of this size do not depend
/// on the number of shards.
inline constexpr size_t kShardAlign = 1024;

/// Elements of one shard of a unit, padding included. The last shards may be padding in part or as
/// a whole; padding is always zero.
constexpr size_t shard_count(size_t unit_count, size_t shards) {
  const size_t blocks = (unit_count + kShardAlign - 1) / kShardAlign;
  return (blocks + shards - 1) / shards * kShardAlign;
}

/// Where the units lie in a shard's training state: unit u has count[u] elements from offset[u],
/// one unit after the other.
struct ShardLayout {
  size_t shards = 1;
  std::vector<size_t> offset;  // per unit
  std::vector<size_t> count;   // per unit: shard_count()
  size_t total = 0;
};
ShardLayout shard_layout(const std::vector<Unit>& units, size_t shards);

}  // namespace simplescale
