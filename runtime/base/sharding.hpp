// What a group keeps of the gathered parameters between uses. Groups always replicate.
#pragma once

namespace simplescale {

enum class Sharding : unsigned char {
  full_shard,     // a unit is gathered for forward and again for backward
  shard_grad_op,  // gathered once a step and kept; gradients and optimizer state are sharded
  no_shard,       // a group is one trainer: nothing is gathered
};

}  // namespace simplescale
