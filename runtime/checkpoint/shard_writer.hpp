// Writes a shard file from values that a source provides in order: the state of a trainer, or an
// imported model. One thread. Used in runtime/checkpoint/ only.
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

/// Returns the bytes of elements [begin, end) of a unit, in the dtype of their kind: at most 2^20
/// elements, never padding. The span is valid until the next call.
using ShardSource = std::function<Result<std::span<const std::byte>>(StateKind kind, size_t unit,
                                                                     size_t begin, size_t end)>;

/// write_shard() with a source. format: of the state.
Result<ShardRecord> write_shard_from(const std::string& tmp_folder, const std::vector<Unit>& units,
                                     size_t shards, size_t shard, const StateFormat& format,
                                     const ShardSource& source, const WriteProgress& progress,
                                     FileOps& ops);

}  // namespace simplescale
