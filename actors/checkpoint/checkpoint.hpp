// The checkpoint actor of a node: copies pinned states and has the copies written to disk in the
// background. And the publisher, which makes one checkpoint of all nodes' shards.
//
// The checkpoint actor runs detached, since it copies gigabytes. Its writers are detached actors of
// their own, so that a slow disk delays neither copies nor training. They write different shards at
// the same time, since most file systems let only one thread at a time write to a file. At most one
// copy of each shard waits for a writer: a newer copy replaces it. The actor copies a state without
// a pin, which no trainer writes, when a writer is free for it. In: local::SaveShard. Out, to the
// node: one ShardSaved for each SaveShard.
//
// Threads of a save: cores_beside_training(), and all_cores() after the last step. The shards that
// are written at the same time share them; the copy of a further one takes as many again.
#pragma once

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
  size_t shards = 1;
  std::shared_ptr<FileOps> files = std::make_shared<FileOps>();  // the writers'
  size_t writers = 1;
  Retries retries;  // of writing a shard, after an I/O error
};

namespace local {
/// checkpoint actor -> one of its writers: write a shard from a private copy of its state.
struct WriteShard {
  uint64_t generation, step, shard;
  StateStore::Copy state;
  size_t cores;        // for all shards
  size_t threads = 1;  // for this one
};

/// writer -> checkpoint actor: the shard is written, or failed; ready for the next one.
struct WriterFree {
  uint64_t shard;
};

/// supervisor -> publisher: a generation begins with `step`; later steps of older generations are
/// undone.
struct StepsUndone {
  uint64_t generation, step;
};

/// supervisor -> publisher: remove the checkpoints that are not kept. step: the newest one that the
/// supervisor would begin with; later ones may be published already, and replace none yet. Answered
/// by CheckpointsLeft if there is a checkpoint.
struct PruneCheckpoints {
  uint64_t step;
};

/// publisher -> supervisor: the steps of all checkpoints on disk, the newest last.
struct CheckpointsLeft {
  std::vector<uint64_t> steps;
};
}  // namespace local

struct CheckpointActorState {
  static inline const char* name = "checkpoint";
  std::vector<caf::actor> free;                   // writers
  std::map<uint64_t, size_t> writing;             // the threads of each shard that a writer writes
  std::map<uint64_t, local::WriteShard> waiting;  // by shard
  std::deque<local::SaveShard> in_memory;         // without a pin: copied when it is their turn
};

caf::behavior checkpoint_actor(caf::stateful_actor<CheckpointActorState>* self, caf::actor node,
                               CheckpointOptions options);

/// Options of the publisher, of which there is one per job, in the supervisor's process. It
/// publishes a checkpoint once all its shards are written, and prunes old ones when it is told to.
/// Removes what a save has left that failed, or that a newer generation has made useless. Detached.
/// In: local::ShardWritten, of which a repeated report counts once; local::StepValidated, before
/// the step's last shard; local::StepsUndone, after which no checkpoint of those steps counts any
/// more; local::PruneCheckpoints. Out: local::Published, local::CheckpointsLeft.
struct PublisherOptions {
  std::string id;               // as in publish_checkpoint()
  std::function<bool()> leads;  // as in LeaderFiles
  std::string folder;
  ModelShape shape;
  size_t shards = 1;
  uint64_t seed = 0;
  std::string precision, tokenizer;  // as in CheckpointInfo
  StateFormat state;                 // likewise
  uint64_t tokens_per_sample = 0;
  KeepRules keep = {.keep = 3};  // until_step is that of local::PruneCheckpoints
  Retries retries;               // of publishing, after an I/O error
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
