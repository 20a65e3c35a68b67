// The text by which two checkpoints are compared. Streams: holds one unit's piece at a time. Any
// thread.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace simplescale {

/// A line a tensor, "<name> [<shape>] float32 <xxh3-128>": the weights, then <name>.exp_avg, then
/// <name>.exp_avg_sq; and last "total <hash>" of all those lines and the step. Equal for equal
/// states, however many shards they lie in.
Result<std::string> digest(Checkpoint& checkpoint);

}  // namespace simplescale
