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
  const Experts& x = shape_.experts;
  return (N_ * x.per_token + x.count * (kExpertRows - 1)) / kExpertRows * kExpertRows;
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
  if (!options_.training || options_.recompute != Recompute::nothing)
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
  const int64_t R = expert_rows();
  s.routing = {take<float>(N_ * x.count), take<float>(N_ * x.per_token),
               take<int32_t>(N_ * x.per_token)};
  s.logits = take<float>(N_ * x.count);
  s.dispatch.place = take<int32_t>(N_ * x.per_token);
  s.dispatch.token = take<int32_t>(R);
  s.dispatch.weight = take<float>(R);
  s.dispatch.first.resize(static_cast<size_t>(x.count) + 1);
  s.dispatch.count.resize(static_cast<size_t>(x.count));
  s.dispatch.close.resize(static_cast<size_t>((N_ + kRows - 1) / kRows));
  if (own_rows) s.expert_gate_up = take<T>(R * 2 * x.hidden);
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
  d.first[0] = 0;
  for (size_t e = 0; e < d.count.size(); ++e)
    d.first[e + 1] = d.first[e] + (d.count[e] + kExpertRows - 1) / kExpertRows * kExpertRows;
  std::fill_n(d.token, d.first.back(), -1);
  std::fill_n(d.weight, d.first.back(), 0.0f);
  std::vector<int64_t> next(d.first.begin(), d.first.end() - 1);
  for (int64_t i = 0; i < N_ * k; ++i) {
    const int64_t row = next[static_cast<size_t>(s.routing.chosen[i])]++;
    d.place[i] = static_cast<int32_t>(row);
    d.token[row] = static_cast<int32_t>(i / k);
    d.weight[row] = s.routing.weights[i];
  }
}

template <class T>
template <class Body>
void CpuBackend<T>::for_expert_rows(const Dispatch& d, Body body) {
  pool_.run(d.first.back() / kExpertRows, [&](int64_t task, int worker) {
    const int64_t row = task * kExpertRows;
    const auto after = std::ranges::upper_bound(d.first, row);
    body(after - d.first.begin() - 1, row, workspaces_[static_cast<size_t>(worker)]);
  });
}

template <class T>
void CpuBackend<T>::gather_rows(const Dispatch& d, int64_t first, const T* x, T* to) const {
  const size_t bytes = static_cast<size_t>(C_) * sizeof(T);
  for (int64_t row = first; row < first + kExpertRows; ++row, to += C_)
    if (d.token[row] < 0)
      std::memset(to, 0, bytes);
    else
      std::memcpy(to, x + d.token[row] * C_, bytes);
}

template <class T>
void CpuBackend<T>::forward_experts(int frame, int layer, const void* params) {
  use(frame);
  const int64_t X = shape_.experts.hidden, k = shape_.experts.per_token;
  Saved& s = saved(layer);
  const Dispatch& d = s.dispatch;
  T* const saved_gate_up = s.expert_gate_up ? s.expert_gate_up : expert_gate_up_;
  for_expert_rows(d, [&](int64_t expert, int64_t row, Workspace& w) {
    const ExpertParameters<const T> p(static_cast<const T*>(params), shape_, expert);
    T *in = expert_rows_in_ + row * C_, *act = expert_act_ + row * X;
    T* gate_up = saved_gate_up + row * 2 * X;
    gather_rows(d, row, frame_->expert_in, in);
    float* product = direct(gate_up, w.wide);
    gemm(kNo, kYes, kExpertRows, 2 * X, C_, in, C_, p.gate_up, C_, 0, product, 2 * X);
    kernel_.swiglu(kExpertRows, X, product, gate_up, act);
    T* out = expert_rows_out_ + row * C_;
    float* sum = direct(out, w.narrow);
    gemm(kNo, kYes, kExpertRows, C_, X, act, X, p.down, X, 0, sum, C_);
    if (!std::is_same_v<T, float>) kernel_.store(kExpertRows, C_, sum, C_, out, C_);
  });
  T* const output = x(layer + 1);
  for_chunks(N_, kRows, [&](Chunk c, Workspace& w) {
    for (int64_t r = 0; r < c.rows; ++r) {
      const int64_t at = (c.first + r) * k;
      kernel_.weighted_sum_rows(k, d.place + at, s.routing.weights + at, C_, expert_rows_out_,
                                w.narrow + r * C_);
    }
    T* to = output + c.first * C_;
    kernel_.add(c.rows * C_, to, w.narrow, to);
  });
}

template <class T>
void CpuBackend<T>::backward_experts(int frame, int layer, const void* block, const void* params,
                                     void* grad) {
  SS_ASSERT(options_.training);
  use(frame);
  const int64_t X = shape_.experts.hidden, E = shape_.experts.count, k = shape_.experts.per_token;
  const BlockParameters<const T> b(static_cast<const T*>(block), shape_, layer);
  restore(layer, static_cast<const T*>(block));
  Saved& s = saved(layer);
  const Dispatch& d = s.dispatch;
  for_chunks(N_, kRows, [&](Chunk c, Workspace&) {
    const int64_t at = c.first * C_;
    kernel_.rms_norm(c.rows, C_, s.middle + at, b.norm2, eps_, frame_->expert_in + at);
  });
  T* const saved_gate_up = s.expert_gate_up ? s.expert_gate_up : expert_gate_up_;
  for_expert_rows(d, [&](int64_t expert, int64_t row, Workspace& w) {
    const ExpertParameters<const T> p(static_cast<const T*>(params), shape_, expert);
    T *in = expert_rows_in_ + row * C_, *d_out = d_expert_out_ + row * C_;
    T *gate_up = saved_gate_up + row * 2 * X, *d_gate_up = d_expert_gate_up_ + row * 2 * X;
    T* act = expert_act_ + row * X;
    gather_rows(d, row, frame_->expert_in, in);
    gather_rows(d, row, frame_->d_out, d_out);
    if (!s.expert_gate_up) {
      float* product = direct(gate_up, w.wide);
      gemm(kNo, kYes, kExpertRows, 2 * X, C_, in, C_, p.gate_up, C_, 0, product, 2 * X);
      if (!std::is_same_v<T, float>)
        kernel_.store(kExpertRows, 2 * X, product, 2 * X, gate_up, 2 * X);
    }
    gemm(kNo, kNo, kExpertRows, X, C_, d_out, C_, p.down, X, 0, w.wide, X);
    kernel_.weighted_swiglu_backward(kExpertRows, X, gate_up, w.wide, d.weight + row, d_gate_up,
                                     act, d_weight_ + row);
    T* d_in = expert_rows_out_ + row * C_;
    float* sum = direct(d_in, w.narrow);
    gemm(kNo, kNo, kExpertRows, C_, 2 * X, d_gate_up, 2 * X, p.gate_up, C_, 0, sum, C_);
    if (!std::is_same_v<T, float>) kernel_.store(kExpertRows, C_, sum, C_, d_in, C_);
  });
  std::vector<float> load(static_cast<size_t>(E));
  for (size_t e = 0; e < load.size(); ++e)
    load[e] = static_cast<float>(d.count[e]) / static_cast<float>(N_);
  const RouterLoss loss{frame_->scale, options_.router_z_loss, options_.router_balance_loss};
  for_chunks(N_, kRows, [&](Chunk c, Workspace& w) {
    float *d_logits = w.wide, *d_weights = w.wide + c.rows * E;
    for (int64_t i = 0; i < c.rows * k; ++i) d_weights[i] = d_weight_[d.place[c.first * k + i]];
    route_backward(shape_.experts, loss, c.rows, s.logits + c.first * E,
                   {s.routing.scores + c.first * E, nullptr, s.routing.chosen + c.first * k},
                   d_weights, load.data(), d_logits);
    kernel_.store(c.rows, E, d_logits, E, frame_->d_router + c.first * E, E);
    for (int64_t row = c.first; row < c.first + c.rows; ++row)
      kernel_.weighted_sum_rows(k, d.place + row * k, nullptr, C_, expert_rows_out_,
                                frame_->d_expert_in + row * C_);
  });
  std::vector<WeightGradient> gradients;
  for (int64_t e = 0; e < E; ++e) {
    const ExpertParameters<T> g(static_cast<T*>(grad), shape_, e);
    const int64_t rows = d.count[static_cast<size_t>(e)], first = d.first[static_cast<size_t>(e)];
    gradients.push_back({rows, 2 * X, C_, d_expert_gate_up_ + first * 2 * X, 2 * X,
                         expert_rows_in_ + first * C_, g.gate_up});
    gradients.push_back(
        {rows, C_, X, d_expert_out_ + first * C_, C_, expert_act_ + first * X, g.down});
  }
  weight_gradients(gradients, true, true, nullptr);
}

template class CpuBackend<float>;
template class CpuBackend<Bf16>;

}  // namespace simplescale::cpu
