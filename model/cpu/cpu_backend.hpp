// The CPU backend: a Llama's units forward and backward by MKL's products and our fused row
// kernels. Called by the one compute thread; its ThreadPool's workers touch the buffers only inside
// a call.
//
// How it goes: a unit's rows (tokens) are cut in chunks of kRows that stay in a core's cache from
// the first product to the last; attention goes by sample and key/value head; a weight's gradient
// by blocks of its rows over all tokens. What is cut depends on the shape alone and every piece is
// computed by one thread, so bits do not depend on the number of threads (BACKEND-1). All memory is taken
// at the start.
//
// Letters: N = B*T rows; C = dim; F = hidden; K = kv_heads * head_dim; Q = C + 2K, one row of q, k
// and v.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/backend.hpp"
#include "model/cpu/attention.hpp"
#include "model/cpu/gemm.hpp"
#include "model/cpu/kernels.hpp"
#include "model/cpu/memory.hpp"
#include "model/cpu/thread_pool.hpp"

namespace simplescale::cpu {

template <class T>
class CpuBackend final : public Backend {
 public:
  /// options are valid.
  static Result<std::unique_ptr<Backend>> make(const BackendOptions& options);

  Result<void*> allocate(size_t bytes) override { return memory_.allocate(bytes); }
  bool host_memory() const override { return true; }
  void copy_to_device(void* device, const void* host, size_t bytes) override;
  void copy_to_host(void* host, const void* device, size_t bytes) override;
  void synchronize() override {}
  void parallel(size_t tasks, const std::function<void(size_t)>& body) override {
    pool_.run(static_cast<int64_t>(tasks),
              [&](int64_t task, int) { body(static_cast<size_t>(task)); });
  }

  void embed(const void* params, const int32_t* tokens) override;
  void forward_block(int layer, const void* params) override;
  double head(const void* params, const void* tied, float scale, void* grad,
              void* tied_grad) override;
  void backward_block(int layer, const void* params, void* grad) override;
  void backward_embed(void* grad, bool accumulate) override;
  void logits(const void* params, const void* tied, float* logits) override;

  void cast(const float* from, void* to, size_t count) override;
  void block_square_sums(const float* values, size_t count, double* sums) override;
  void adamw(const AdamW& options, std::span<const DecayRun> runs, const float* gradient,
             const float* from_params, const float* from_avg, const float* from_avg_sq,
             float* to_params, float* to_avg, float* to_avg_sq) override;

 private:
  static constexpr int64_t kRows = 256;          // rows of a chunk in the blocks
  static constexpr int64_t kHeadRows = 128;      // rows of a chunk in the head
  static constexpr int64_t kWeightRows = 512;    // of a weight's gradient in one task, at most
  static constexpr int64_t kWeightTokens = 512;  // added to a weight's gradient at a time
  static constexpr int64_t kLogitBytes = int64_t{64} << 20;  // d logits that are kept at a time

  /// What the forward pass of one block leaves for its backward pass.
  struct Saved {
    T* qkv = nullptr;       // (N, Q), q and k rotated
    T* attended = nullptr;  // (N, C)
    float* lse = nullptr;   // (B, heads, T)
    T* middle = nullptr;    // (N, C), the residual stream between attention and MLP
    T* gate_up = nullptr;   // (N, 2F)
  };
  /// A block's parameters, or their gradients, in their flat unit.
  template <class E>
  struct Block {
    Block(E* unit, const CpuBackend& b);
    E *norm1, *qkv, *o, *norm2, *gate_up, *down;
  };
  /// The matrices of a block, or of the head (the first one), as right factors of one pass.
  struct Factors {
    Weight<T> qkv, o, gate_up, down;
  };
  /// What one worker needs for a chunk.
  struct Workspace {
    float* wide = nullptr;    // the widest product of any stage
    float* narrow = nullptr;  // (kRows, C)
    T* normed = nullptr;      // (kRows, C)
    T* act = nullptr;         // (kRows, F)
    void* attention = nullptr;
  };
  /// grad (out, in) = dy^T x over `rows` tokens.
  struct WeightGradient {
    int64_t out, in;
    const T* dy;  // (rows, out), strided by ld_dy
    int64_t ld_dy;
    const T* x;  // (rows, in)
    T* grad;
    int64_t pieces() const { return (out + kWeightRows - 1) / kWeightRows; }
    /// Rows of `grad` in each piece but the last: about equal, whole vectors.
    int64_t piece_rows() const { return ((out + pieces() - 1) / pieces() + 31) / 32 * 32; }
  };
  struct Chunk {
    int64_t first, rows;
  };

  explicit CpuBackend(const BackendOptions& options);
  Status allocate_all();
  template <class E>
  E* take(int64_t count);
  void take_packed();
  void fill_rope_tables();

  /// recompute: only what backward needs again.
  void forward(int layer, const T* params, bool recompute);
  void rms_norm_and_qkv(const Block<const T>& p, const Factors& f, const T* x, const Saved& s,
                        Chunk c, Workspace& w);
  void output_and_mlp(const Block<const T>& p, const Factors& f, const T* x, const Saved& s,
                      T* next, Chunk c, Workspace& w);
  void backward_mlp(const Block<const T>& p, const Factors& f, const Saved& s, Chunk c,
                    Workspace& w);
  /// x W^T of a forward pass, or dy W of a backward pass, packed into packed_.
  Factors factors(const Block<const T>& p, Transpose transpose);
  Weight<T> weight(const T* data, int64_t out, int64_t in, Transpose transpose, int slot) const;
  void pack_all(std::span<const Weight<T>> weights);
  AttentionView<T> attention_view(const Saved& s, int64_t task) const;
  void weight_gradients(int64_t rows, std::span<const WeightGradient> gradients, bool first,
                        bool last, float* sums);
  void gamma_gradient(const float* partial, int64_t chunks, T* grad);
  void group_tokens();

  T* x(int layer) const { return x_[static_cast<size_t>(layer) % x_.size()]; }
  Saved& saved(int layer) { return saved_[static_cast<size_t>(layer) % saved_.size()]; }
  /// Where a product for `to` is written: there in fp32, else to scratch, to be rounded.
  static float* direct(T* to, float* scratch);
  template <class Body>
  void for_chunks(int64_t rows, int64_t chunk_rows, Body body);

  const BackendOptions options_;
  const ModelShape& shape_ = options_.shape;
  const int64_t B_, T_, N_, C_, D_, F_, K_, Q_, V_;
  const float eps_;
  const Kernels<T>& kernel_ = kernels<T>();
  const ShardKernels& shard_kernel_ = shard_kernels();
  const AttentionShape attention_;
  ThreadPool pool_;
  Memory memory_;
  Status allocated_;
  std::vector<Workspace> workspaces_;  // per worker

  float* packed_[4] = {};                      // where weights are packed, null where they are not
  float *cosine_ = nullptr, *sine_ = nullptr;  // (T, D/2)
  int32_t *inputs_ = nullptr, *targets_ = nullptr;  // (N)
  std::vector<T*> x_;  // the residual stream before each block and after the last, (N, C) each
  std::vector<Saved> saved_;  // per layer, or one
  int held_layer_ = -1;       // whose activations the only Saved holds
  // Gradients of the residual stream: after the unit, in the middle of the block, before it. (N, C)
  T *d_out_ = nullptr, *d_middle_ = nullptr, *d_in_ = nullptr;
  T *normed1_ = nullptr, *normed2_ = nullptr, *d_attended_ = nullptr;  // (N, C)
  T *d_qkv_ = nullptr, *act_ = nullptr, *d_gate_up_ = nullptr;         // (N, Q), (N, F), (N, 2F)
  float *d_gamma1_ = nullptr, *d_gamma2_ = nullptr;                    // (chunks, C)
  int64_t kept_rows_ = 0;                                              // of d logits
  T* d_logits_ = nullptr;                                              // (kept_rows_, V)
  float* head_sums_ = nullptr;  // (V, C), if bf16 and not all rows are kept
  float* losses_ = nullptr;     // (N)
  int32_t *token_begin_ = nullptr, *token_rows_ = nullptr;  // (V + 1), (N): the rows of each token
};

// --- Small members that several files use
// --------------------------------------------------------------------------

template <class T>
template <class E>
CpuBackend<T>::Block<E>::Block(E* unit, const CpuBackend& b) {
  norm1 = unit;
  qkv = norm1 + b.C_;
  o = qkv + b.Q_ * b.C_;
  norm2 = o + b.C_ * b.C_;
  gate_up = norm2 + b.C_;
  down = gate_up + 2 * b.F_ * b.C_;
}

template <class T>
float* CpuBackend<T>::direct(T* to, float* scratch) {
  if constexpr (std::is_same_v<T, float>) {
    return to;
  } else {
    return scratch;
  }
}

template <class T>
template <class Body>
void CpuBackend<T>::for_chunks(int64_t rows, int64_t chunk_rows, Body body) {
  pool_.run((rows + chunk_rows - 1) / chunk_rows, [&](int64_t task, int worker) {
    const int64_t first = task * chunk_rows;
    body(Chunk{first, std::min(chunk_rows, rows - first)}, workspaces_[size_t(worker)]);
  });
}

}  // namespace simplescale::cpu
