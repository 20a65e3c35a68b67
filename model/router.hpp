// Which experts a token passes, and with which weights: pure functions of its router logits, in fp32.
// A token's choice depends on nothing but its own logits. Any thread.
//
// Letters: E experts, k of them for each token.
#pragma once

#include <cstdint>

#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// What is known of `rows` tokens after their choice.
struct Routing {
  float* scores = nullptr;    // (rows, E): softmax of the logits, or the sigmoid of each
  float* weights = nullptr;   // (rows, k), by falling score + bias
  int32_t* chosen = nullptr;  // (rows, k): the experts, in that order; equal ones by their index
};

/// logits: (rows, E). bias: (E), added for the choice only; null: zero. Returns the close choices
/// (runtime/training/router_counts.hpp).
int64_t route(const Experts& experts, int64_t rows, const float* logits, const float* bias,
              const Routing& to);

/// Terms of the loss that depend on the router alone, each as a mean over the tokens of a micro-batch.
struct RouterLoss {
  float scale = 1;   // of their gradient: that of the loss, divided by the micro-batch's tokens
  float z_loss = 0;  // coefficient of logsumexp(logits)^2 (ST-MoE, arXiv 2202.08906)
  float balance =
      0;  // coefficient of E / k * sum over experts of f P: the share of the tokens that
          // pass an expert times its mean score (Switch Transformers, arXiv 2101.03961)
};

/// d_logits = the gradient of the loss to the logits. logits, d_logits: (rows, E); d_weights: (rows, k).
/// load: (E), the share of the micro-batch's tokens that pass each expert.
void route_backward(const Experts& experts, const RouterLoss& loss, int64_t rows,
                    const float* logits, const Routing& of, const float* d_weights,
                    const float* load, float* d_logits);

}  // namespace simplescale
