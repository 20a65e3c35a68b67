// The CUDA backend: a Llama's units forward and backward, with cuBLASLt's products, libtorch's
// attention and our fused kernels. The compute thread makes all calls. Everything runs on one stream, and
// only functions that return something to the host wait for it. Copies of the state to host memory
// and hashes of it have streams of their own.
//
// Results are reproducible on the same kind of device, with the same algorithms of products and of
// attention (chosen_algorithms.hpp): kernels use no atomics. Attention's backward pass is reproducible only with
// BackendOptions::deterministic.
// Buffers that live as long as the backend are allocated at the start; libtorch allocates
// attention's results, with the same sizes every time. A failed CUDA call throws CudaError and
// leaves the backend unusable.
//
// Letters: N = B*T rows; C = dim; D = head_dim; F = hidden; A = heads * D; K = kv_heads * D;
// Q = A + 2K, one row of q, k and v; V = vocab. Structure and names are those of model/cpu.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "model/cuda/aten.hpp"
#include "model/cuda/chosen_algorithms.hpp"
#include "model/cuda/gemm.hpp"
#include "model/cuda/kernel_trace.hpp"
#include "model/cuda/kernels.hpp"
#include "model/cuda/memory.hpp"
#include "model/llama_backend.hpp"
#include "model/tokens.hpp"

namespace simplescale::cuda {

/// make_cuda_backend() calls this function in the CUDA library. unavailable: no driver, no such
/// device, or a device that is too old.
Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options);
/// hold_cuda_context() and drop_cuda_context() call these. Each changes the current device.
Status hold_context(int device_index);
void drop_context(int device_index);

template <class T>
class CudaBackend final : public LlamaBackend {
 public:
  /// options are valid and the device is current. Throws CudaError.
  explicit CudaBackend(const BackendOptions& options);
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
  Result<void*> host_buffer(HostUse use, size_t bytes) override;
  PendingCopy start_upload(void* device, const void* host, size_t bytes) override;
  PendingCopy start_download(void* host, const void* device, size_t bytes) override;
  void* upload_stream() const override { return copies_.upload_stream(); }
  void parallel(size_t tasks, const std::function<void(size_t)>& body) override {
    on_threads(static_cast<size_t>(options_.threads))(tasks, body);
  }

  void embed(int frame, const void* params, const int32_t* tokens) override;
  void forward_block(int frame, int layer, const void* params) override;
  void head(int frame, const void* params, const void* tied, float scale, void* grad,
            void* tied_grad) override;
  std::span<const float> losses(int frame) override;
  void backward_block(int frame, int layer, const void* params, void* grad) override;
  void backward_embed(int frame, void* grad) override;
  void logits(int frame, const void* params, const void* tied, float* logits) override;

  void cast(const float* from, void* to, size_t count) override;
  void accumulate(const float* from, float* to, size_t count) override;
  void add_leaf(const TreeSource& leaf, PartialSum& sum) override;
  void start_squares(const float* values, size_t first, size_t count, size_t total) override;
  void square_sums(std::span<const BlockTree> trees, double* sums) override;
  PendingHash start_state_hash(const TrainState::Side& side) override;
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
  Status start_kernel_trace() override { return cuda::start_kernel_trace(); }
  Status write_kernel_trace(const std::string& file) override {
    return cuda::write_kernel_trace(file);
  }

 private:
  /// What the forward pass of one block keeps for its backward pass.
  struct Saved {
    T* qkv = nullptr;         // (N, Q), q and k rotated
    Aten::SavedPtr attended;  // (N, A), and what attention's backward pass needs
    T* middle = nullptr;      // (N, C), the residual stream between attention and MLP
    T* gate_up = nullptr;     // (N, 2F), or those of one part of the MLP: see gate_up_of()
    // Inputs of norms that only some shapes have:
    T* qk = nullptr;                                 // (N, A + K), q and k before their norms
    T *attention_out = nullptr, *mlp_out = nullptr;  // (N, C), with norms after the branches
  };

  /// One of the micro-batches that are under way.
  struct Frame {
    int32_t* tokens = nullptr;  // one allocation that holds the next six
    int32_t *inputs = nullptr, *targets = nullptr, *token_begin = nullptr,
            *token_rows = nullptr;  // (N), (N), (V + 1), (N): the rows of each token
    // (N), (N + 1): the document of each row, and the first row of each document.
    int32_t *row_document = nullptr, *document_begin = nullptr;
    Documents documents;
    PinnedBuffer pinned_tokens, pinned_losses;
    cudaEvent_t tokens_read = nullptr;   // once it is reached, pinned_tokens may be written again
    cudaEvent_t losses_ready = nullptr;  // once it is reached, pinned_losses may be read
    // The residual stream before each block and after the last, (N, C) each; the newest two with
    // BackendOptions::inputs_in_host, which keeps those of all blocks but the last in `inputs_out`.
    std::vector<T*> x;
    PinnedBuffer inputs_out;
    std::vector<Saved>
        saved;           // per layer; one, or of further frames none, if blocks are recomputed
    T* d_out = nullptr;  // gradient of the residual stream after the unit, (N, C)
  };

  Status allocate_buffers() override;
  void take_frame(Frame& frame);
  // With BackendOptions::inputs_in_host; else they do nothing.
  /// After a block's forward pass: starts to copy its input to host memory, unless it is the last one.
  void keep_input(int layer);
  /// Before a block's forward pass writes its output over the input of the block before: waits until
  /// that is copied.
  void await_room_for_output(int layer);
  /// Before a block's backward pass: waits for its input, and starts to copy that of the block before.
  void fetch_inputs(int layer);
  /// In host memory, (N, C).
  T* input_out(int layer);
  bool inputs_in_host() const { return options_.training && options_.inputs_in_host; }
  void allocate_fp8();
  /// The present call works on this frame.
  void use(int frame);
  void show_documents();

  /// recompute: computes only what the backward pass needs, not the block's output.
  void forward(int layer, const T* params, bool recompute);
  /// to = x w^T. x: (rows, in); w: (out, in); to: (rows, out).
  void product(int64_t rows, int64_t out, int64_t in, const T* x, const T* w, T* to);
  /// dx = dy w. dy: (rows, out); w: (out, in); dx: (rows, in).
  void input_gradient(int64_t rows, int64_t out, int64_t in, const T* dy, const T* w, T* dx);
  /// grad = dy^T x, + grad if accumulate. dy: (rows, out), that of the last input_gradient(); x:
  /// (rows, in); grad: (out, in).
  void weight_gradient(int64_t rows, int64_t out, int64_t in, const T* dy, const T* x, T* grad,
                       bool accumulate = false);
  /// Rows of q, k and v, rotated, in s.qkv.
  void project_qkv(int layer, const BlockParameters<const T>& p, Saved& s);
  /// act_ = the MLP's hidden values of the rows [begin, begin + rows); input: of its first product,
  /// (N, C). activate: false computes gate and up only.
  void mlp_forward(const BlockParameters<const T>& p, const Saved& s, const T* input, int64_t begin,
                   int64_t rows, bool activate);
  /// Gate and up of the rows from `begin` on. If they are recomputed, all parts share memory.
  T* gate_up_of(const Saved& s, int64_t begin) const {
    return s.gate_up + (keeps_gate_up() ? begin * 2 * F_ : 0);
  }
  bool keeps_gate_up() const {
    return options_.training && options_.recompute == Recompute::nothing;
  }
  /// Calls body(begin, rows) for each part of the N rows that the MLP computes at a time.
  template <class Body>
  void for_each_mlp_part(Body body) const {
    for (int64_t begin = 0; begin < N_; begin += mlp_rows_)
      body(begin, std::min(mlp_rows_, N_ - begin));
  }
  /// From d_out_ to d_middle_ through the MLP, with the gradients of its parameters.
  void backward_mlp(const BlockParameters<const T>& p, const BlockParameters<T>& g, const Saved& s);
  /// In d_qkv_: from the gradients of normalized to those of projected queries and keys; with the
  /// gradients of the norms' weights and of the biases.
  void backward_qk_norm_and_bias(const BlockParameters<const T>& p, const BlockParameters<T>& g,
                                 const Saved& s);
  /// Before the backward pass: computes what the layers share and another one has overwritten.
  void restore(int layer, const T* params);
  /// normed_ = the norm of the residual stream before this unit. Also computes the last sum of the
  /// block before it, if that block left it out: one pass over memory instead of two.
  void norm_of_input(int unit, const T* gamma);
  /// dx = the gradient through RMSNorm + residual. x, dy, residual, dx: (N, C); gamma and its
  /// gradient grad: (C). Also writes normed_ = rms_norm(x).
  void norm_backward(const T* x, const T* gamma, const T* dy, const T* residual, T* dx, T* grad);
  /// Copies to the device without waiting; pinned must not change until the stream has read it.
  void upload(void* device, const void* pinned, size_t bytes);
  /// Device memory for intermediate results of one call. Throws CudaError if there is none.
  void* results(size_t bytes);

  T* x(int layer) const { return frame_->x[static_cast<size_t>(layer) % frame_->x.size()]; }
  Saved& saved(int layer) {
    std::vector<Saved>& all = frame_->saved.empty() ? frames_.front().saved : frame_->saved;
    return all[static_cast<size_t>(layer) % all.size()];
  }
  bool holds(int layer) const { return held_frame_ == frame_ && held_layer_ == layer; }
  void hold(int layer) { held_frame_ = frame_, held_layer_ = layer; }

  const std::unique_ptr<const ChosenAlgorithms> chosen_;
  Aten aten_;
  const cudaStream_t stream_;
  Gemm gemm_;
  DeviceMemory memory_;
  PinnedBuffer pinned_results_, pinned_hashes_;
  SideStream hash_stream_;
  HostCopies copies_;
  SideStream inputs_stream_;  // copies of inputs of blocks

  std::vector<Frame> frames_;
  Frame* frame_ = nullptr;  // that of the present call
  // Whose activations the shared buffers hold; null: nobody's.
  const Frame* held_frame_ = nullptr;
  int held_layer_ = -1;
  // The frame's residual stream after this layer is the block's middle + product_, and not in x yet;
  // -1: it is.
  int sum_due_of_ = -1;
  T* normed_ = nullptr;   // (N, C)
  T* product_ = nullptr;  // (N, C) or (N, A), whichever is larger
  int64_t mlp_rows_ = 0;  // rows that the MLP computes at a time
  T* act_ = nullptr;      // (mlp_rows_, F)
  // Gradients of the residual stream, (N, C): in mid-block, before the unit.
  T *d_middle_ = nullptr, *d_in_ = nullptr;
  T *d_qkv_ = nullptr, *d_gate_up_ = nullptr;  // (N, Q), (mlp_rows_, 2F)
  float* d_gamma_ = nullptr;                   // the partial gradients of one norm or of the biases
  int64_t kept_rows_ = 0;                      // rows of logits that are kept at a time
  T* logits_ = nullptr;                        // (kept_rows_, V)
  // Muon, with S = muon_side(): A and b A + c A^2, (S, S) each, and a product of the size of the
  // largest matrix, which is at least (S, S).
  T *gram_ = nullptr, *polynomial_ = nullptr, *muon_product_ = nullptr;
  // With options_.fp8: the factors of a product, and the transpose of the last input_gradient()'s
  // dy, `turned_`.
  Fp8Values fp8_left_, fp8_right_, fp8_turned_;
  const T* turned_ = nullptr;
  void* results_ = nullptr;
  size_t results_bytes_ = 0;
};

}  // namespace simplescale::cuda
