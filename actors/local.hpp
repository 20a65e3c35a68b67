// Messages between actors of one process. They never travel, so they have no twin in the protocol.
#pragma once

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/training/train_state.hpp"

namespace simplescale {
class PinnedState;
}

namespace simplescale::local {

/// node -> dataloader: fill the rings for a generation of so many groups.
struct FillRings {
  uint64_t generation, start_step, groups;
  struct Trainer {
    uint64_t group, shard;
  };
  std::vector<Trainer> trainers;  // ring i belongs to trainers[i]
};

/// A child of the node's tree lives, perhaps again.
struct ChildUp {
  std::string name;
  caf::actor child;
};

/// A trainer process ("n1/p2") has been started.
struct ProcessStarted {
  std::string process;
  int32_t pid;
};

/// It is dying: nothing more is to be expected of it, but its memory may still be in use.
struct ProcessDying {
  std::string process;
  int32_t pid;
};

/// It has ended (pid 0: could not be started); its actor is about to quit and to be restarted by
/// its supervisor.
struct ProcessEnded {
  std::string process;
  int32_t pid;
  bool clean;
  std::string how;
};

/// The operating system asks this process to stop (SIGINT, SIGTERM, SIGUSR1).
struct StopSignal {
  int signal;
};

/// node -> checkpoint: the pinned side of a trainer's state is to be saved.
struct SaveShard {
  std::shared_ptr<PinnedState> state;
  uint64_t generation, step, shard;
};

/// node -> peer copies: the pinned side of a trainer's state is to be staged for a peer node.
struct StageCopy {
  std::string trainer;
  std::shared_ptr<PinnedState> state;
  uint64_t generation, step, shard;
};

/// checkpoint -> its writer: a private copy of a side.
struct WriteShard {
  uint64_t generation, step, shard;
  std::vector<float> state;  // params, exp_avg, exp_avg_sq
};

/// supervisor -> publisher: what a writer said of one shard.
struct ShardWritten {
  uint64_t generation, step, next_sample;
  std::string record, error;
};

/// publisher -> supervisor.
struct Published {
  uint64_t step;
  std::string folder, error;
  uint64_t generation;
};

struct Tick {};
/// supervisor -> itself: an injected death.
struct Die {};
/// node -> node: time to look whether its trainers live.
struct Look {};

/// The epoch watch -> supervisor: a look at the epoch files. question: 0, or the decision that
/// waits for it.
struct EpochSeen {
  uint64_t question;
  bool deposed;
  uint64_t newest;
  std::set<std::string> votes = {};  // nodes that vote against this epoch
};

/// supervisor -> itself: a decision has waited long enough.
struct WaitedLongEnough {
  uint64_t sequence;
};

}  // namespace simplescale::local

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::FillRings)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::ChildUp)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::ProcessStarted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::ProcessDying)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::ProcessEnded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::StopSignal)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::SaveShard)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::StageCopy)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::WriteShard)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::ShardWritten)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::Published)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::Tick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::Die)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::Look)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::EpochSeen)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::WaitedLongEnough)
