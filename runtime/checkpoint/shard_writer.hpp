// Writes a shard file from values that a source provides: the state of a trainer, or an imported
// model. Used in runtime/checkpoint/ only.
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
/// elements, never padding. The span is valid until the calling thread's next call. Without a
/// Parallel it is called in order; with one, its threads call it at once.
using ShardSource = std::function<Result<std::span<const std::byte>>(StateKind kind, size_t unit,
                                                                     size_t begin, size_t end)>;

/// write_shard() with a source. format: of the state.
Result<ShardRecord> write_shard_from(const std::string& tmp_folder, const std::vector<Unit>& units,
                                     size_t shards, size_t shard, const StateFormat& format,
                                     const ShardSource& source, const Parallel& parallel,
                                     FileOps& ops);

}  // namespace simplescale
