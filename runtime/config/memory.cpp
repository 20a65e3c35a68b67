// The memory that a trainer needs, estimated from the engine's buffers and never too low. The
// estimate sizes groups, and `config show` prints it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/config/offload.hpp"
#include "runtime/program/program.hpp"
#include "runtime/training/arithmetic.hpp"

namespace simplescale {

// N_u: parameters of unit u. P: the trainer's shard, the sum over units of shard_count(N_u, S). c:
// bytes per value of the compute precision (4 or 2). B, T, C, L, V as everywhere, A: width of the
// queries, K: width of the keys, F: hidden.
//
//   state        12 P per side (fp32 parameters, two moments), 16 P with an average of the
//                parameters. CPU trainers have two sides, which are also their snapshot.
//   parameters   the buffers of gathered units that the engine allocates, and
//   gradients    all its other buffers (runtime/program/buffer_plan.hpp)
//   messages     what a trainer receives from the others of its group, and from other groups; in
//                waves, with 4 instead of c. CPU: c P; CUDA, where a communicator receives one unit
//                at a time: c max N_u (S - 1) / S, and of G groups (G - 1) / G of 4 digits of the
//                largest shard of a unit, and if a group spans nodes with n trainers 8 / n max N_u. A
//                part of `gradients`; so are, with CUDA, P / 128 for the sums of squares.
//                With NCCL's own sums: 4 P and no digits, and messages of c max N_u / S
//   nccl         see nccl_connections()
//   activations  see cpu_activations(), cuda_activations() and orthogonalization()
//   exchange     rows of tokens for resident experts (runtime/program/buffer_plan.hpp)
//   host         with parallel.offload, pinned: BufferPlan::host_bytes() for the state, and inputs() of
//                a wave

namespace {

/// A model's sizes, for both kinds of backend. In floating point, so that absurd sizes in a config do
/// not overflow.
struct Widths {
  Widths(const TrainConfig& train, const ModelShape& shape)
      : c(static_cast<double>(bytes_of(train.precision))),
        N(static_cast<double>(train.micro_batch_size) * static_cast<double>(shape.block_size)),
        C(static_cast<double>(shape.dim)),
        A(static_cast<double>(shape.q_dim())),
        K(static_cast<double>(shape.kv_dim())),
        F(static_cast<double>(shape.widest_mlp())),
        V(static_cast<double>(shape.vocab)),
        layers(static_cast<double>(shape.layers)),
        of_qk_norm(shape.qk_norm == QkNorm::none ? 0 : A + K),
        of_post_norm(shape.norm == NormPlacement::post ? 2 * C : 0) {}
  double c, N, C, A, K, F, V, layers;  // letters as above; N: rows of a micro-batch
  double of_qk_norm, of_post_norm;     // the inputs of norms that only some shapes have
};

double blocks_kept(const TrainConfig& train, double layers) {
  return train.activation_checkpointing == Recompute::block ? 1 : layers;
}
/// Gate and up, the first product of the MLP.
double mlps_kept(const TrainConfig& train, double layers) {
  return train.activation_checkpointing == Recompute::nothing ? layers : 1;
}
/// Bytes of `row` bytes for each of N rows if at most BackendOptions::part_bytes are kept at a time.
double in_parts(double N, double row) {
  return row * std::clamp(std::floor(double{arithmetic::kPartBytes} / row), 1.0, N);
}

/// As model/cpu/experts.cpp allocates, with R rows of experts, k of each token and padding. Of each block:
/// the choice and its scores, each row's place, gate and up; of a micro-batch: the experts' input and its
/// gradient, gradients of the choice; of one block: the rows, what they return and its gradient, the
/// product and its gradients.
/// Resident experts have only rows of one micro-batch at a time, and no gate and up is kept.
double cpu_expert_activations(const TrainConfig& train, const ModelShape& shape, int64_t wave,
                              int expert_shards) {
  const Experts& x = shape.experts;
  if (x.count == 0) return 0;
  const Widths w(train, shape);
  const auto E = static_cast<double>(x.count), k = static_cast<double>(x.per_token),
             X = static_cast<double>(x.hidden);
  const double own = E / static_cast<double>(expert_shards);
  const bool resident = expert_shards > 1;
  const double frames = static_cast<double>(std::max<int64_t>(1, wave)),
               layers = w.layers - static_cast<double>(x.dense_layers),
               R = w.N * std::min(k, own) +
                   own * (static_cast<double>(arithmetic::kExpertRows) - 1);
  const double choice = w.N * (8 * E + 12 * k) + (resident ? 12 * w.N * k : 8 * R),
               gate_up = w.c * R * 2 * X;
  const bool keeps_gate_up = train.activation_checkpointing == Recompute::nothing && !resident;
  const double of_frame = w.N * (w.c * (w.C + E) + 4 * w.C) + choice * blocks_kept(train, layers) +
                          (keeps_gate_up ? gate_up * layers : 0);
  return frames * of_frame + (keeps_gate_up ? 0 : gate_up) + w.c * R * (3 * w.C + 3 * X) +
         (resident ? 12 : 4) * R;
}

/// As model/cpu/cpu_backend.cpp allocates. Of each block: its input, both norms, second residual, q,
/// attention, k, v, gate, up, product.
double cpu_activations(const TrainConfig& train, const ModelShape& shape, int64_t wave,
                       int expert_shards) {
  const Widths w(train, shape);
  const double block =
      w.c * w.N * (4 * w.C + 2 * w.A + 2 * w.K + w.F + w.of_qk_norm + w.of_post_norm);
  const double inputs = train.activation_checkpointing == Recompute::block ? w.layers : 0;
  const double kept = w.c * w.N * (w.C * inputs + 2 * w.F * mlps_kept(train, w.layers)) +
                      block * blocks_kept(train, w.layers);
  const double of_wave = (w.c * w.N * w.C * (w.layers + 2) +
                          (train.activation_checkpointing == Recompute::block ? 0 : kept)) *
                         static_cast<double>(std::max<int64_t>(1, wave) - 1);
  const double logits = (4 + w.c) * w.N * w.V;  // and their gradient
  const double backward = w.c * w.N * (3 * w.C + w.A + 3 * w.F);
  const double rounded = train.fp8 ? w.c * w.C * (2 * w.A + 2 * w.K + 3 * w.F) : 0;
  return kept + of_wave + logits + backward + rounded +
         cpu_expert_activations(train, shape, wave, expert_shards);
}

/// While attention's gradients are computed: of libtorch dq in fp32 (of deterministic flash attention
/// as many as there are multiprocessors for each head), dk and dv of each query head, and for the fp32
/// kernel k and v of each query head of a group; of cuDNN's deterministic kernel dk and dv of each
/// query head of a group, and the gradients of the scores, in parts of at most
/// kAttentionWorkspaceBytesMax (model/cuda/attention_choice.hpp). A run may use both, but not at once.
double attention_workspace(const TrainConfig& train, const ModelShape& shape, const Widths& w) {
  constexpr double kPartBytes = 640.0 * (1u << 20);
  constexpr double kMultiprocessors = 148;  // of a B200; older GPUs have fewer
  const double heads =
      static_cast<double>(train.micro_batch_size) * static_cast<double>(shape.heads);
  const bool several = train.precision == DType::bf16 && train.deterministic;
  const double times = several ? std::ceil(kMultiprocessors / heads) : 1;
  const bool repeats = train.precision == DType::f32 && w.A > w.K;
  const double libtorch = w.N * w.A * (4 * times + (repeats ? 4 : 2) * w.c);
  if (train.precision == DType::f32 || !train.deterministic || shape.window() > 0) return libtorch;
  const double T = std::ceil(static_cast<double>(shape.block_size) / 128) * 128;
  const double cudnn = heads * T * T * 2 + (w.A > w.K ? 2 * w.c * w.N * w.A : 0);
  return std::max(libtorch, std::min(kPartBytes, cudnn));
}

/// The factors of a product in fp8, with a scale of 4 bytes for each 128 values; part: rows of the MLP
/// that are computed at a time.
double fp8_factors(const Widths& w, double part) {
  const double Q = w.A + 2 * w.K, gradients = std::max(w.N * std::max(w.C, Q), part * 2 * w.F);
  const double left = std::max(gradients, w.N * w.A);
  const double right = std::max({2 * w.F * w.C, Q * w.C, w.N * std::max(w.C, w.A), part * w.F});
  return (left + gradients + right) * (1 + 4.0 / 128);
}

/// In fp32 attention learns of documents by a mask, for which their numbers are compared; of a window
/// by one for all samples.
double attention_masks(const Config& config, const ModelShape& shape, const Widths& w) {
  if (config.train.precision != DType::f32) return 0;
  const double T = static_cast<double>(shape.block_size), row = std::ceil(T / 8) * 8;
  const bool documents = config.data.document_mask || !config.train.validation_lengths.empty();
  return (documents ? w.N * (4 + 1) * row : 0) + (shape.window() > 0 ? T * row * 4 : 0);
}

/// Inputs of blocks of a micro-batch in device memory, with that of the head.
double device_inputs(const Config& config, const Widths& w) {
  return offloads_inputs(config.parallel.offload) ? std::min(2.0, w.layers + 1) : w.layers + 1;
}

/// Bytes of those that are in host memory: all but that of the last block.
uint64_t host_inputs(const Config& config, const ModelShape& shape) {
  if (!offloads_inputs(config.parallel.offload)) return 0;
  const Widths w(config.train, shape);
  return static_cast<uint64_t>(
      std::min(1e18, w.c * w.N * w.C * (w.layers - 1) *
                         static_cast<double>(std::max<int64_t>(1, config.parallel.wave))));
}

/// As model/cuda/cuda_backend.cpp allocates; tests/gpu/memory_test.cpp compares the two. Of each
/// block: its input, q, k and v, attention's output and sums, second residual, gate, up.
double cuda_activations(const Config& config, const ModelShape& shape) {
  const TrainConfig& train = config.train;
  constexpr double kWorkspace = 32.0 * (1u << 20);  // of products
  const Widths w(train, shape);
  const double row = w.c * w.N, Q = w.A + 2 * w.K;
  const double block = row * (Q + w.A + w.C + w.of_qk_norm + w.of_post_norm) +
                       4 * w.N * static_cast<double>(shape.heads);
  const double part = in_parts(w.N, w.c * 2 * w.F);  // of gate and up
  const double gate_up =
      train.activation_checkpointing == Recompute::nothing ? row * 2 * w.F * w.layers : part;
  const double inputs = device_inputs(config, w);
  const double kept = row * w.C * inputs + gate_up + block * blocks_kept(train, w.layers);
  const double logits = in_parts(w.N, w.c * w.V);
  const double working = row * (4 * w.C + std::max(w.C, w.A) + Q) + 1.5 * part +
                         4 * 512 * std::max(w.C, static_cast<double>(shape.bias_width()));
  const double tokens = 16 * w.N + 4 * w.V;
  const double rope = 4.0 * static_cast<double>(shape.block_size * shape.head_dim());
  const double attention = row * Q +
                           4 * w.N * static_cast<double>(shape.heads) +  // gradients, sums
                           attention_workspace(train, shape, w) + attention_masks(config, shape, w);
  const double fp8 = train.fp8 ? fp8_factors(w, part / (w.c * 2 * w.F)) : 0;
  const double of_frame =
      tokens + row * w.C * (inputs + 1) +
      (train.activation_checkpointing == Recompute::block ? 0 : block * w.layers) +
      (train.activation_checkpointing == Recompute::nothing ? gate_up : 0);
  const double of_wave =
      of_frame * static_cast<double>(std::max<int64_t>(1, config.parallel.wave) - 1);
  return kept + of_wave + logits + working + tokens + rope + attention + fp8 + kWorkspace;
}

/// Muon's products of the largest matrix.
double orthogonalization(const TrainConfig& train, const ModelShape& shape) {
  const Widths w(train, shape);
  const auto of_experts = static_cast<double>(std::max(shape.experts.count, shape.experts.hidden));
  return (2 * w.c + 4) * w.C * w.C + 4 * w.C * std::max({w.A, w.K, w.F, of_experts});
}

/// Sums in tree order connect every pair of ranks (transport/nccl/communicator.hpp). By the sources
/// of NCCL 2.28 a channel between two ranks takes 12 MiB, and a pair has up to 32 over NVLink, two
/// over a network. Rings of 0.25 GiB come to each communicator; gathers beside NCCL's own sums have
/// one more.
uint64_t nccl_connections(const Config& config, int shards, int groups) {
  if (config.cluster.device != DeviceKind::cuda) return 0;
  constexpr uint64_t channel = uint64_t{12} << 20, rings = uint64_t{256} << 20;
  const bool pairs = config.train.deterministic;
  const auto of_ranks = [&](int ranks, int on_node, uint64_t communicators) -> uint64_t {
    if (ranks == 1) return 0;
    const int near = std::clamp(on_node, 1, ranks);
    const auto channels = static_cast<uint64_t>(32 * (near - 1) + 2 * (ranks - near));
    return communicators * rings + (pairs ? channels * channel : 0);
  };
  const int on_node = static_cast<int>(config.cluster.trainers_per_node);
  return of_ranks(shards, on_node, pairs ? 1 : 2) + of_ranks(groups, on_node / shards, 1);
}

/// True: the gradients' sums are NCCL's own, unless trainers share GPUs.
bool has_native_sums(const Config& config) {
  return config.cluster.device == DeviceKind::cuda && !config.train.deterministic &&
         (most_nodes(config) == 1 || !config.transport.trusted_networks.empty());
}

/// What decides the engine's buffers.
EngineOptions buffer_options(const Config& config, const ModelShape& shape, Sharding sharding,
                             int64_t leaves) {
  const TrainConfig& train = config.train;
  const auto bounded = [](int64_t of_step) {
    return static_cast<int>(std::clamp<int64_t>(of_step, 1, std::numeric_limits<int>::max()));
  };
  EngineOptions options{.shape = shape,
                        .precision = train.precision,
                        .micro_batch_size = bounded(train.micro_batch_size),
                        .leaves = bounded(leaves),
                        .wave = bounded(config.parallel.wave),
                        .sharding = sharding,
                        .state_in_host = offloads_state(config.parallel.offload),
                        .resident_experts = config.parallel.experts == ExpertPlacement::resident,
                        .optimizer = train.optimizer,
                        .moments = train.moments_precision,
                        .ema_decay = train.ema_decay};
  for (const BatchStage& stage : train.batch_warmup)
    options.warmup.push_back({0, bounded(stage.global_batch_size / train.micro_batch_size)});
  return options;
}

EngineOptions buffer_options(const Config& config, const Plan& plan) {
  Config with = config;
  with.parallel.wave = plan.wave;
  with.parallel.offload = plan.offload;
  with.parallel.experts = plan.experts;
  return buffer_options(with, plan.shape, plan.topology.sharding, plan.leaves);
}

}  // namespace

bool sums_leave_device(const Config& config, const Plan& plan) {
  const Topology& t = plan.topology;
  return !most_buffers(
              buffer_options(config, plan), static_cast<size_t>(t.most_groups_of(t.group_nodes)),
              static_cast<size_t>(t.shards), false, has_native_sums(config), balances(config))
              .windows.empty();
}

uint64_t uploaded_elements(const Config& config, const Plan& plan) {
  const EngineOptions options = buffer_options(config, plan);
  const auto groups = static_cast<size_t>(plan.topology.groups),
             shards = static_cast<size_t>(plan.topology.shards);
  const std::vector<Unit> units = units_of(plan.shape);
  const ShardLayout layout = shard_layout(units, shards);
  ProgramOptions order =
      program_options(units, plan.shape.tie_embeddings, has_resident_experts(options, shards));
  order.turns = shares_of(options, static_cast<uint64_t>(plan.leaves), groups, shards).turns(0);
  const BufferPlan buffers = buffer_plan(options, groups, shards, false, has_native_sums(config));
  uint64_t elements = 0;
  for (const Task& task : step_program(order, buffers))
    if (task.op == Op::gather) elements += layout.count[task.unit];
  return elements;
}

MemoryEstimate memory_estimate(const Config& config, const ModelShape& shape, Sharding sharding,
                               int shards, int groups, int64_t leaves) {
  const std::vector<Unit> units = units_of(shape);
  const uint64_t own = shard_layout(units, static_cast<size_t>(shards)).total;
  uint64_t largest = 0;  // of the units, whole
  for (const Unit& unit : units)
    largest =
        std::max<uint64_t>(largest, shard_count(unit.count, static_cast<size_t>(shards)) * shards);
  const uint64_t c = bytes_of(config.train.precision);
  const uint64_t sides = config.cluster.device == DeviceKind::cuda ? 1 : 2;

  MemoryEstimate estimate;
  const bool cuda = config.cluster.device == DeviceKind::cuda,
             muon = config.train.optimizer == Optimizer::muon;
  const uint64_t largest_part = largest / static_cast<uint64_t>(shards);
  const EngineOptions options = buffer_options(config, shape, sharding, leaves);
  if (!cuda || !options.state_in_host)
    estimate.state = state_format(config.train).bytes() * own * sides;
  const auto gradients_of = [&](bool native) {
    const BufferPlan buffers =
        most_buffers(options, static_cast<size_t>(groups), static_cast<size_t>(shards), !cuda,
                     native, balances(config));
    const BufferBytes of = buffers.bytes(options.precision, own);
    estimate.parameters = of.gather;
    estimate.host = buffers.host_bytes(options.precision, own) + host_inputs(config, shape);
    // A window of one shard ends with one node.
    const uint64_t digits = buffers.windows.empty() ? buffers.digits : buffers.window_digits;
    uint64_t bytes = 0;                                                            // of messages
    const uint64_t received = shards == 1 ? 0 : config.parallel.wave > 1 ? 4 : c;  // of an element
    if (!cuda)
      bytes += received * own;
    else if (native)
      bytes += own / 128 + received * largest_part;
    else
      bytes += own / 128 + received * (largest - largest_part) +
               4 * digits * largest_part * static_cast<uint64_t>(groups - 1) /
                   static_cast<uint64_t>(groups);
    // A group that spans hosts adds inside each first (transport/nccl/host_sums.hpp).
    const auto per_node = static_cast<uint64_t>(config.cluster.trainers_per_node);
    if (cuda && !native && per_node > 1 && static_cast<uint64_t>(shards) > per_node)
      bytes += 8 * largest / per_node;
    estimate.messages = bytes;
    estimate.exchange = of.exchange;
    return of.gradient + of.sums + of.slices + of.muon + bytes;
  };
  estimate.staged_gradients = gradients_of(false);
  estimate.gradients = gradients_of(has_native_sums(config));
  const int expert_shards = has_resident_experts(options, static_cast<size_t>(shards)) ? shards : 1;
  const double activations =
      (config.cluster.device == DeviceKind::cuda
           ? cuda_activations(config, shape)
           : cpu_activations(config.train, shape, config.parallel.wave, expert_shards)) +
      (muon ? orthogonalization(config.train, shape) : 0);
  estimate.activations = static_cast<uint64_t>(std::min(1e18, activations));
  estimate.nccl = nccl_connections(config, shards, groups);
  return estimate;
}

}  // namespace simplescale
