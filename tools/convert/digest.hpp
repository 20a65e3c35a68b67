// A text by which checkpoints are compared. Streams: holds one piece of a unit at a time. Any
// thread.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace simplescale {

/// A line per tensor, "<name> [<shape>] <dtype> <xxh3-128>", of the bytes in that dtype: all
/// weights, then all <name>.exp_avg, then all <name>.exp_avg_sq, then all <name>.ema if there is an
/// average. Then "signature <hash>", of the numerics signature with which the run made it, or "none";
/// the last line is "total <hash>", the hash of the tensors' lines and the step. The total is equal for
/// equal states, whatever the number of shards.
Result<std::string> digest(Checkpoint& checkpoint);

}  // namespace simplescale
