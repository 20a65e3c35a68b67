// The CPU backend: a Llama's units forward and backward, with MKL's matrix products and our fused
// row kernels. The compute thread makes all calls; the ThreadPool's workers touch the buffers only
// during a call.
//
// A unit's rows (tokens) are cut into chunks of kRows that stay in a core's cache from the first
// product to the last. Attention is cut by sample and key/value head. A weight's gradient is cut
// into blocks of its rows, each over all tokens.
//
//   BACKEND-1  Bits do not depend on the number of threads: the cuts depend on the shape and the
//              documents only, and one thread computes each piece.
//
// All memory is allocated at the start.
//
// Letters: N = B*T rows; C = dim; D = head_dim; F = hidden; A = heads * D; K = kv_heads * D;
// Q = A + 2K, one row of q, k and v; V = vocab.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "model/cpu/attention.hpp"
#include "model/cpu/fp8.hpp"
#include "model/cpu/gemm.hpp"
#include "model/cpu/kernels.hpp"
#include "model/cpu/memory.hpp"
#include "model/cpu/thread_pool.hpp"
#include "model/llama_backend.hpp"
#include "model/router.hpp"
#include "model/tokens.hpp"

namespace simplescale::cpu {

template <class T>
class CpuBackend final : public LlamaBackend {
 public:
  /// options are valid.
  explicit CpuBackend(const BackendOptions& options);

  Result<void*> allocate(size_t bytes) override { return memory_.allocate(bytes); }
  bool host_memory() const override { return true; }
  void copy_to_device(void* device, const void* host, size_t bytes) override;
  void copy_to_host(void* host, const void* device, size_t bytes) override;
  void synchronize() override {}
  void parallel(size_t tasks, const std::function<void(size_t)>& body) override {
    pool_.run(static_cast<int64_t>(tasks),
              [&](int64_t task, int) { body(static_cast<size_t>(task)); });
  }

  void embed(int frame, const void* params, const int32_t* tokens) override;
  void forward_block(int frame, int layer, const void* params) override;
  void head(int frame, const void* params, const void* tied, float scale, void* grad,
            void* tied_grad) override;
  std::span<const float> losses(int frame) override {
    return {frames_[static_cast<size_t>(frame)].losses, static_cast<size_t>(N_)};
  }
  void backward_block(int frame, int layer, const void* params, void* grad) override;
  void forward_experts(int frame, int layer, const void* params) override;
  void backward_experts(int frame, int layer, const void* block, const void* params,
                        void* grad) override;
  std::span<const int64_t> router_counts(int frame) override {
    return frames_[static_cast<size_t>(frame)].router_counts;
  }
  void send_tokens(int frame, int layer, const TokenRows& rows, std::span<int32_t> sent) override;
  void send_gradients(int frame, int layer, const void* block, const TokenRows& rows) override;
  void forward_rows(std::span<const int32_t> tokens, const void* params, const TokenRows& rows,
                    const TokenRows& to) override;
  void backward_rows(std::span<const int32_t> tokens, const void* params, const TokenRows& rows,
                     void* grad, const TokenRows& to) override;
  void combine_tokens(int frame, int layer, const TokenRows& rows) override;
  void combine_gradients(int frame, int layer, const TokenRows& rows) override;
  void backward_embed(int frame, void* grad) override;
  void logits(int frame, const void* params, const void* tied, float* logits) override;

  void cast(const float* from, void* to, size_t count) override;
  void accumulate(const float* from, float* to, size_t count) override;
  void start_squares(const float* values, size_t first, size_t count, size_t total) override;
  void square_sums(std::span<const BlockTree> trees, double* sums) override;
  void adamw(const AdamW& options, std::span<const ParameterRun> runs, const float* gradient,
             const float* from_params, const void* from_avg, const void* from_avg_sq,
             float* to_params, void* to_avg, void* to_avg_sq, void* rounded) override;
  void average(float weight, size_t count, const float* params, const float* from,
               float* to) override;

  void copy(void* to, const void* from, size_t bytes) override;
  void zero(void* data, size_t bytes) override;
  void muon_momentum(const Muon& options, std::span<const ParameterRun> runs, float* gradient,
                     const void* from_avg, void* to_avg) override;
  void orthogonalize(int64_t rows, int64_t columns, void* matrix) override;
  void muon_update(const Muon& options, std::span<const ParameterRun> runs, const void* update,
                   const float* from_params, const void* from_avg_sq, float* to_params,
                   void* to_avg_sq) override;

 private:
  static constexpr int64_t kRows = arithmetic::kRows;          // rows per chunk in the blocks
  static constexpr int64_t kHeadRows = arithmetic::kHeadRows;  // rows per chunk in the head
  static constexpr int64_t kWeightRows = arithmetic::kWeightRows;
  static constexpr int64_t kWeightTokens = arithmetic::kWeightTokens;
  static constexpr int64_t kLogitBytes = arithmetic::kLogitBytes;
  static constexpr int64_t kExpertRows = arithmetic::kExpertRows;

  /// Rows of experts, expert by expert. An expert has its tokens in their order, then padding up to a
  /// multiple of kExpertRows. R: the most rows that there can be.
  struct ExpertRows {
    int32_t* token = nullptr;    // (R): of a row; -1: padding
    float* weight = nullptr;     // (R): its token's weight of the expert; 0 in padding
    std::vector<int64_t> first;  // (experts + 1): each expert's first row
    std::vector<int64_t> count;  // (experts): its tokens
    /// Sets first and clears the rows.
    void begin(int64_t multiple);
  };
  /// The rows of a micro-batch's tokens in one block. Resident experts: without padding, and `token` has the
  /// tokens that are sent to each trainer, from its first row on; -1: no more.
  struct Dispatch : ExpertRows {
    int32_t* place = nullptr;         // (N, k): the row of each token's j-th expert
    int32_t* sent = nullptr;          // (N k), resident experts: of each row, its token among those
    std::vector<int32_t> count_sent;  // (trainers): the tokens sent
    std::vector<int64_t> close;       // (chunks): close choices
  };
  /// What the forward pass of one block keeps for its backward pass.
  struct Saved {
    T* qkv = nullptr;       // (N, Q), q and k rotated
    T* attended = nullptr;  // (N, A)
    float* lse = nullptr;   // (B, heads, T), log-sum-exp of the scores
    T* middle = nullptr;    // (N, C), the residual stream between attention and MLP
    T* gate_up = nullptr;   // (N, 2F)
    // Inputs of norms that only some shapes have:
    T* qk = nullptr;                                 // (N, A + K), q and k before their norms
    T *attention_out = nullptr, *mlp_out = nullptr;  // (N, C), with norms after the branches
    // Of a block with experts:
    Routing routing;          // of all N tokens
    float* logits = nullptr;  // (N, experts): of the router
    Dispatch dispatch;
    T* expert_gate_up = nullptr;  // (R, 2 expert_hidden); null: expert_gate_up_
  };
  /// One of the micro-batches that are under way.
  struct Frame {
    int32_t *inputs = nullptr, *targets = nullptr;  // (N)
    Documents documents;
    std::vector<T*> x;  // the residual stream before each block and after the last, (N, C) each
    std::vector<Saved> saved;  // per layer, or one
    T* d_out = nullptr;        // gradient of the residual stream after the unit, (N, C)
    float* losses = nullptr;   // (N)
    float router_scale = 1;    // of the gradient of the routers' losses, by the tokens
    // With experts, of the layer whose pass is under way:
    T* expert_in = nullptr;        // (N, C): what router and experts read
    T* d_router = nullptr;         // (N, experts): gradient of the router's logits
    float* d_expert_in = nullptr;  // (N, C): the experts' part of the gradient of expert_in
    std::vector<int64_t> router_counts;
  };
  /// A block's matrices as right factors of the products of one pass.
  struct Factors {
    Weight<T> qkv, o, gate_up, down;
  };
  /// One worker's buffers for a chunk.
  struct Workspace {
    float* wide = nullptr;      // the largest product of any stage
    float* narrow = nullptr;    // (kRows, C) or (kRows, A), whichever is larger
    T* normed = nullptr;        // (kRows, C)
    T* act = nullptr;           // (kRows, F)
    T* rounded = nullptr;       // factors in fp8: the left one of multiply(), both of a gradient
    void* attention = nullptr;  // attention_scratch_bytes()
  };
  /// grad (out, in) = dy^T x over `rows` tokens.
  struct WeightGradient {
    int64_t rows, out, in;
    const T* dy;  // (rows, out), rows ld_dy apart
    int64_t ld_dy;
    const T* x;  // (rows, in)
    T* grad;     // (out, in)
    bool fp8 = false;
    int64_t pieces() const { return (out + kWeightRows - 1) / kWeightRows; }
    /// Rows of `grad` in each piece but the last: equal shares, rounded up to a multiple of 32.
    int64_t piece_rows() const { return ((out + pieces() - 1) / pieces() + 31) / 32 * 32; }
  };
  struct Chunk {
    int64_t first, rows;
  };

  Status allocate_buffers() override;
  /// Resident experts: this trainer's; else all.
  int64_t own_experts() const { return shape_.experts.count / options_.expert_shards; }
  bool resident() const { return options_.expert_shards > 1; }
  /// R of own_experts(): whatever N tokens choose.
  int64_t expert_rows() const;
  void take_expert_buffers();
  /// What a layer with experts keeps. own_rows: also expert_gate_up, which other layers share if not.
  void take_routing(Saved& s, bool own_rows);
  /// Rows c: the tokens' choice, from expert_in.
  void choose_experts(const BlockParameters<const T>& p, Saved& s, Chunk c, Workspace& w);
  /// Sorts the tokens by their experts.
  void dispatch(int layer, Saved& s);
  /// Calls body(expert, first row, workspace) for blocks of kExpertRows rows, in parallel.
  template <class Body>
  void for_expert_rows(const ExpertRows& d, Body body);
  /// to = rows of x by their tokens, zero in padding. to: (rows, C).
  void gather_rows(const ExpertRows& d, int64_t first, int64_t rows, const T* x, T* to) const;
  /// Of resident experts: a micro-batch's tokens that are sent, and what is returned for own_rows_.
  void copy_tokens(const Dispatch& d, const T* x, void* to);
  void return_rows(void* to, float* d_weight);
  /// own_rows_: those of a trainer's micro-batch.
  void receive_rows(std::span<const int32_t> tokens, const TokenRows& rows, bool backward);
  /// expert_rows_out_ = what experts return for rows of x. params: of the rows' experts.
  void pass_rows(const ExpertRows& d, const T* x, const T* params, T* gate_up);
  /// expert_rows_out_ and d_weight_ = gradients of x and of the weights; grad = those of the experts.
  /// kept: gate_up is from pass_rows(); else it is computed.
  void pass_rows_backward(const ExpertRows& d, const T* x, const T* d_out, const T* params,
                          T* gate_up, bool kept, T* grad);
  /// Adds to the block's output. rows: of the Dispatch.
  void add_rows(int layer, const Saved& s, const T* rows);
  /// What the rows' gradients make of the router's and of expert_in's. d_weight: of each row.
  void add_row_gradients(const Saved& s, const T* rows, const float* d_weight);
  /// Computes expert_in again.
  void restore_experts(int layer, const T* block);
  void take_frame(Frame& frame);
  void take_packed();

  /// Divides the elements of a matrix by their norm.
  void normalize(int64_t count, T* matrix);
  /// Calls body(first, rows, columns) for blocks of rows of a symmetric matrix of `side` rows, in
  /// parallel; a block ends with the diagonal.
  template <class Body>
  void for_lower_blocks(int64_t side, Body body);
  /// Completes a symmetric matrix of which the lower half is given.
  void mirror(int64_t side, T* matrix);

  /// Before the backward pass: computes what the layers share and another one has overwritten.
  void restore(int layer, const T* params);
  /// recompute: computes only what the backward pass needs, not the block's output.
  void forward(int layer, const T* params, bool recompute);
  void project_qkv(const BlockParameters<const T>& p, const Factors& f, const T* x, const Saved& s,
                   Chunk c, Workspace& w);
  void output_and_mlp(const BlockParameters<const T>& p, const Factors& f, const T* x, Saved& s,
                      T* next, Chunk c, Workspace& w);
  void backward_mlp(const BlockParameters<const T>& p, const Factors& f, const Saved& s, Chunk c,
                    Workspace& w);
  void backward_qkv(const BlockParameters<const T>& p, const Factors& f, const T* x, const Saved& s,
                    Chunk c, Workspace& w);
  /// d = the gradient of norm(x) to that of x, for a norm after attention or MLP. dy, x, d:
  /// (c.rows, C); dgamma: (C).
  void backward_post_norm(Chunk c, const T* dy, const T* x, const T* gamma, T* d, float* dgamma,
                          Workspace& w);
  /// The present call works on this frame. Weights that are packed stay so for the same pass of a
  /// unit in the next frame.
  enum class Pass : unsigned char { other, head, forward, backward };
  void use(int frame, Pass pass = Pass::other, int layer = 0);
  /// The right factors of x W^T (transpose yes, forward) or of dy W (no, backward), packed.
  Factors factors(const BlockParameters<const T>& p, Transpose transpose);
  Weight<T> weight(const T* data, int64_t out, int64_t in, Transpose transpose, int slot) const;
  /// As weight(), of a block's matrix, which is rounded with options_.fp8.
  Weight<T> factor(const T* data, int64_t out, int64_t in, Transpose transpose, int slot);
  /// to = x f of a block, with x rounded to `format` with options_.fp8. x: (rows, f.k); to:
  /// (rows, f.n).
  void multiply(int64_t rows, const T* x, Fp8 format, const Weight<T>& f, float* to, Workspace& w);
  /// Packs those that are not packed yet, whose slots are 0, 1, ...
  void pack_all(std::span<const Weight<T>> weights);
  /// Calls body(shape, view, position, worker) for each document and key/value head, in parallel.
  /// position: of the document's first token in its sample.
  template <class Body>
  void for_attention(const Saved& s, Body body);
  /// Calls body(first, rows, position) for the rows of a chunk, in parts whose positions follow each
  /// other; position: of the first one, plus a multiple of T.
  template <class Body>
  void for_positions(Chunk c, Body body) const;
  void weight_gradients(std::span<const WeightGradient> gradients, bool first, bool last,
                        float* sums);
  void vector_gradient(const float* partial, int64_t chunks, int64_t width, T* grad);

  T* x(int layer) const { return frame_->x[static_cast<size_t>(layer) % frame_->x.size()]; }
  Saved& saved(int layer) {
    return frame_->saved[static_cast<size_t>(layer) % frame_->saved.size()];
  }
  /// Where to write an fp32 product whose result belongs in `to`: to `to` itself if T is float,
  /// else to `scratch`, to be rounded afterwards.
  static float* direct(T* to, float* scratch);
  /// Calls body(chunk, workspace) for chunks of chunk_rows of [0, rows), in parallel.
  template <class Body>
  void for_chunks(int64_t rows, int64_t chunk_rows, Body body);

  const Kernels<T>& kernel_ = kernels<T>();
  const ShardKernels& shard_kernel_ = shard_kernels();
  const AttentionShape attention_;
  ThreadPool pool_;
  Memory memory_;
  std::vector<Workspace> workspaces_;  // per worker

  // Muon, with S = muon_side(): A and b A + c A^2, (S, S) each; a product of two (S, S), which for
  // fp32 is in one of these; and a product of the size of the largest matrix.
  T *gram_ = nullptr, *polynomial_ = nullptr;
  float *square_ = nullptr, *muon_product_ = nullptr;

  // Memory for packed weights by orientation and slot, and what it holds. Both orientations may share
  // it. null: the slot's weights are not packed.
  struct Packed {
    float* memory = nullptr;
    const T* holds = nullptr;
  };
  Packed packed_[2][4];
  std::pair<Pass, int> pass_ = {};   // the present call's pass, and its layer
  T* rounded_[4] = {};               // with options_.fp8: a block's matrices, rounded, by slot
  std::vector<double> square_sums_;  // of blocks, for square_sums()
  std::vector<Frame> frames_;
  Frame* frame_ = nullptr;  // that of the present call
  // The frame and the layer whose activations the shared buffers hold; null: none.
  std::pair<const Frame*, int> held_ = {};
  // Gradients of the residual stream, (N, C): in mid-block, before the unit.
  T *d_middle_ = nullptr, *d_in_ = nullptr;
  // (N, C): the inputs of attention and MLP; with norms after them, the gradients of their outputs.
  T *normed1_ = nullptr, *normed2_ = nullptr;
  T* d_attended_ = nullptr;                                              // (N, A)
  T *d_qkv_ = nullptr, *act_ = nullptr, *d_gate_up_ = nullptr;           // (N, Q), (N, F), (N, 2F)
  float *d_gamma1_ = nullptr, *d_gamma2_ = nullptr;                      // (chunks, C)
  float *d_bias_ = nullptr, *d_q_norm_ = nullptr, *d_k_norm_ = nullptr;  // (chunks, their widths)
  // Rows of experts: what they read and return or its gradient, the gradient of what they return, their
  // SwiGLU and the gradient before it. (R, C), (R, C), (R, C), (R, expert_hidden) and twice as wide.
  T *expert_rows_in_ = nullptr, *expert_rows_out_ = nullptr, *d_expert_out_ = nullptr;
  T *expert_act_ = nullptr, *d_expert_gate_up_ = nullptr;
  T* expert_gate_up_ = nullptr;  // (R, 2 expert_hidden), if layers do not have their own
  float* d_weight_ = nullptr;    // (R): the gradients of ExpertRows::weight
  ExpertRows own_rows_;          // of resident experts, in the present call
  int64_t kept_rows_ = 0;        // rows of d logits that are kept at a time
  T* d_logits_ = nullptr;        // (kept_rows_, V)
  float* head_sums_ = nullptr;   // (V, C), if bf16 and not all rows are kept
  int32_t *token_begin_ = nullptr, *token_rows_ = nullptr;  // (V + 1), (N): the rows of each token
};

// --- What several files use ---

constexpr int64_t kElements = 1 << 16;  // elements per task of element-wise work

/// body(first, count) for pieces of [0, count), in parallel.
template <class Body>
void for_elements(ThreadPool& pool, int64_t count, Body body) {
  pool.run((count + kElements - 1) / kElements, [&](int64_t task, int) {
    const int64_t first = task * kElements;
    body(first, std::min(kElements, count - first));
  });
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
