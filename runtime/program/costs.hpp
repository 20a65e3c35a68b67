// How long the tasks of a program take, estimated from the model's FLOP and bytes. Pure functions, any
// thread.
#pragma once

#include "runtime/program/replay.hpp"

namespace simplescale {

/// What a trainer's device and network do in a second.
struct Speeds {
  double flops = 0;          // of products
  double memory_bytes = 0;   // read and written
  double network_bytes = 0;  // that a trainer receives in a collective
  // With a state or inputs of blocks in host memory:
  double host_bytes = 0;  // of host memory, read and written
  double copy_bytes = 0;  // between host and device, in one direction
};

/// FLOP of a token in the forward pass, products without the embedding. The backward pass has twice as
/// many. A token attends to half of a block, or to the sliding window, and passes the router, the
/// shared experts and its own ones.
struct ForwardFlops {
  double block = 0;    // with an MLP
  double routed = 0;   // of a block with experts, without them
  double experts = 0;  // of such a block
  double head = 0;
  double of_layers(const ModelShape& shape) const;
};
ForwardFlops forward_flops(const ModelShape& shape);

/// Seconds of each task of a step. recomputes: backward() of a block computes its forward pass again.
Cost task_costs(const EngineOptions& options, size_t groups, size_t shards, bool recomputes,
                const Speeds& speeds);

}  // namespace simplescale
