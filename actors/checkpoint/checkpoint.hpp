// The checkpoint actor of a node copies pinned states, and has the copies written to disk in the
// background. The publisher makes one checkpoint of all nodes' shards.
//
// The checkpoint actor runs detached, because it copies gigabytes. Its writers are detached actors
// of their own, so a slow disk delays neither copies nor training. The writers write different
// shards at the same time, because most file systems let only one thread at a time write to a file.
// At most one copy of each shard waits for a writer: a newer copy replaces it. A state without a
// pin, which no trainer writes, is copied once a writer is free for it. In: local::SaveShard. Out,
// to the node: one ShardSaved for each SaveShard.
//
// Threads of a save: cores_beside_training(), and all_cores() after the last step. Shards that are
// written at the same time share them. The copy of a further shard uses as many threads again.
#pragma once

#include <atomic>
#include <caf/all.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/checkpoint/state_store.hpp"
#include "actors/local.hpp"
#include "runtime/base/retries.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/file_ops.hpp"

namespace simplescale {

struct CheckpointOptions {
  std::string folder;  // <run>/checkpoints
  ModelShape shape;
  std::shared_ptr<FileOps> files = std::make_shared<FileOps>();  // used by the writers
  size_t writers = 1;
  Retries retries;  // for writing a shard, after an I/O error
};

namespace local {
/// The checkpoint actor sends this to a writer: write a shard from a private copy of its state.
struct WriteShard {
  uint64_t generation, step, shard;
  StateStore::Copy state;
  uint32_t shards;
  size_t cores;        // for all shards
  size_t threads = 1;  // for this shard
};

/// A writer sends this to the checkpoint actor: the shard is written, or failed; the writer is
/// free.
struct WriterFree {
  uint64_t shard;
};

/// The supervisor sends this to the publisher: a generation begins with `step`, and later steps of
/// older generations are rolled back.
struct StepsUndone {
  uint64_t generation, step;
};

/// The supervisor sends this to the publisher: remove the checkpoints that are not kept. step: the
/// newest one that the supervisor would begin with. Later ones may be published already, but do not
/// replace older ones yet. Answered by CheckpointsLeft if there is a checkpoint. An order that a later
/// one has replaced is skipped, so that a slow disk does not have more of them each time.
struct PruneCheckpoints {
  uint64_t step;
  std::shared_ptr<const std::atomic<bool>> replaced;  // none: false
};

/// The publisher sends this to the supervisor: the steps of all checkpoints on disk, the newest
/// last.
struct CheckpointsLeft {
  std::vector<uint64_t> steps;
};
}  // namespace local

struct CheckpointActorState {
  static inline const char* name = "checkpoint";
  std::vector<caf::actor> free;                   // writers
  std::map<uint64_t, size_t> writing;             // threads of each shard that is being written
  std::map<uint64_t, local::WriteShard> waiting;  // by shard
  std::deque<local::SaveShard> in_memory;         // states without a pin, not copied yet
};

caf::behavior checkpoint_actor(caf::stateful_actor<CheckpointActorState>* self, caf::actor node,
                               CheckpointOptions options);

/// Options of the publisher. A job has one publisher, in the supervisor's process. It publishes a
/// checkpoint once all its shards are written, and prunes old ones when ordered. It removes what
/// failed saves have left, and shards that a newer generation made useless. Detached. In:
/// local::ShardWritten (a repeated report counts once); local::StepValidated, before the step's
/// last shard; local::StepsUndone, after which no checkpoint of those steps counts any more;
/// local::PruneCheckpoints. Out: local::Published, local::CheckpointsLeft.
struct PublisherOptions {
  std::string id;               // as in publish_checkpoint()
  std::function<bool()> leads;  // as in LeaderFiles
  std::string folder;
  ModelShape shape;
  uint64_t seed = 0;
  std::string precision, tokenizer;  // as in CheckpointInfo
  StateFormat state;                 // as in CheckpointInfo
  uint64_t tokens_per_sample = 0;
  KeepRules keep = {.keep = 3};  // until_step is that of local::PruneCheckpoints
  Retries retries;               // for publishing, after an I/O error
  /// CheckpointInfo::resume of a checkpoint that is published now.
  std::function<std::string(uint64_t next_sample)> resume_at = [](uint64_t) { return "{}"; };
};

struct PublisherState;
caf::actor spawn_publisher(caf::actor_system& system, caf::actor supervisor,
                           PublisherOptions options);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::WriteShard)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::WriterFree)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::StepsUndone)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::PruneCheckpoints)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::CheckpointsLeft)
