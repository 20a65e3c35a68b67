// The first checkpoint of a run that begins with the weights of another one (run.from). Blocks on
// the disk; memory: the largest unit of the model.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace simplescale {

/// Adds the checkpoint of info.step to the folder `checkpoints`: the weights of `from`, and if
/// with_optimizer its moments; otherwise the moments are zero. info: step, shape and other facts of
/// the new checkpoint; with info.state.ema also the average of `from`, which then must have one. The
/// block_size may differ. The vocabulary may be larger: the embeddings and the output weights of
/// new tokens are the mean of those of all old ones, also in the average, and their moments zero.
/// bad_config: `from` has another shape, with the keys of [model] to set; otherwise errors as
/// Checkpoint::stream_unit() and publish_checkpoint().
Status derive_checkpoint(Checkpoint& from, bool with_optimizer, const CheckpointInfo& info,
                         const std::string& checkpoints, FileOps& ops = system_files());

}  // namespace simplescale
