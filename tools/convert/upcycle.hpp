// A model with experts out of a dense one (sparse upcycling, arXiv 2212.05055): every expert begins
// as a copy of the block's MLP. Blocks on the disk; memory: the largest unit of the dense model.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {

struct Upcycle {
  int64_t experts = 0, per_token = 2;
  /// At most 1. With one, the down projections of it and of the others are halved.
  int64_t shared = 0;
  RouterScore score = RouterScore::softmax;  // sigmoid: with a bias, as in DeepSeek-V3
  /// Normal numbers added to the experts' weights, in standard deviations of the matrix.
  double noise = 0;
  uint64_t seed = 0;  // of the routers' weights and of the noise
};

/// "experts=8,top_k=2,shared=1,score=sigmoid,noise=0.01,seed=7"; all but experts may be left out.
/// usage: names the first wrong part.
Result<Upcycle> parse_upcycle(const std::string& text);

/// The shape of the model with experts. bad_config: the dense model has experts already, or its
/// blocks cannot have some.
Result<ModelShape> upcycled_shape(const ModelShape& dense, const Upcycle& upcycle);

/// Makes the checkpoint `to` of step 0 with zero moments. The routers' weights are normal(0, 0.02), and
/// the weights of a token's experts add up to 1: without noise the model computes what the dense one
/// does, up to rounding. to: must not exist. bad_data: a value is NaN or infinite, or `to` exists;
/// otherwise errors as upcycled_shape(), Checkpoint::stream_unit() and publish_checkpoint_as().
Status upcycle_checkpoint(Checkpoint& dense, const Upcycle& upcycle, const std::string& to,
                          FileOps& ops = system_files());

}  // namespace simplescale
