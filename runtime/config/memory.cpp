// The memory that a trainer needs, estimated from the engine's buffers and never too low. The
// estimate sizes groups, and `config show` prints it.
#include <algorithm>

#include "runtime/config/topology.hpp"
#include "runtime/training/tree_sum.hpp"

namespace simplescale {

// N_u: parameters of unit u. P: the trainer's shard, the sum over units of shard_count(N_u, S). c:
// bytes per value of the compute precision (4 or 2). B, T, C, L, V as everywhere, A: width of the
// queries, K: width of the keys, h: hidden. U: the largest block. E: embeddings or head, whichever is larger; both if tied.
//
//   state        12 P per side (fp32 parameters, two moments). CPU trainers have two sides, which
//                are also their snapshot.
//   parameters   c P for the part of the shard that other trainers read, and
//                full_shard: c (2 U + E); shard_grad_op, no_shard: c sum N_u
//   gradients    c (2 U + E): one unit being computed, one being reduced; and
//                4 P (1 + digits): the sum over groups and the partial sums of its leaves
//   activations  c B T (4 C + 2 A + 2 K + 3 h) per block: its input, both norms, second residual,
//                q, attention, k, v, gate, up, product;
//                A + K more with qk_norm, 2 C more with norms after attention and MLP: their
//                inputs;
//                with activation_checkpointing: c B T C per block, and one whole block;
//                (4 + c) B T V for the logits and their gradient;
//                c B T (3 C + A + 3 h) during the backward pass of a block
MemoryEstimate memory_estimate(const Config& config, const ModelShape& shape, Sharding sharding,
                               int shards, int groups, int64_t rows) {
  const std::vector<Unit> units = units_of(shape);
  const uint64_t own = shard_layout(units, static_cast<size_t>(shards)).total;
  uint64_t all = 0;
  std::vector<uint64_t> whole;
  for (const Unit& unit : units) {
    whole.push_back(shard_count(unit.count, static_cast<size_t>(shards)) * shards);
    all += whole.back();
  }
  // As in model/engine/buffer_plan.hpp; tests/model compares the two.
  const uint64_t ends =
      shape.tie_embeddings ? whole.front() + whole.back() : std::max(whole.front(), whole.back());
  const uint64_t in_turn = 2 * whole[1] + ends;
  const uint64_t c = bytes_of(config.train.precision);
  const uint64_t sides = config.cluster.device == DeviceKind::cuda ? 1 : 2;
  const auto tokens = static_cast<uint64_t>(config.train.micro_batch_size * shape.block_size);
  const auto dim = static_cast<uint64_t>(shape.dim), hidden = static_cast<uint64_t>(shape.hidden);
  const auto layers = static_cast<uint64_t>(shape.layers),
             vocab = static_cast<uint64_t>(shape.vocab);

  MemoryEstimate estimate;
  estimate.state = 12 * own * sides;
  estimate.parameters = c * own + c * (sharding == Sharding::full_shard ? in_turn : all);
  // Buffers are not reallocated when groups are lost, and a trainer then has more partial sums.
  const uint64_t digits = digits_of_any_groups(
      static_cast<uint64_t>(rows), static_cast<uint64_t>(groups), static_cast<uint64_t>(shards));
  estimate.gradients = c * in_turn + 4 * own * (1 + digits);
  // In floating point, so that absurd sizes in a config do not overflow.
  const double element = static_cast<double>(c) * static_cast<double>(tokens);
  const auto width = static_cast<double>(dim), inner = static_cast<double>(hidden),
             queries = static_cast<double>(shape.q_dim()),
             keys = static_cast<double>(shape.kv_dim());
  const double of_qk_norm = shape.qk_norm == QkNorm::none ? 0 : queries + keys;
  const double of_post_norm = shape.norm == NormPlacement::post ? 2 * width : 0;
  const double block =
      element * (4 * width + 2 * queries + 2 * keys + 3 * inner + of_qk_norm + of_post_norm);
  const double depth = static_cast<double>(layers);
  const double kept =
      config.train.activation_checkpointing ? element * width * depth + block : block * depth;
  const double logits = static_cast<double>((4 + c) * tokens) * static_cast<double>(vocab);
  const double backward = element * (3 * width + queries + 3 * inner);
  estimate.activations = static_cast<uint64_t>(std::min(1e18, kept + logits + backward));
  return estimate;
}

}  // namespace simplescale
