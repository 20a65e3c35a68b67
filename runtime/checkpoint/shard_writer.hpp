// Writes one shard file from values that a source gives in order: the state of a trainer, or a
// foreign model being imported. The checkpoint writer's thread. Not for use outside
// runtime/checkpoint/.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// Elements [begin, end) of a unit (at most 1 Mi of them, never padding); the span is valid until
/// the next call.
using ShardSource = std::function<Result<std::span<const float>>(StateKind kind, size_t unit,
                                                                 size_t begin, size_t end)>;

/// As write_shard().
Result<ShardRecord> write_shard_from(const std::string& tmp_folder, const std::vector<Unit>& units,
                                     size_t shards, size_t shard, const ShardSource& source,
                                     const WriteProgress& progress, FileOps& ops);

}  // namespace simplescale
