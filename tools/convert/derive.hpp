// The first checkpoint of a run that begins with the weights of another one (run.from). Blocks on
// the disk; memory: the largest unit of the model.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace simplescale {

/// bad_config: weights of `shape`, of the folder `from`, cannot begin a run of the shape `wanted`;
/// with the keys of [model] to set. block_size may differ, the vocabulary may be larger, and a larger
/// block_size may come with another rope_scaling.
Status check_derivable(const std::string& from, ModelShape shape, const ModelShape& wanted);

/// Adds the checkpoint of info.step to the folder `checkpoints`: the weights of `from`, and if
/// with_optimizer its moments; otherwise the moments are zero. info: step, shape and other facts of
/// the new checkpoint; with info.state.ema also the average of `from`, which then must have one. The
/// block_size may differ. The vocabulary may be larger: the embeddings and the output weights of
/// new tokens are the mean of those of all old ones, also in the average, and their moments zero.
/// bad_data: a value is NaN or infinite; otherwise errors as check_derivable(),
/// Checkpoint::stream_unit() and publish_checkpoint().
Status derive_checkpoint(Checkpoint& from, bool with_optimizer, const CheckpointInfo& info,
                         const std::string& checkpoints, FileOps& ops = system_files());

}  // namespace simplescale
