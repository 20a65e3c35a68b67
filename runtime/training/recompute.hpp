// What the backward pass of a block computes again instead of keeping it from the forward pass.
#pragma once

namespace simplescale {

enum class Recompute : unsigned char {
  nothing,
  block,  // the block: only its input is kept
  mlp,    // the first product of the MLP, the largest activation of a block
};

}  // namespace simplescale
