// The CUDA backend: a Llama's units forward and backward by libtorch's products and attention and
// our fused kernels. Called by the one compute thread; everything runs on one stream, and only what
// returns something to the host waits for it. Copies of the state to host memory have another.
//
// Kernels use no atomics and products are cuBLAS's on one stream, so a run repeats its bits on the
// same kind of device; attention's backward pass does so if BackendOptions::deterministic. What
// lives as long as the backend is allocated at the start; attention's results are libtorch's, of
// the same sizes every time. A failed CUDA call throws CudaError and leaves the backend unusable.
//
// Letters: N = B*T rows; C = dim; F = hidden; K = kv_heads * head_dim; Q = C + 2K, one row of q, k
// and v. Structure and names are those of model/cpu.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/backend.hpp"
#include "model/cuda/aten.hpp"
#include "model/cuda/kernels.hpp"
#include "model/cuda/memory.hpp"

namespace simplescale::cuda {

/// What make_cuda_backend() calls in the CUDA library. unavailable: no driver or no such device.
Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options);

template <class T>
class CudaBackend final : public Backend {
 public:
  /// options are valid and the device is current.
  static Result<std::unique_ptr<Backend>> make(const BackendOptions& options);
  ~CudaBackend() override;

  Result<void*> allocate(size_t bytes) override;
  bool host_memory() const override { return false; }
  void copy_to_device(void* device, const void* host, size_t bytes) override;
  void copy_to_host(void* host, const void* device, size_t bytes) override;
  void synchronize() override;
  void* stream() const override { return stream_; }
  void pin_host(void* host, size_t bytes) override { copies_.pin(host, bytes); }
  void unpin_host(void* host) override { copies_.unpin(host); }
  void start_copy(void* host, const void* device, size_t bytes) override {
    copies_.start(stream_, host, device, bytes);
  }
  void finish_copies() override { copies_.finish(); }
  void parallel(size_t tasks, const std::function<void(size_t)>& body) override;

  void embed(const void* params, const int32_t* tokens) override;
  void forward_block(int layer, const void* params) override;
  double head(const void* params, const void* tied, float scale, void* grad,
              void* tied_grad) override;
  void backward_block(int layer, const void* params, void* grad) override;
  void backward_embed(void* grad, bool accumulate) override;
  void logits(const void* params, const void* tied, float* logits) override;

  void cast(const float* from, void* to, size_t count) override;
  void block_square_sums(const float* values, size_t count, double* sums) override;
  Hash128 state_hash(const float* params, const float* avg, const float* avg_sq,
                     size_t total) override;
  void adamw(const AdamW& options, std::span<const DecayRun> runs, const float* gradient,
             const float* from_params, const float* from_avg, const float* from_avg_sq,
             float* to_params, float* to_avg, float* to_avg_sq) override;

 private:
  static constexpr int64_t kLogitBytes = int64_t{2} << 30;  // logits that are kept at a time

  /// What the forward pass of one block leaves for its backward pass.
  struct Saved {
    T* qkv = nullptr;         // (N, Q), q and k rotated
    Aten::SavedPtr attended;  // (N, C) and what attention's backward pass needs
    T* middle = nullptr;      // (N, C), the residual stream between attention and MLP
    T* gate_up = nullptr;     // (N, 2F)
  };
  /// A block's parameters, or their gradients, in their flat unit.
  template <class E>
  struct Block {
    Block(E* unit, const CudaBackend& b);
    E *norm1, *qkv, *o, *norm2, *gate_up, *down;
  };

  explicit CudaBackend(const BackendOptions& options);
  Status allocate_all();
  template <class E>
  E* take(int64_t count);
  void fill_rope_tables();

  /// recompute: only what backward needs again.
  void forward(int layer, const T* params, bool recompute);
  /// grad (out, in) = dy^T x over `rows` tokens.
  void weight_gradient(int64_t rows, int64_t out, int64_t in, const T* dy, const T* x, T* grad,
                       bool accumulate = false);
  /// dx = the gradient through RMSNorm + residual; normed_ = its output again; grad: gamma's.
  void norm_backward(const T* x, const T* gamma, const T* dy, const T* residual, T* dx, T* grad);
  void upload(void* device, const void* pinned, size_t bytes);
  /// Device memory for results that are fetched at once; throws CudaError without any.
  void* results(size_t bytes);

  T* x(int layer) const { return x_[static_cast<size_t>(layer) % x_.size()]; }
  Saved& saved(int layer) { return saved_[static_cast<size_t>(layer) % saved_.size()]; }

  const BackendOptions options_;
  const ModelShape& shape_ = options_.shape;
  const int64_t B_, T_, N_, C_, D_, F_, K_, Q_, V_;
  const float eps_;
  Aten aten_;
  const cudaStream_t stream_;
  DeviceMemory memory_;
  Status allocated_;
  PinnedBuffer pinned_tokens_, pinned_results_;
  HostCopies copies_;
  cudaEvent_t tokens_read_ = nullptr;  // pinned_tokens_ may be written again

  float *cosine_ = nullptr, *sine_ = nullptr;  // (T, D/2)
  int32_t* tokens_ = nullptr;                  // the next four, one after the other
  int32_t *inputs_ = nullptr, *targets_ = nullptr, *token_begin_ = nullptr,
          *token_rows_ = nullptr;  // (N), (N), (V + 1), (N): the rows of each token
  std::vector<T*> x_;  // the residual stream before each block and after the last, (N, C) each
  std::vector<Saved> saved_;                  // per layer, or one
  int held_layer_ = -1;                       // whose activations the only Saved holds
  T *normed_ = nullptr, *product_ = nullptr;  // (N, C)
  T* act_ = nullptr;                          // (N, F)
  // Gradients of the residual stream: after the unit, in the middle of the block, before it. (N, C)
  T *d_out_ = nullptr, *d_middle_ = nullptr, *d_in_ = nullptr;
  T *d_qkv_ = nullptr, *d_gate_up_ = nullptr;  // (N, Q), (N, 2F)
  float* d_gamma_ = nullptr;                   // (gamma_partials(N), C)
  int64_t kept_rows_ = 0;                      // of logits
  T* logits_ = nullptr;                        // (kept_rows_, V)
  float* losses_ = nullptr;                    // (N)
  void* results_ = nullptr;
  size_t results_bytes_ = 0;
};

template <class T>
template <class E>
CudaBackend<T>::Block<E>::Block(E* unit, const CudaBackend& b) {
  norm1 = unit;
  qkv = norm1 + b.C_;
  o = qkv + b.Q_ * b.C_;
  norm2 = o + b.C_ * b.C_;
  gate_up = norm2 + b.C_;
  down = gate_up + 2 * b.F_ * b.C_;
}

}  // namespace simplescale::cuda
