// The experts of the CPU backend: a token's choice, the rows of each expert, and the pass of these rows.
//
//   BACKEND-4  A sample's logits do not depend on the other samples: the products of an expert always
//              have kExpertRows rows, so that a row's bits do not depend on how many tokens chose the
//              expert, and a token's outputs are added in the order of its choice.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "model/cpu/cpu_backend.hpp"
#include "runtime/training/router_counts.hpp"

namespace simplescale::cpu {
namespace {
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;
}

template <class T>
int64_t CpuBackend<T>::expert_rows() const {
  const int64_t E = own_experts();
  return (N_ * std::min(shape_.experts.per_token, E) + E * (kExpertRows - 1)) / kExpertRows *
         kExpertRows;
}

template <class T>
void CpuBackend<T>::take_expert_buffers() {
  const int64_t R = expert_rows(), X = shape_.experts.hidden, E = shape_.experts.count;
  for (Frame& frame : frames_) {
    frame.expert_in = take<T>(N_ * C_);
    frame.router_counts.resize(router_count_size(shape_));
    if (!options_.training) continue;
    frame.d_router = take<T>(N_ * E);
    frame.d_expert_in = take<float>(N_ * C_);
  }
  expert_rows_in_ = take<T>(R * C_);
  expert_rows_out_ = take<T>(R * C_);
  expert_act_ = take<T>(R * X);
  if (resident()) {
    own_rows_.token = take<int32_t>(R);
    own_rows_.weight = take<float>(R);
    own_rows_.first.resize(static_cast<size_t>(own_experts()) + 1);
  }
  if (!options_.training || options_.recompute != Recompute::nothing || resident())
    expert_gate_up_ = take<T>(R * 2 * X);
  if (!options_.training) return;
  d_expert_out_ = take<T>(R * C_);
  d_expert_gate_up_ = take<T>(R * 2 * X);
  d_weight_ = take<float>(R);
}

template <class T>
void CpuBackend<T>::take_routing(Saved& s, bool own_rows) {
  const Experts& x = shape_.experts;
  if (x.count == 0) return;
  const int64_t R = resident() ? N_ * x.per_token : expert_rows();
  s.routing = {take<float>(N_ * x.count), take<float>(N_ * x.per_token),
               take<int32_t>(N_ * x.per_token)};
  s.logits = take<float>(N_ * x.count);
  s.dispatch.place = take<int32_t>(N_ * x.per_token);
  s.dispatch.token = take<int32_t>(R);
  s.dispatch.weight = take<float>(R);
  s.dispatch.first.resize(static_cast<size_t>(x.count) + 1);
  s.dispatch.count.resize(static_cast<size_t>(x.count));
  if (resident()) {
    s.dispatch.sent = take<int32_t>(R);
    s.dispatch.count_sent.resize(static_cast<size_t>(options_.expert_shards));
  }
  s.dispatch.close.resize(static_cast<size_t>((N_ + kRows - 1) / kRows));
  if (own_rows && !resident()) s.expert_gate_up = take<T>(R * 2 * x.hidden);
}

template <class T>
void CpuBackend<T>::ExpertRows::begin(int64_t multiple) {
  first[0] = 0;
  for (size_t e = 0; e < count.size(); ++e)
    first[e + 1] = first[e] + (count[e] + multiple - 1) / multiple * multiple;
  std::fill_n(token, first.back(), -1);
  std::fill_n(weight, first.back(), 0.0f);
}

template <class T>
void CpuBackend<T>::choose_experts(const BlockParameters<const T>& p, Saved& s, Chunk c,
                                   Workspace& w) {
  const int64_t E = shape_.experts.count, k = shape_.experts.per_token;
  float* const logits = s.logits + c.first * E;
  gemm(kNo, kYes, c.rows, E, C_, frame_->expert_in + c.first * C_, C_, p.router, C_, 0, logits, E);
  float* bias = nullptr;
  if (shape_.experts.bias) {
    bias = w.wide;
    kernel_.widen(E, p.router_bias, bias);
  }
  s.dispatch.close[static_cast<size_t>(c.first / kRows)] =
      route(shape_.experts, c.rows, logits, bias,
            {s.routing.scores + c.first * E, s.routing.weights + c.first * k,
             s.routing.chosen + c.first * k});
}

template <class T>
void CpuBackend<T>::dispatch(int layer, Saved& s) {
  const int64_t k = shape_.experts.per_token;
  Dispatch& d = s.dispatch;
  std::ranges::fill(d.count, 0);
  for (int64_t i = 0; i < N_ * k; ++i) ++d.count[static_cast<size_t>(s.routing.chosen[i])];
  const std::span counts = counts_of(std::span(frame_->router_counts), shape_, layer);
  std::ranges::copy(d.count, counts.begin());
  counts.back() = std::accumulate(d.close.begin(), d.close.end(), int64_t{0});
  d.begin(resident() ? 1 : kExpertRows);
  std::vector<int64_t> next(d.first.begin(), d.first.end() - 1);
  for (int64_t i = 0; i < N_ * k; ++i) {
    const int64_t row = next[static_cast<size_t>(s.routing.chosen[i])]++;
    d.place[i] = static_cast<int32_t>(row);
    if (!resident()) d.token[row] = static_cast<int32_t>(i / k);
    d.weight[row] = s.routing.weights[i];
  }
  if (!resident()) return;
  std::ranges::fill(d.count_sent, 0);
  for (int64_t i = 0; i < N_ * k; ++i) {
    const int64_t trainer = s.routing.chosen[i] / own_experts();
    int32_t& sent = d.count_sent[static_cast<size_t>(trainer)];
    int32_t* const tokens = d.token + d.first[static_cast<size_t>(trainer * own_experts())];
    const auto token = static_cast<int32_t>(i / k);
    if (sent == 0 || tokens[sent - 1] != token) tokens[sent++] = token;
    d.sent[d.place[i]] = sent - 1;
  }
}

template <class T>
template <class Body>
void CpuBackend<T>::for_expert_rows(const ExpertRows& d, Body body) {
  pool_.run(d.first.back() / kExpertRows, [&](int64_t task, int worker) {
    const int64_t row = task * kExpertRows;
    const auto after = std::ranges::upper_bound(d.first, row);
    body(after - d.first.begin() - 1, row, workspaces_[static_cast<size_t>(worker)]);
  });
}

template <class T>
void CpuBackend<T>::gather_rows(const ExpertRows& d, int64_t first, int64_t rows, const T* x,
                                T* to) const {
  const size_t bytes = static_cast<size_t>(C_) * sizeof(T);
  for (int64_t row = first; row < first + rows; ++row, to += C_)
    if (d.token[row] < 0)
      std::memset(to, 0, bytes);
    else
      std::memcpy(to, x + d.token[row] * C_, bytes);
}

template <class T>
void CpuBackend<T>::pass_rows(const ExpertRows& d, const T* x, const T* params, T* gate_up) {
  const int64_t X = shape_.experts.hidden;
  for_expert_rows(d, [&](int64_t expert, int64_t row, Workspace& w) {
    const ExpertParameters<const T> p(params, shape_, expert);
    T *in = expert_rows_in_ + row * C_, *act = expert_act_ + row * X;
    T* to = gate_up + row * 2 * X;
    gather_rows(d, row, kExpertRows, x, in);
    float* product = direct(to, w.wide);
    gemm(kNo, kYes, kExpertRows, 2 * X, C_, in, C_, p.gate_up, C_, 0, product, 2 * X);
    kernel_.swiglu(kExpertRows, X, product, to, act);
    T* out = expert_rows_out_ + row * C_;
    float* sum = direct(out, w.narrow);
    gemm(kNo, kYes, kExpertRows, C_, X, act, X, p.down, X, 0, sum, C_);
    if (!std::is_same_v<T, float>) kernel_.store(kExpertRows, C_, sum, C_, out, C_);
  });
}

template <class T>
void CpuBackend<T>::add_rows(int layer, const Saved& s, const T* rows) {
  const int64_t k = shape_.experts.per_token;
  T* const output = x(layer + 1);
  for_chunks(N_, kRows, [&](Chunk c, Workspace& w) {
    for (int64_t r = 0; r < c.rows; ++r) {
      const int64_t at = (c.first + r) * k;
      kernel_.weighted_sum_rows(k, s.dispatch.place + at, s.routing.weights + at, C_, rows,
                                w.narrow + r * C_);
    }
    T* to = output + c.first * C_;
    kernel_.add(c.rows * C_, to, w.narrow, to);
  });
}

template <class T>
void CpuBackend<T>::forward_experts(int frame, int layer, const void* params) {
  use(frame);
  Saved& s = saved(layer);
  pass_rows(s.dispatch, frame_->expert_in, static_cast<const T*>(params),
            s.expert_gate_up ? s.expert_gate_up : expert_gate_up_);
  add_rows(layer, s, expert_rows_out_);
}

template <class T>
void CpuBackend<T>::restore_experts(int layer, const T* block) {
  const BlockParameters<const T> b(block, shape_, layer);
  restore(layer, block);
  for_chunks(N_, kRows, [&](Chunk c, Workspace&) {
    const int64_t at = c.first * C_;
    kernel_.rms_norm(c.rows, C_, saved(layer).middle + at, b.norm2, eps_, frame_->expert_in + at);
  });
}

template <class T>
void CpuBackend<T>::pass_rows_backward(const ExpertRows& d, const T* x, const T* d_out,
                                       const T* params, T* gate_up, bool kept, T* grad) {
  const int64_t X = shape_.experts.hidden;
  for_expert_rows(d, [&](int64_t expert, int64_t row, Workspace& w) {
    const ExpertParameters<const T> p(params, shape_, expert);
    T *in = expert_rows_in_ + row * C_, *d_row = d_expert_out_ + row * C_;
    T *of_row = gate_up + row * 2 * X, *d_gate_up = d_expert_gate_up_ + row * 2 * X;
    T* act = expert_act_ + row * X;
    gather_rows(d, row, kExpertRows, x, in);
    gather_rows(d, row, kExpertRows, d_out, d_row);
    if (!kept) {
      float* product = direct(of_row, w.wide);
      gemm(kNo, kYes, kExpertRows, 2 * X, C_, in, C_, p.gate_up, C_, 0, product, 2 * X);
      if (!std::is_same_v<T, float>)
        kernel_.store(kExpertRows, 2 * X, product, 2 * X, of_row, 2 * X);
    }
    gemm(kNo, kNo, kExpertRows, X, C_, d_row, C_, p.down, X, 0, w.wide, X);
    kernel_.weighted_swiglu_backward(kExpertRows, X, of_row, w.wide, d.weight + row, d_gate_up, act,
                                     d_weight_ + row);
    T* d_in = expert_rows_out_ + row * C_;
    float* sum = direct(d_in, w.narrow);
    gemm(kNo, kNo, kExpertRows, C_, 2 * X, d_gate_up, 2 * X, p.gate_up, C_, 0, sum, C_);
    if (!std::is_same_v<T, float>) kernel_.store(kExpertRows, C_, sum, C_, d_in, C_);
  });
  std::vector<WeightGradient> gradients;
  for (size_t e = 0; e < d.count.size(); ++e) {
    const ExpertParameters<T> g(grad, shape_, static_cast<int64_t>(e));
    const int64_t rows = d.count[e], first = d.first[e];
    gradients.push_back({rows, 2 * X, C_, d_expert_gate_up_ + first * 2 * X, 2 * X,
                         expert_rows_in_ + first * C_, g.gate_up});
    gradients.push_back(
        {rows, C_, X, d_expert_out_ + first * C_, C_, expert_act_ + first * X, g.down});
  }
  weight_gradients(gradients, true, true, nullptr);
}

template <class T>
void CpuBackend<T>::add_row_gradients(const Saved& s, const T* rows, const float* d_weight) {
  const int64_t E = shape_.experts.count, k = shape_.experts.per_token;
  const Dispatch& d = s.dispatch;
  std::vector<float> load(static_cast<size_t>(E));
  for (size_t e = 0; e < load.size(); ++e)
    load[e] = static_cast<float>(d.count[e]) / static_cast<float>(N_);
  const RouterLoss loss{frame_->router_scale, options_.router_z_loss, options_.router_balance_loss};
  for_chunks(N_, kRows, [&](Chunk c, Workspace& w) {
    float *d_logits = w.wide, *d_weights = w.wide + c.rows * E;
    for (int64_t i = 0; i < c.rows * k; ++i) d_weights[i] = d_weight[d.place[c.first * k + i]];
    route_backward(shape_.experts, loss, c.rows, s.logits + c.first * E,
                   {s.routing.scores + c.first * E, nullptr, s.routing.chosen + c.first * k},
                   d_weights, load.data(), d_logits);
    kernel_.store(c.rows, E, d_logits, E, frame_->d_router + c.first * E, E);
    for (int64_t row = c.first; row < c.first + c.rows; ++row)
      kernel_.weighted_sum_rows(k, d.place + row * k, nullptr, C_, rows,
                                frame_->d_expert_in + row * C_);
  });
}

template <class T>
void CpuBackend<T>::backward_experts(int frame, int layer, const void* block, const void* params,
                                     void* grad) {
  SS_ASSERT(options_.training);
  use(frame);
  restore_experts(layer, static_cast<const T*>(block));
  const Saved& s = saved(layer);
  pass_rows_backward(s.dispatch, frame_->expert_in, frame_->d_out, static_cast<const T*>(params),
                     s.expert_gate_up ? s.expert_gate_up : expert_gate_up_, s.expert_gate_up,
                     static_cast<T*>(grad));
  add_row_gradients(s, expert_rows_out_, d_weight_);
}

// --- Resident experts ---

template <class T>
void CpuBackend<T>::copy_tokens(const Dispatch& d, const T* x, void* to) {
  for_chunks(d.first.back(), kRows, [&](Chunk c, Workspace&) {
    gather_rows(d, c.first, c.rows, x, static_cast<T*>(to) + c.first * C_);
  });
}

template <class T>
void CpuBackend<T>::return_rows(void* to, float* d_weight) {
  const ExpertRows& d = own_rows_;
  std::vector<int64_t> before(d.count.size());  // rows of the experts before
  std::exclusive_scan(d.count.begin(), d.count.end(), before.begin(), int64_t{0});
  for_expert_rows(d, [&](int64_t expert, int64_t row, Workspace&) {
    const auto e = static_cast<size_t>(expert);
    const int64_t rows = std::min(kExpertRows, d.first[e] + d.count[e] - row),
                  at = before[e] + row - d.first[e];
    std::memcpy(static_cast<T*>(to) + at * C_, expert_rows_out_ + row * C_,
                static_cast<size_t>(rows * C_) * sizeof(T));
    if (d_weight) std::copy_n(d_weight_ + row, rows, d_weight + at);
  });
}

template <class T>
void CpuBackend<T>::receive_rows(std::span<const int32_t> tokens, const TokenRows& rows,
                                 bool backward) {
  ExpertRows& d = own_rows_;
  d.count.assign(tokens.begin(), tokens.end());
  d.begin(kExpertRows);
  int64_t at = 0;
  for (size_t e = 0; e < tokens.size(); at += tokens[e++]) {
    std::copy_n(rows.token + at, tokens[e], d.token + d.first[e]);
    if (backward) std::copy_n(rows.weight + at, tokens[e], d.weight + d.first[e]);
  }
}

template <class T>
void CpuBackend<T>::send_tokens(int frame, int layer, const TokenRows& rows,
                                std::span<int32_t> sent) {
  frame_ = &frames_[static_cast<size_t>(frame)];  // the next one may use the block's packed weights
  const Dispatch& d = saved(layer).dispatch;
  copy_tokens(d, frame_->expert_in, rows.x);
  std::copy_n(d.sent, d.first.back(), rows.token);
  std::ranges::copy(d.count_sent, sent.begin());
}

template <class T>
void CpuBackend<T>::send_gradients(int frame, int layer, const void* block, const TokenRows& rows) {
  SS_ASSERT(options_.training);
  use(frame);
  restore_experts(layer, static_cast<const T*>(block));
  const Dispatch& d = saved(layer).dispatch;
  copy_tokens(d, frame_->expert_in, rows.x);
  copy_tokens(d, frame_->d_out, rows.d_out);
  std::copy_n(d.weight, d.first.back(), rows.weight);
  std::copy_n(d.sent, d.first.back(), rows.token);
}

template <class T>
void CpuBackend<T>::forward_rows(std::span<const int32_t> tokens, const void* params,
                                 const TokenRows& rows, const TokenRows& to) {
  receive_rows(tokens, rows, false);
  pass_rows(own_rows_, static_cast<const T*>(rows.x), static_cast<const T*>(params),
            expert_gate_up_);
  return_rows(to.x, nullptr);
}

template <class T>
void CpuBackend<T>::backward_rows(std::span<const int32_t> tokens, const void* params,
                                  const TokenRows& rows, void* grad, const TokenRows& to) {
  receive_rows(tokens, rows, true);
  pass_rows_backward(own_rows_, static_cast<const T*>(rows.x), static_cast<const T*>(rows.d_out),
                     static_cast<const T*>(params), expert_gate_up_, false, static_cast<T*>(grad));
  return_rows(to.x, to.weight);
}

template <class T>
void CpuBackend<T>::combine_tokens(int frame, int layer, const TokenRows& rows) {
  use(frame);
  add_rows(layer, saved(layer), static_cast<const T*>(rows.x));
}

template <class T>
void CpuBackend<T>::combine_gradients(int frame, int layer, const TokenRows& rows) {
  use(frame);
  add_row_gradients(saved(layer), static_cast<const T*>(rows.x), rows.weight);
}

template class CpuBackend<float>;
template class CpuBackend<Bf16>;

}  // namespace simplescale::cpu
