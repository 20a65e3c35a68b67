// What a device must do for the training engine: unit by unit forward and backward, and the
// element-wise work on a shard.
//
// The engine (model/engine) knows shards, collectives and the order of things; a Backend knows
// mathematics and memory. The CPU backend is in model/cpu (libtorch's kernels and ours), the CUDA
// backend in model/cuda (its own library, loaded only where a GPU is used). All calls come from the
// one compute thread. Pointers are device pointers of that backend.
//
// Letters: B samples a micro-batch, T = block_size, C = dim, V = vocab, M leaves (micro-batches) a
// step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/dtype.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/model_shape.hpp"
#include "runtime/training/state_hash.hpp"

namespace simplescale {

struct BackendOptions {
  ModelShape shape;
  int micro_batch_size = 1;  // B
  // Of products, activations, residual stream, unit parameters and gradients.
  DType precision = DType::f32;
  // Keep only each block's input and compute the block again in backward.
  bool activation_checkpointing = false;
  bool training = true;  // false: no activations are kept, backward calls are forbidden
  int threads = 1;       // CPU threads of the kernels; results do not depend on it
  int device_index = 0;  // CUDA
  // CUDA: attention's backward repeats its bits; elsewhere all always does.
  bool deterministic = true;
};

/// AdamW, arXiv 1711.05101: p -= lr * (m^ / (sqrt(v^) + eps) + weight_decay * p), with
/// bias-corrected m^ and v^.
struct AdamW {
  float learning_rate, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  float gradient_scale = 1;  // clipping: min(1, max_norm / (norm + 1e-6))
  uint64_t step = 1;         // 1 for the first update
};

/// A run of elements of a shard with one kind of decay.
struct DecayRun {
  size_t first, count;
  bool decay;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // --- Memory ---
  /// Zeroed, 64-byte aligned device memory for the life of the backend. Null is never returned; an
  /// error names the size.
  virtual Result<void*> allocate(size_t bytes) = 0;
  /// True if host memory (shared memory of collectives and of the state) can be used as device
  /// memory.
  virtual bool host_memory() const = 0;
  virtual void copy_to_device(void* device, const void* host, size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, size_t bytes) = 0;
  /// Waits until all that was asked for is done and visible to the host and to peers.
  virtual void synchronize() = 0;
  /// The device's queue of work, a cudaStream_t: collectives that follow it (Collective::follow)
  /// need no synchronize() before they start. Null: they do.
  virtual void* stream() const { return nullptr; }

  // --- Copies beside the computation: of the state, to the node's shared memory ---
  /// Host memory that start_copy() will write, until unpin_host(): the device then reaches it
  /// without a detour. May be refused; copies are then as right, and not beside anything.
  virtual void pin_host(void* /*host*/, size_t /*bytes*/) {}
  /// Only after finish_copies().
  virtual void unpin_host(void* /*host*/) {}
  /// Copies what `device` holds once all that was asked for so far is done, while what is asked for
  /// from now on goes on. Nothing may write `device`, and nobody use `host`, until finish_copies().
  virtual void start_copy(void* host, const void* device, size_t bytes) {
    copy_to_host(host, device, bytes);
  }
  /// Waits until all that start_copy() began is whole in host memory.
  virtual void finish_copies() {}

  // --- Host threads ---
  /// Runs body(task) for each task in [0, tasks) on the backend's host threads; returns when all
  /// are done. For work on host memory: one thread here, the kernels' where there are some.
  virtual void parallel(size_t tasks, const std::function<void(size_t)>& body) {
    for (size_t task = 0; task < tasks; ++task) body(task);
  }

  // --- Forward and backward of one micro-batch, unit by unit, in this order ---
  // params: the unit's flat parameters in `precision`; grad: the same layout, `precision`,
  // overwritten (not added to). The residual stream (B*T, C) and what backward needs live inside
  // the backend.
  /// tokens: (B, T + 1) int32 host memory, row-wise; columns 0..T-1 are inputs, 1..T targets.
  /// Begins a micro-batch.
  virtual void embed(const void* params, const int32_t* tokens) = 0;
  virtual void forward_block(int layer, const void* params) = 0;
  /// Final norm, lm_head, cross-entropy. Returns the mean loss in nats over B*T tokens. If grad is
  /// not null, also does the backward of this unit with d loss scaled by `scale` (1/M): fills grad
  /// and the residual stream's gradient. tied: the embedding matrix (V, C) when embeddings are
  /// tied, else null; tied_grad likewise: receives lm_head's gradient, which backward_embed() then
  /// adds to.
  virtual double head(const void* params, const void* tied, float scale, void* grad,
                      void* tied_grad) = 0;
  virtual void backward_block(int layer, const void* params, void* grad) = 0;
  /// accumulate: grad already holds tied_grad of head(). Ends the micro-batch.
  virtual void backward_embed(void* grad, bool accumulate) = 0;

  // --- Inference: after embed() and all forward_block() calls ---
  /// logits: (B, T, V) fp32 host memory.
  virtual void logits(const void* params, const void* tied, float* logits) = 0;

  // --- Element-wise work on a shard ---
  /// to[i] = precision(from[i]).
  virtual void cast(const float* from, void* to, size_t count) = 0;
  /// sums[b] = sum of squares, in double and in element order, of block b of kShardAlign elements.
  /// count is a multiple.
  virtual void block_square_sums(const float* values, size_t count, double* sums) = 0;
  /// state_hash() (runtime/training/state_hash.hpp) of a state in device memory: the same bits as of
  /// its copy in host memory. total is a multiple of kShardAlign. Waits for what was asked for
  /// before.
  virtual Hash128 state_hash(const float* params, const float* avg, const float* avg_sq,
                             size_t total) {
    auto values = [total](const float* from) { return std::span(const_cast<float*>(from), total); };
    return simplescale::state_hash(
        {values(params), values(avg), values(avg_sq)},
        [this](size_t tasks, const std::function<void(size_t)>& body) { parallel(tasks, body); });
  }
  /// Reads params, exp_avg, exp_avg_sq at `from*`, writes to `to*` (may be the same); gradient:
  /// fp32.
  virtual void adamw(const AdamW& options, std::span<const DecayRun> runs, const float* gradient,
                     const float* from_params, const float* from_avg, const float* from_avg_sq,
                     float* to_params, float* to_avg, float* to_avg_sq) = 0;
};

Result<std::unique_ptr<Backend>> make_cpu_backend(const BackendOptions& options);
/// Loads the CUDA library beside the program; unavailable with the reason where there is no GPU or
/// driver.
Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendOptions& options);
/// Loads that library without touching a GPU: seconds that a process can spend before it is needed.
Status load_cuda_backend();

}  // namespace simplescale
