#include "model/cpu/cpu_backend.hpp"

#include <algorithm>
#include <cstring>

#include "model/cpu/shard.hpp"

namespace simplescale {

Result<std::unique_ptr<Backend>> make_cpu_backend(const BackendOptions& options) {
  SS_RETURN_IF_ERROR(validate(options.shape));
  auto bad = [](const char* what, int value) {
    return Status(Code::bad_config,
                  std::string(what) + " = " + std::to_string(value) + " is out of range");
  };
  if (options.micro_batch_size < 1) return bad("micro_batch_size", options.micro_batch_size);
  if (options.frames < 1) return bad("frames", options.frames);
  if (options.threads < 1 || options.threads > 1024) return bad("threads", options.threads);
  return options.precision == DType::f32 ? LlamaBackend::make<cpu::CpuBackend<float>>(options)
                                         : LlamaBackend::make<cpu::CpuBackend<cpu::Bf16>>(options);
}

namespace cpu {

template <class T>
CpuBackend<T>::CpuBackend(const BackendOptions& options)
    : LlamaBackend(options),
      attention_{T_, D_, options.shape.heads / options.shape.kv_heads,
                 Q_, A_, options.shape.window()},
      pool_(options.threads),
      workspaces_(static_cast<size_t>(options.threads)),
      frames_(static_cast<size_t>(options.frames)),
      frame_(frames_.data()) {}

template <class T>
Status CpuBackend<T>::allocate_buffers() {
  const bool training = options_.training;
  const int64_t rows = std::min(kRows, N_), head_rows = std::min(kHeadRows, N_);
  const int64_t E = shape_.experts.count, X = shape_.experts.hidden;
  const int64_t wide =
      std::max({rows * 2 * F_, rows * Q_, head_rows * V_, rows * 2 * E, kExpertRows * 2 * X,
                std::min(kWeightRows, std::max({V_, 2 * F_, Q_, C_, 2 * X, E})) *
                    std::max({C_, F_, A_, X})});
  for (Workspace& w : workspaces_) {
    w.wide = take<float>(wide);
    w.narrow = take<float>(std::max(rows, E > 0 ? kExpertRows : 0) * std::max(C_, A_));
    w.normed = take<T>(rows * C_);
    w.act = take<T>(rows * F_);
    if (options_.fp8)
      w.rounded =
          take<T>(std::max(rows * std::max({2 * F_, Q_, C_}),
                           std::min(kWeightTokens, N_) * (kWeightRows + std::max({C_, F_, A_}))));
    w.attention = take<unsigned char>(static_cast<int64_t>(attention_scratch_bytes<T>(attention_)));
  }
  cosine_ = take<float>(T_ * (D_ / 2));
  sine_ = take<float>(T_ * (D_ / 2));
  take_packed();
  for (Frame& frame : frames_) take_frame(frame);
  if (E > 0) take_expert_buffers();
  if (!training) return allocated_;

  if (options_.muon) {
    gram_ = take<T>(muon_side() * muon_side());
    polynomial_ = take<T>(muon_side() * muon_side());
    if (!std::is_same_v<T, float>) square_ = take<float>(muon_side() * muon_side());
    muon_product_ = take<float>(muon_elements());
  }
  for (T** buffer : {&d_middle_, &d_in_, &normed1_, &normed2_}) *buffer = take<T>(N_ * C_);
  d_attended_ = take<T>(N_ * A_);
  d_qkv_ = take<T>(N_ * Q_);
  act_ = take<T>(N_ * F_);
  d_gate_up_ = take<T>(N_ * 2 * F_);
  const int64_t chunks = (N_ + head_rows - 1) / head_rows;
  d_gamma1_ = take<float>(chunks * C_);
  d_gamma2_ = take<float>(chunks * C_);
  if (shape_.qkv_bias) d_bias_ = take<float>(chunks * Q_);
  if (has_qk_norm()) {
    d_q_norm_ = take<float>(chunks * shape_.q_norm_width());
    d_k_norm_ = take<float>(chunks * shape_.k_norm_width());
  }
  const int64_t fit = kLogitBytes / (V_ * int64_t{sizeof(T)}) / kHeadRows * kHeadRows;
  kept_rows_ = std::min(N_, std::max(fit, kHeadRows));
  d_logits_ = take<T>(kept_rows_ * V_);
  if (!std::is_same_v<T, float> && kept_rows_ < N_) head_sums_ = take<float>(V_ * C_);
  token_begin_ = take<int32_t>(V_ + 1);
  token_rows_ = take<int32_t>(N_);
  return allocated_;
}

/// What is recomputed is shared by all layers and frames.
template <class T>
void CpuBackend<T>::take_frame(Frame& frame) {
  const bool keep = options_.training && options_.recompute != Recompute::block;
  const Frame& first = frames_.front();
  frame.inputs = take<int32_t>(N_);
  frame.targets = take<int32_t>(N_);
  frame.losses = take<float>(N_);
  frame.x.resize(options_.training ? static_cast<size_t>(shape_.layers) + 1 : 2);
  for (T*& x : frame.x) x = take<T>(N_ * C_);
  if (options_.training) frame.d_out = take<T>(N_ * C_);
  if (!keep && &frame != &first) {
    frame.saved = first.saved;
    take_routing(frame.saved[0], false);  // is read when the next frames have passed the block, too
    return;
  }
  frame.saved.resize(keep ? static_cast<size_t>(shape_.layers) : 1);
  const bool own_gate_up = keep && options_.recompute == Recompute::nothing;
  for (size_t layer = 0; layer < frame.saved.size(); ++layer) {
    Saved& s = frame.saved[layer];
    const int64_t F = own_gate_up ? shape_.mlp_width(static_cast<int64_t>(layer)) : F_;
    const bool share = options_.recompute == Recompute::mlp && first.saved[0].gate_up;
    s = {.qkv = take<T>(N_ * Q_),
         .attended = take<T>(N_ * A_),
         .lse = take<float>(N_ * shape_.heads),
         .middle = take<T>(N_ * C_),
         .gate_up = share ? first.saved[0].gate_up : take<T>(N_ * 2 * F)};
    if (has_qk_norm()) s.qk = take<T>(N_ * (A_ + K_));
    if (post_norm()) s.attention_out = take<T>(N_ * C_), s.mlp_out = take<T>(N_ * C_);
    if (!keep || shape_.has_experts(static_cast<int64_t>(layer))) take_routing(s, own_gate_up);
  }
}

/// Allocates the buffers of each slot of weights. That of packed weights fits every weight of blocks and head that
/// uses the slot, in both orientations; a wave's backward pass that recomputes needs both at once. A slot
/// that would be too large stays null.
template <class T>
void CpuBackend<T>::take_packed() {
  const int64_t shapes[4][2] = {{2 * F_, C_}, {C_, F_}, {Q_, C_}, {C_, A_}};
  for (int slot = 0; slot < 4; ++slot) {
    if (options_.fp8) rounded_[slot] = take<T>(shapes[slot][0] * shapes[slot][1]);
    size_t bytes = 0;
    auto need = [&](int64_t out, int64_t in) {
      for (Transpose transpose : {Transpose::no, Transpose::yes}) {
        const size_t one = packed_bytes(weight(nullptr, out, in, transpose, slot));
        if (one == 0) return false;
        bytes = std::max(bytes, one);
      }
      return true;
    };
    if (!need(shapes[slot][0], shapes[slot][1]) || (slot < 2 && !need(V_, C_))) continue;
    const bool both = options_.frames > 1 && options_.recompute != Recompute::nothing;
    for (const size_t orientation : {0, 1})
      packed_[orientation][slot].memory =
          orientation == 1 && !both ? packed_[0][slot].memory
                                    : take<float>(static_cast<int64_t>(bytes / sizeof(float)) + 1);
  }
}

template <class T>
void CpuBackend<T>::copy_to_device(void* device, const void* host, size_t bytes) {
  std::memcpy(device, host, bytes);
}

template <class T>
void CpuBackend<T>::copy_to_host(void* host, const void* device, size_t bytes) {
  std::memcpy(host, device, bytes);
}

template <class T>
void CpuBackend<T>::copy(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

template <class T>
void CpuBackend<T>::zero(void* data, size_t bytes) {
  std::memset(data, 0, bytes);
}

// --- Element-wise work on a shard ---

template <class T>
void CpuBackend<T>::cast(const float* from, void* to, size_t count) {
  cpu::cast(host_threads(), options_.precision, from, to, count);
}

template <class T>
void CpuBackend<T>::accumulate(const float* from, float* to, size_t count) {
  for_elements(pool_, static_cast<int64_t>(count), [&](int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; ++i) to[i] += from[i];
  });
}

template <class T>
void CpuBackend<T>::start_squares(const float* values, size_t first, size_t count, size_t total) {
  constexpr auto kBlock = static_cast<int64_t>(kShardAlign);
  square_sums_.resize(total / kShardAlign);
  double* const sums = square_sums_.data() + first / kShardAlign;
  for_elements(pool_, static_cast<int64_t>(count), [&](int64_t at, int64_t n) {
    shard_kernel_.square_sums(n / kBlock, values + at, sums + at / kBlock);
  });
}

template <class T>
void CpuBackend<T>::square_sums(std::span<const BlockTree> trees, double* sums) {
  for (const BlockTree& tree : trees)
    *sums++ = sum_in_tree_order(square_sums_.data() + tree.first, tree.blocks());
}

template <class T>
void CpuBackend<T>::adamw(const AdamW& o, std::span<const ParameterRun> runs, const float* gradient,
                          const float* from_params, const void* from_avg, const void* from_avg_sq,
                          float* to_params, void* to_avg, void* to_avg_sq, void* rounded) {
  cpu::adamw(host_threads(), options_.precision, o, runs, gradient, from_params, from_avg,
             from_avg_sq, to_params, to_avg, to_avg_sq, rounded);
}

template <class T>
void CpuBackend<T>::average(float weight, size_t count, const float* params, const float* from,
                            float* to) {
  cpu::average(host_threads(), weight, count, params, from, to);
}

template class CpuBackend<float>;
template class CpuBackend<Bf16>;

}  // namespace cpu
}  // namespace simplescale
