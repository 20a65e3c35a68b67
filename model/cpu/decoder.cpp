#include "model/cpu/decoder.hpp"

#include <algorithm>
#include <cmath>

#include "model/llama_backend.hpp"
#include "runtime/base/status.hpp"

namespace simplescale::cpu {
namespace {

constexpr auto kNo = Transpose::no, kYes = Transpose::yes;

}  // namespace

Decoder::Decoder(const ModelShape& shape, const std::vector<std::vector<float>>& units, int threads)
    : shape_(shape),
      units_(units),
      T_(shape.block_size),
      C_(shape.dim),
      D_(shape.head_dim()),
      F_(std::max(shape.widest_mlp(), shape.experts.hidden)),
      A_(shape.q_dim()),
      K_(shape.kv_dim()),
      Q_(A_ + 2 * K_),
      V_(shape.vocab),
      eps_(static_cast<float>(shape.norm_eps)),
      pool_(threads),
      workspaces_(static_cast<size_t>(threads)) {
  SS_ASSERT(units.size() == unit_of_block(shape, shape.layers) + 1);
  const auto rows = [](int64_t columns) { return static_cast<size_t>(kRows * columns); };
  for (Workspace& w : workspaces_)
    w = {std::vector<float>(rows(T_)), std::vector<float>(rows(D_)), std::vector<float>(kRows),
         std::vector<float>(kRows)};
  cache_.assign(static_cast<size_t>(shape.layers),
                std::vector<float>(static_cast<size_t>(T_ * 2 * K_)));
  rope_tables(shape, cosine_, sine_);
  for (std::vector<float>* buffer : {&x_, &middle_, &normed_, &delta_}) buffer->resize(rows(C_));
  attended_.resize(rows(A_));
  qk_.resize(rows(A_ + K_));
  qkv_.resize(rows(Q_));
  gate_up_.resize(rows(2 * F_));
  act_.resize(rows(F_));
  logits_.resize(static_cast<size_t>(V_));
  if (shape.experts.count == 0) return;
  sum_.resize(static_cast<size_t>(C_));
  for (std::vector<float>* buffer : {&logits_of_router_, &scores_})
    buffer->resize(rows(shape.experts.count));
  weights_.resize(rows(shape.experts.per_token));
  chosen_.resize(weights_.size());
}

std::span<const float> Decoder::append(std::span<const int32_t> tokens) {
  SS_ASSERT(!tokens.empty() && length_ + static_cast<int64_t>(tokens.size()) <= T_);
  int64_t rows = 0;
  for (; !tokens.empty(); tokens = tokens.subspan(static_cast<size_t>(rows))) {
    rows = std::min<int64_t>(kRows, static_cast<int64_t>(tokens.size()));
    forward(tokens.first(static_cast<size_t>(rows)));
  }
  const std::vector<float>& head = units_.back();
  kernel_.rms_norm(1, C_, x_.data() + (rows - 1) * C_, head.data(), eps_, normed_.data());
  const float* weight = shape_.tie_embeddings ? units_.front().data() : head.data() + C_;
  multiply(1, normed_.data(), C_, weight, V_, logits_.data());
  return logits_;
}

/// Leaves the tokens' residual stream in x_. tokens: at most kRows.
void Decoder::forward(std::span<const int32_t> tokens) {
  const auto rows = static_cast<int64_t>(tokens.size());
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t token = tokens[static_cast<size_t>(r)];
    SS_ASSERT(token >= 0 && token < V_);
    std::copy_n(units_.front().data() + token * C_, C_, x_.data() + r * C_);
  }
  for (int64_t layer = 0; layer < shape_.layers; ++layer) block(layer, rows);
  length_ += rows;
}

/// Rotated queries and keys, and values, of the rows of x in qkv_. x: (rows, C).
void Decoder::project_qkv(const BlockParameters<const float>& p, int64_t rows, const float* x) {
  multiply(rows, x, C_, p.qkv, Q_, qkv_.data());
  if (shape_.qkv_bias) kernel_.add_row(rows, Q_, p.bias, qkv_.data(), Q_);
  if (shape_.qk_norm != QkNorm::none) {
    const int64_t ld = A_ + K_, q = shape_.q_norm_width(), k = shape_.k_norm_width();
    kernel_.store(rows, ld, qkv_.data(), Q_, qk_.data(), ld);
    kernel_.norm_pieces(rows, A_ / q, q, qk_.data(), ld, p.q_norm, eps_, qkv_.data(), Q_);
    kernel_.norm_pieces(rows, K_ / k, k, qk_.data() + A_, ld, p.k_norm, eps_, qkv_.data() + A_, Q_);
  }
  kernel_.rope(rows, shape_.heads + shape_.kv_heads, D_, length_, T_, cosine_.data(), sine_.data(),
               false, qkv_.data(), Q_, qkv_.data(), Q_);
}

/// x_ becomes the block's output.
void Decoder::block(int64_t layer, int64_t rows) {
  const size_t unit = unit_of_block(shape_, layer);
  const BlockParameters<const float> p(units_[unit].data(), shape_, layer);
  const bool post = shape_.norm == NormPlacement::post;
  if (!post) kernel_.rms_norm(rows, C_, x_.data(), p.norm1, eps_, normed_.data());
  project_qkv(p, rows, post ? x_.data() : normed_.data());
  kernel_.store(rows, 2 * K_, qkv_.data() + A_, Q_,
                cache_[static_cast<size_t>(layer)].data() + length_ * 2 * K_, 2 * K_);
  pool_.run(shape_.kv_heads, [&](int64_t kv_head, int worker) {
    attend(layer, rows, kv_head, workspaces_[static_cast<size_t>(worker)]);
  });
  multiply(rows, attended_.data(), A_, p.o, C_, delta_.data());
  if (post)
    kernel_.norm_add(rows, C_, delta_.data(), p.norm1, eps_, x_.data(), middle_.data());
  else
    kernel_.add_rms_norm(rows, C_, x_.data(), delta_.data(), p.norm2, eps_, middle_.data(),
                         normed_.data());
  if (p.routed) choose_experts(p, rows);
  if (p.hidden > 0)
    swiglu(rows, post ? middle_.data() : normed_.data(), p.hidden, p.gate_up, p.down);
  else
    std::ranges::fill(delta_, 0.0f);
  if (post)
    kernel_.norm_add(rows, C_, delta_.data(), p.norm2, eps_, middle_.data(), x_.data());
  else
    kernel_.add(rows * C_, middle_.data(), delta_.data(), x_.data());
  if (p.routed) add_experts(units_[unit + 1].data(), rows);
}

/// delta_ = the SwiGLU of these rows. x: (rows, C); gate_up: (2 hidden, C); down: (C, hidden).
void Decoder::swiglu(int64_t rows, const float* x, int64_t hidden, const float* gate_up,
                     const float* down) {
  multiply(rows, x, C_, gate_up, 2 * hidden, gate_up_.data());
  kernel_.swiglu(rows, hidden, gate_up_.data(), gate_up_.data(), act_.data());
  multiply(rows, act_.data(), hidden, down, C_, delta_.data());
}

/// The experts of the rows of normed_.
void Decoder::choose_experts(const BlockParameters<const float>& p, int64_t rows) {
  multiply(rows, normed_.data(), C_, p.router, shape_.experts.count, logits_of_router_.data());
  route(shape_.experts, rows, logits_of_router_.data(),
        shape_.experts.bias ? p.router_bias : nullptr,
        {scores_.data(), weights_.data(), chosen_.data()});
}

/// Adds to x_ what the experts that were chosen make of the rows of normed_, row by row in the order of
/// the choice. unit: of experts.
void Decoder::add_experts(const float* unit, int64_t rows) {
  const int64_t k = shape_.experts.per_token;
  for (int64_t r = 0; r < rows; ++r) {
    std::ranges::fill(sum_, 0.0f);
    for (int64_t j = r * k; j < (r + 1) * k; ++j) {
      const ExpertParameters<const float> p(unit, shape_, chosen_[static_cast<size_t>(j)]);
      swiglu(1, normed_.data() + r * C_, shape_.experts.hidden, p.gate_up, p.down);
      for (size_t i = 0; i < sum_.size(); ++i)
        sum_[i] += weights_[static_cast<size_t>(j)] * delta_[i];
    }
    kernel_.add(C_, x_.data() + r * C_, sum_.data(), x_.data() + r * C_);
  }
}

/// The query heads of one key/value head, from qkv_ and the cache to attended_.
void Decoder::attend(int64_t layer, int64_t rows, int64_t kv_head, Workspace& w) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(D_));
  const int64_t window = shape_.window();
  const int64_t first = window > 0 ? std::max<int64_t>(0, length_ + 1 - window) : 0;
  const float* keys = cache_[static_cast<size_t>(layer)].data() + first * 2 * K_ + kv_head * D_;
  const float* values = keys + K_;
  const int64_t group = shape_.heads / shape_.kv_heads, count = length_ + rows - first;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    gemm(kNo, kYes, rows, count, D_, qkv_.data() + head * D_, Q_, keys, 2 * K_, 0, w.scores.data(),
         count);
    kernel_.softmax(rows, count, length_ + 1 - first, window, scale, w.scores.data(), count,
                    w.scores.data(), w.inverse_sum.data(), w.lse.data());
    gemm(kNo, kNo, rows, D_, count, w.scores.data(), count, values, 2 * K_, 0, w.block.data(), D_);
    kernel_.store_scaled(rows, D_, w.block.data(), D_, w.inverse_sum.data(),
                         attended_.data() + head * D_, A_);
  }
}

/// to = x weight^T. x: (rows, in); weight: (out, in); to: (rows, out).
void Decoder::multiply(int64_t rows, const float* x, int64_t in, const float* weight, int64_t out,
                       float* to) {
  pool_.run((out + kColumns - 1) / kColumns, [&](int64_t task, int) {
    const int64_t first = task * kColumns;
    gemm(kNo, kYes, rows, std::min(kColumns, out - first), in, x, in, weight + first * in, in, 0,
         to + first, out);
  });
}

}  // namespace simplescale::cpu
