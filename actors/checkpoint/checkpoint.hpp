// The checkpoint actor of a node: takes private copies of pinned states and has them written to
// disk in the background.
//
// Runs detached (it copies gigabytes); its writer is a detached actor of its own, so that a slow
// disk delays neither copies nor training. Of each shard one copy waits at most: where the disk
// takes longer than the next checkpoint (or hangs), a newer one takes its place. In:
// local::SaveShard. Out, to the node: ShardSaved.
#pragma once

#include <caf/all.hpp>
#include <map>
#include <memory>
#include <string>

#include "actors/checkpoint/state_store.hpp"
#include "actors/local.hpp"
#include "runtime/checkpoint/file_ops.hpp"

namespace simplescale {

struct CheckpointOptions {
  std::string folder;  // <run>/checkpoints
  ModelShape shape;
  size_t shards = 1;
  std::shared_ptr<FileOps> files = std::make_shared<FileOps>();  // of the writer
};

namespace local {
/// writer -> checkpoint actor.
struct WriterFree {};
}  // namespace local

struct CheckpointActorState {
  static inline const char* name = "checkpoint";
  caf::actor writer;
  bool writing = false;
  std::map<uint64_t, local::WriteShard> waiting;  // by shard
};

caf::behavior checkpoint_actor(caf::stateful_actor<CheckpointActorState>* self, caf::actor node,
                               CheckpointOptions options);

/// One for a job, beside the supervisor: publishes a checkpoint when all its shards are there, and
/// prunes old ones. Detached. In: local::ShardWritten. Out: local::Published.
struct PublisherOptions {
  std::string folder;
  ModelShape shape;
  size_t shards = 1;
  uint64_t seed = 0;
  std::string precision, resume, tokenizer;
  uint64_t tokens_per_sample = 0;
  size_t keep = 3;
  uint64_t permanent_every_steps = 0;
};

struct PublisherState;
caf::actor spawn_publisher(caf::actor_system& system, caf::actor supervisor,
                           PublisherOptions options);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::WriterFree)
