// The model of this folder's tests.
#pragma once

#include "runtime/training/model_shape.hpp"

namespace simplescale {

inline ModelShape tiny_shape() {
  ModelShape shape;
  shape.dim = 16, shape.hidden = 16, shape.layers = 1, shape.heads = shape.kv_heads = 1;
  shape.vocab = 32, shape.block_size = 8;
  return shape;
}

}  // namespace simplescale
