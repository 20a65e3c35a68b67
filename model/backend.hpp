// What a device does for the training engine: forward and backward unit by unit, and the
// element-wise work on a shard.
//
// The engine (model/engine) owns shards, collectives and the order of a step; a Backend owns the
// mathematics and the memory. model/cpu implements it with libtorch's MKL and our kernels,
// model/cuda in a library of its own that is loaded only where a GPU is used. The compute thread
// makes all calls. Pointers are device pointers of the backend unless a comment says host memory.
//
// Letters: B samples per micro-batch, T = block_size, C = dim, V = vocab, M leaves (micro-batches)
// per step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/dtype.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/arithmetic.hpp"
#include "runtime/training/block_tree.hpp"
#include "runtime/training/model_shape.hpp"
#include "runtime/training/recompute.hpp"
#include "runtime/training/state_hash.hpp"
#include "runtime/training/stochastic_rounding.hpp"
#include "runtime/training/tree_sum.hpp"

namespace simplescale {

struct BackendOptions {
  ModelShape shape;
  int micro_batch_size = 1;  // B
  // Element type of products, activations, residual stream, unit parameters and gradients.
  DType precision = DType::f32;
  Recompute recompute = Recompute::nothing;
  bool training = true;   // false: no activations are kept, backward calls are forbidden
  int frames = 1;         // micro-batches whose passes may be under way at once
  int expert_shards = 1;  // trainers on which resident experts are; each has as many. 1: gathered
  int threads = 1;        // CPU threads of the kernels; the bits of results do not depend on it
  int device_index = 0;   // CUDA
  // CUDA: makes attention's backward pass reproducible; everything else always is.
  bool deterministic = true;
  float z_loss = 0;  // coefficient; see Backend::head()
  // Coefficients of the routers' own losses (model/router.hpp).
  float router_z_loss = 0, router_balance_loss = 0;
  bool muon = false;  // orthogonalize() will be called
  // CUDA, with Recompute::block: the device holds two inputs of blocks of a frame, and pinned host
  // memory the others.
  bool inputs_in_host = false;
  // CUDA: where the run keeps which algorithm each product takes, and which kernel attention takes
  // (model/cuda/chosen_algorithms.hpp); empty: nothing is measured.
  std::string gemm_folder;
  // The factors of the blocks' products are rounded to fp8 (model/fp8.hpp); sums, the products of
  // attention and of the head are not. CPU: emulated (model/cpu/fp8.hpp).
  bool fp8 = false;
  // CUDA: bytes of logits, and of an MLP's gate and up, that are computed at a time. Where a
  // micro-batch has more, the head or the MLP computes some of its rows at a time, and the gradients
  // of their matrices are rounded after each of these parts.
  int64_t part_bytes = arithmetic::kPartBytes;
};

/// Rows of tokens for experts, expert by expert, and what the experts return for them. A token is sent once to
/// each trainer that has some of its experts.
struct TokenRows {
  // (tokens sent, C) in the precision: the experts' input; on the way back (rows, C): their output, or the
  // gradient of the input.
  void* x = nullptr;
  // (tokens sent, C) in the precision, backward: the gradient of the micro-batch's output.
  void* d_out = nullptr;
  // (rows), backward: the router's weight; on the way back its gradient.
  float* weight = nullptr;
  int32_t* token = nullptr;  // (rows): of the tokens sent
};

/// How a state stores its moments.
struct Moments {
  DType dtype = DType::f32;
  RoundingKey key = {};  // bf16: of their stochastic rounding in this update
};

/// AdamW, arXiv 1711.05101, with bias-corrected moments m^ and v^:
///   p -= lr * (m^ / (sqrt(v^) + eps) + weight_decay * p)
/// A run has its own weight_decay, and lr is learning_rate * rate_factor.
struct AdamW {
  float learning_rate, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float gradient_scale = 1;  // for clipping: min(1, max_norm / (norm + 1e-6))
  uint64_t step = 1;         // 1 for the first update
  Moments moments = {};
};

/// Muon (K. Jordan et al. 2024), with Nesterov momentum m, a matrix's update O = the orthogonal
/// matrix nearest to (1 - momentum) g + momentum m, and the scale of arXiv 2502.16982, with which
/// AdamW's rates fit Muon, too:
///   p -= lr * (0.2 sqrt(max(rows, columns)) O + weight_decay * p)
/// The momentum is exp_avg of the state; exp_avg_sq is not used.
struct Muon {
  float learning_rate, momentum = 0.95f;
  float gradient_scale = 1;  // as in AdamW
  Moments moments = {};
};

/// A run of elements of a shard that the optimizer treats alike.
struct ParameterRun {
  size_t first, count;
  float rate_factor = 1, weight_decay = 0;  // parameter_groups.hpp
  float muon_scale = 0;  // Muon's 0.2 sqrt(max(rows, columns)); 0: AdamW updates the run
  // Above 0: each element moves by so much in the direction of its gradient's sign, and has no moments.
  // The balancing of routers (EngineOptions::router_bias_rate).
  float sign_step = 0;
  // The first element's place in the model, whose units follow each other with the padding of one
  // shard: the same on every layout. Only the rounding of moments depends on it.
  uint64_t element = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // --- Memory ---
  /// Zeroed, 64-byte aligned device memory that lives as long as the backend. Never returns null;
  /// an error names the size.
  virtual Result<void*> allocate(size_t bytes) = 0;
  /// True if the backend computes on host memory, such as the shared memory of the collectives and
  /// of the state.
  virtual bool host_memory() const = 0;
  virtual void copy_to_device(void* device, const void* host, size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, size_t bytes) = 0;
  /// Both in device memory.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void zero(void* data, size_t bytes) = 0;
  /// Waits until all calls so far are complete, and their results visible to the host and to peers.
  virtual void synchronize() = 0;
  /// The device's queue of work, a cudaStream_t. Collectives that follow it (Collective::follow)
  /// need no synchronize() before they start. Null: the caller must call synchronize().
  virtual void* stream() const { return nullptr; }

  // --- Copies of the state to shared memory, concurrent with the computation ---
  /// Begins to register host memory that start_copy() writes, unless it is registered, so that the
  /// device writes it directly. Until that is done, and if the driver refuses, copies are slow. The
  /// driver lets other calls wait while it registers, 1 to 2 GB a second.
  virtual void pin_host(void* /*host*/, size_t /*bytes*/) {}
  /// Ends that, if it was begun. Only after finish_copies().
  virtual void unpin_host(void* /*host*/) {}
  /// Copies `device` to `host` after all calls so far and concurrently with later calls. Until
  /// finish_copies(), nothing may write `device` or use `host`.
  virtual void start_copy(void* host, const void* device, size_t bytes) {
    copy_to_host(host, device, bytes);
  }
  /// Waits until all copies that start_copy() began are complete in host memory.
  virtual void finish_copies() {}

  // --- A state in host memory, of a device with memory of its own (EngineOptions::state_in_host) ---
  enum class HostUse : unsigned char { gradient, parameters };
  /// Host memory that the device copies directly, of at least that size. It lives as long as the
  /// backend. A call with the same use returns the same memory; if it must grow, its contents are lost.
  /// This default is for host memory, and for one call of each use.
  virtual Result<void*> host_buffer(HostUse /*use*/, size_t bytes) { return allocate(bytes); }
  /// Makes the calls that follow wait for a copy, but not the host. To be called once.
  using PendingCopy = std::function<void()>;
  /// Copies host_buffer() memory to `device` after all calls so far and concurrently with later calls.
  /// Until those wait for it, nothing may use `device`, and until they are done, nothing may write
  /// `host`.
  virtual PendingCopy start_upload(void* device, const void* host, size_t bytes) {
    copy_to_device(device, host, bytes);
    return [] {};
  }
  /// The queue of these copies, as stream(): what follows it comes after the uploads so far. Null: the
  /// caller must make later calls wait.
  virtual void* upload_stream() const { return nullptr; }
  /// As start_copy(), to host_buffer() memory. Calls that wait for this copy may write `device`.
  virtual PendingCopy start_download(void* host, const void* device, size_t bytes) {
    copy_to_host(host, device, bytes);
    return [] {};
  }

  // --- Host threads ---
  /// Runs body(task) for each task in [0, tasks) on the backend's host threads; returns when all
  /// are done. For work on host memory. This default uses the caller's thread only.
  virtual void parallel(size_t tasks, const std::function<void(size_t)>& body) {
    for (size_t task = 0; task < tasks; ++task) body(task);
  }
  /// parallel() as a function, which must not outlive the backend.
  Parallel host_threads() {
    return [this](size_t tasks, const std::function<void(size_t)>& body) { parallel(tasks, body); };
  }

  // --- Forward and backward of one micro-batch, unit by unit, in this order ---
  // frame: the micro-batch that a call works on, one of BackendOptions::frames. The calls of different
  // frames may follow each other in any order, which changes no bit. params: the unit's flat
  // parameters in `precision`. They stay the same between two calls of the same pass, the second of
  // which is of a later frame: what is made of them for the first may be kept. grad: the same layout and precision; it is overwritten, not added to.
  // Of each frame the backend holds the residual stream (B*T, C) and what the backward pass needs.
  /// Begins a micro-batch. tokens: (B, T + 1) int32 host memory, row-wise; columns 0..T-1 are
  /// inputs, columns 1..T targets. Their marks (token_marks.hpp) say where documents begin and which
  /// targets are not trained.
  virtual void embed(int frame, const void* params, const int32_t* tokens) = 0;
  virtual void forward_block(int frame, int layer, const void* params) = 0;
  /// Of a block with experts, after its forward_block(), which has chosen each token's experts: their
  /// part of its output. params: of the unit of experts.
  virtual void forward_experts(int /*frame*/, int /*layer*/, const void* /*params*/) {
    SS_ASSERT(!"this backend has no experts");
  }
  /// grad: of the unit of experts. block: parameters of the block's other unit.
  /// The choices of the frame's last forward_block() of each layer, as router_counts.hpp lays them out, in
  /// host memory. Valid until the frame's next call.
  virtual std::span<const int64_t> router_counts(int /*frame*/) { return {}; }
  virtual void backward_experts(int /*frame*/, int /*layer*/, const void* /*block*/,
                                const void* /*params*/, void* /*grad*/) {
    SS_ASSERT(!"this backend has no experts");
  }
  // --- Resident experts (BackendOptions::expert_shards), instead of the two calls above ---
  // A micro-batch's rows are sent to the trainers that have their experts (model/engine/token_exchange.hpp).
  // rows, all of a micro-batch's: its tokens times experts of a token, one trainer's after the other; the tokens
  // that are sent to a trainer lie from its first row on. tokens: of one micro-batch for each of this trainer's
  // experts. Rows are host memory.
  /// After forward_block(): what the experts read of this micro-batch. sent: becomes the number of tokens for
  /// each trainer.
  virtual void send_tokens(int /*frame*/, int /*layer*/, const TokenRows& /*rows*/,
                           std::span<int32_t> /*sent*/) {
    SS_ASSERT(!"this backend has no resident experts");
  }
  /// Before backward_block(). block: parameters of that unit.
  virtual void send_gradients(int /*frame*/, int /*layer*/, const void* /*block*/,
                              const TokenRows& /*rows*/) {
    SS_ASSERT(!"this backend has no resident experts");
  }
  /// rows: of any trainer's micro-batch. params: of this trainer's experts. to: may be rows.
  virtual void forward_rows(std::span<const int32_t> /*tokens*/, const void* /*params*/,
                            const TokenRows& /*rows*/, const TokenRows& /*to*/) {
    SS_ASSERT(!"this backend has no resident experts");
  }
  /// grad: of this trainer's experts by that micro-batch, in the precision; it is overwritten.
  virtual void backward_rows(std::span<const int32_t> /*tokens*/, const void* /*params*/,
                             const TokenRows& /*rows*/, void* /*grad*/, const TokenRows& /*to*/) {
    SS_ASSERT(!"this backend has no resident experts");
  }
  /// Ends the experts' passes of this micro-batch. rows: what the experts returned.
  virtual void combine_tokens(int /*frame*/, int /*layer*/, const TokenRows& /*rows*/) {
    SS_ASSERT(!"this backend has no resident experts");
  }
  virtual void combine_gradients(int /*frame*/, int /*layer*/, const TokenRows& /*rows*/) {
    SS_ASSERT(!"this backend has no resident experts");
  }
  /// Final norm, lm_head and cross-entropy. If grad is not null, also runs this unit's backward pass
  /// with d loss scaled by `scale` (1/M): fills grad and the residual stream's gradient. The loss
  /// whose gradient it computes is loss() plus the z-loss, the mean of
  /// z_loss * logsumexp(logits)^2 (PaLM, arXiv 2204.02311, section 5). Targets that are not trained
  /// add nothing to either. tied: the embedding matrix (V, C) if embeddings are tied, else null.
  /// tied_grad: (V, C) likewise; receives lm_head's part of the embedding matrix's gradient.
  virtual void head(int frame, const void* params, const void* tied, float scale, void* grad,
                    void* tied_grad) = 0;
  /// The mean loss of the frame's last head() in nats over B*T tokens, without the z-loss. Waits for
  /// that head(), but not for the calls after it: read it late.
  virtual double loss(int frame) = 0;
  /// As loss(), but of each target: (B, T) in nats and in host memory; 0 of those that are not
  /// trained. Valid until the frame's next call.
  virtual std::span<const float> losses(int frame) = 0;
  /// Both backward passes of a block with experts are given the gradient of the block's output; that of
  /// the experts, with the parameters of both units, comes first.
  virtual void backward_block(int frame, int layer, const void* params, void* grad) = 0;
  /// Ends the micro-batch. grad: receives the embeddings' part of their matrix's gradient.
  virtual void backward_embed(int frame, void* grad) = 0;

  // --- Inference: after embed() and all forward_block() calls ---
  /// logits: (B, T, V) fp32 host memory.
  virtual void logits(int frame, const void* params, const void* tied, float* logits) = 0;

  // --- Element-wise work on a shard ---
  /// to[i] = from[i], rounded to the precision.
  virtual void cast(const float* from, void* to, size_t count) = 0;
  /// to[i] += from[i]. Both: (count) fp32.
  virtual void accumulate(const float* from, float* to, size_t count) = 0;
  /// As PartialSum::add(), of one leaf that follows those in the sum. The sum's buffers and the leaf
  /// are device memory. This default is for host memory.
  virtual void add_leaf(const TreeSource& leaf, PartialSum& sum) {
    constexpr size_t kPiece = size_t{1} << 16;
    for_pieces(host_threads(), sum.count(), kPiece, [&](size_t first, size_t count) {
      const TreeSource piece{leaf.node,
                             static_cast<const char*>(leaf.data) + first * bytes_of(leaf.dtype),
                             leaf.dtype};
      sum.add_range({&piece, 1}, first, count);
    });
    sum.added({&leaf.node, 1});
  }
  /// Begins square_sums() of `count` of a shard's `total` elements, from element `first` on, all of them
  /// multiples of kShardAlign. values: of element `first`.
  virtual void start_squares(const float* values, size_t first, size_t count, size_t total) = 0;
  /// sums[i] = sum of the squares of the elements of trees[i], in double: of each block, in an order
  /// that is fixed per backend; then of the blocks, in tree order. trees: in the order of their
  /// blocks, disjoint, of elements that start_squares() was given since the last call. sums: host memory.
  virtual void square_sums(std::span<const BlockTree> trees, double* sums) = 0;
  /// Waits for a hash that start_state_hash() began, and returns it. To be called once.
  using PendingHash = std::function<Hash128()>;
  /// Begins state_hash() (runtime/training/state_hash.hpp) of a state in device memory, after all
  /// calls so far and concurrently with later calls; until its end nothing may write the state, and
  /// no other hash may begin. It equals the hash of a copy in host memory. The parts of the state
  /// have a multiple of kShardAlign elements. This default, for host memory, computes it at the end.
  virtual PendingHash start_state_hash(const TrainState::Side& side) {
    return [this, side] { return state_hash(side, host_threads()); };
  }
  /// Updates the elements of `runs`, in fp32; then the moments are rounded to options.moments.
  /// gradient, from_*, to_*: (total) fp32, but avg and avg_sq, which are exp_avg and exp_avg_sq, of
  /// options.moments.dtype; to_* may be from_*. rounded: null, or (total) in the precision, and
  /// receives what cast() makes of the updated parameters.
  virtual void adamw(const AdamW& options, std::span<const ParameterRun> runs,
                     const float* gradient, const float* from_params, const void* from_avg,
                     const void* from_avg_sq, float* to_params, void* to_avg, void* to_avg_sq,
                     void* rounded) = 0;

  /// to[i] = from[i] + weight * (params[i] - from[i]), with each of the three operations rounded to
  /// fp32: the exponential moving average of the parameters, with weight = 1 - decay. The same bits
  /// on every backend. params, from, to: (count) fp32; to may be from.
  virtual void average(float weight, size_t count, const float* params, const float* from,
                       float* to) = 0;

  // --- Muon (struct Muon above) ---
  /// Updates the momentum of `runs`; their gradient becomes what is to be orthogonalized, which no
  /// rounding of the momentum changes. gradient: (total) fp32; from_avg, to_avg: (total), as in
  /// adamw(); to_avg may be from_avg.
  virtual void muon_momentum(const Muon& options, std::span<const ParameterRun> runs,
                             float* gradient, const void* from_avg, void* to_avg) = 0;
  /// The matrix becomes nearly the orthogonal matrix nearest to it: five Newton-Schulz steps, which
  /// bring every singular value near 1. matrix: (rows, columns) in `precision`, one of a block.
  virtual void orthogonalize(int64_t rows, int64_t columns, void* matrix) = 0;
  /// Updates the parameters of `runs` and copies their exp_avg_sq. update: (total) in `precision`,
  /// orthogonalized; the others as in adamw().
  virtual void muon_update(const Muon& options, std::span<const ParameterRun> runs,
                           const void* update, const float* from_params, const void* from_avg_sq,
                           float* to_params, void* to_avg_sq) = 0;

  // --- Traces of the device's kernels and copies, of all its queues ---
  /// Begins to record them, unless it was begun already. unavailable, also where there are none.
  virtual Status start_kernel_trace() { return Status(Code::unavailable, "no GPU, no kernels"); }
  /// Waits for the device, ends the recording and writes it as a Chrome trace. not_found: nothing is
  /// recorded; io.
  virtual Status write_kernel_trace(const std::string& /*file*/) {
    return Status(Code::not_found, "");
  }
};

Result<std::unique_ptr<Backend>> make_cpu_backend(const BackendOptions& options);
/// Loads the CUDA library beside the program. unavailable, with the reason, if there is no usable
/// GPU or driver.
Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendOptions& options);
/// Only loads that library, which takes seconds, without touching a GPU.
Status load_cuda_backend();
/// Makes this process's context on a GPU and loads cuBLASLt there, so that a backend that is made
/// there later does not wait for them. They take device memory. unavailable, with the reason.
Status hold_cuda_context(int device_index);
/// Ends what hold_cuda_context() made on a GPU that this process does not use.
void drop_cuda_context(int device_index);

}  // namespace simplescale
