// Generates text token by token: the keys and values of the tokens so far are kept (a KV cache), so
// the cost of a token grows linearly with the tokens before it, in attention only. fp32, one
// sequence, on the CPU. One thread calls it; its ThreadPool computes.
//
// Letters as in cpu_backend.hpp. n: tokens that are appended at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/cpu/gemm.hpp"
#include "model/cpu/kernels.hpp"
#include "model/cpu/thread_pool.hpp"
#include "model/llama_backend.hpp"
#include "model/router.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale::cpu {

class Decoder {
 public:
  /// units: the flat parameters of units_of(shape), fp32. They must outlive the decoder.
  Decoder(const ModelShape& shape, const std::vector<std::vector<float>>& units, int threads);

  /// Tokens that the model has seen. At most block_size.
  int64_t length() const { return length_; }
  /// Forgets all tokens.
  void clear() { length_ = 0; }
  /// Appends at least one token; length() + tokens.size() <= block_size, all ids < V. Returns the
  /// logits of the token that follows: (V), valid until the next call.
  std::span<const float> append(std::span<const int32_t> tokens);

 private:
  static constexpr int64_t kRows = 64;      // the most rows of one pass
  static constexpr int64_t kColumns = 256;  // columns of a product per task

  /// One worker's buffers for the attention of one key/value head.
  struct Workspace {
    std::vector<float> scores;            // (kRows, T)
    std::vector<float> block;             // (kRows, D)
    std::vector<float> inverse_sum, lse;  // (kRows)
  };

  void forward(std::span<const int32_t> tokens);
  void block(int64_t layer, int64_t rows);
  void project_qkv(const BlockParameters<const float>& p, int64_t rows, const float* x);
  void swiglu(int64_t rows, const float* x, int64_t hidden, const float* gate_up,
              const float* down);
  void choose_experts(const BlockParameters<const float>& p, int64_t rows);
  void add_experts(const float* unit, int64_t rows);
  void attend(int64_t layer, int64_t rows, int64_t kv_head, Workspace& w);
  void multiply(int64_t rows, const float* x, int64_t in, const float* weight, int64_t out,
                float* to);

  const ModelShape shape_;
  const std::vector<std::vector<float>>& units_;
  const int64_t T_, C_, D_, F_, A_, K_, Q_, V_;
  const float eps_;
  const Kernels<float>& kernel_ = kernels<float>();
  ThreadPool pool_;
  std::vector<Workspace> workspaces_;
  int64_t length_ = 0;
  std::vector<std::vector<float>> cache_;  // per layer: (T, 2K), rotated keys, then values
  std::vector<float> cosine_, sine_;       // (T, D/2)
  // Of one pass:
  std::vector<float> x_, middle_, normed_, delta_;  // (kRows, C)
  std::vector<float> attended_, qk_;                // (kRows, A), (kRows, A + K)
  std::vector<float> qkv_, gate_up_, act_;          // (kRows, Q), (kRows, 2F), (kRows, F)
  std::vector<float> logits_;                       // (V)
  // Of a block with experts:
  std::vector<float> logits_of_router_, scores_;  // (kRows, experts)
  std::vector<float> weights_;                    // (kRows, k)
  std::vector<int32_t> chosen_;                   // (kRows, k)
  std::vector<float> sum_;                        // (C)
};

}  // namespace simplescale::cpu
