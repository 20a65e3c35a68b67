// Messages between actors of one process. They never travel over the network, so they have no twin
// in protocol.capnp.
#pragma once

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "transport/caf/message_types.hpp"
#include "transport/protocol/reason.hpp"

namespace simplescale {
class StatePin;
}

namespace simplescale::local {

/// Node's tree -> node: a child actor ("dataloader", "checkpoint") has been started or restarted.
struct ChildStarted {
  std::string name;
  caf::actor actor;
};

/// trainer_process -> node: trainer process "n1/p2" has been started.
struct ProcessStarted {
  std::string process;
  int32_t pid;
};

/// Lifeline watcher -> node: early death notice of a process. ProcessEnded follows once it is
/// reaped; until then its memory may still be in use.
struct ProcessDying {
  std::string process;
  int32_t pid;
};

/// trainer_process -> node: the process has been reaped, or could not be started (pid 0). The
/// sending actor quits next, and its supervisor restarts it.
struct ProcessEnded {
  std::string process;
  int32_t pid;
  Reason how;
};

/// Signal thread -> node: the operating system asks this process to stop. signal: SIGINT, SIGTERM,
/// SIGUSR1, or SIGQUIT, which also stands for a second SIGINT and means: at once.
struct StopSignal {
  int signal;
};

/// node -> checkpoint: save the pinned side of a trainer's state. Without a pin: the copy of the step
/// in `segment`, which no trainer writes. last: no trainer computes, so the save may use all cores.
struct SaveShard {
  std::shared_ptr<StatePin> pin;
  uint64_t generation, step, shard;
  bool last = false;
  std::string segment = {};
  uint32_t shards = 1;
};

/// node -> peer copies: stage the pinned side of a trainer's state for a peer node.
struct StageCopy {
  std::string trainer;
  std::shared_ptr<StatePin> pin;
  uint64_t generation, step;
};

/// supervisor -> publisher: the result of writing one of `shards` shards. record: the shard's record as JSON, if
/// `error` is empty.
struct ShardWritten {
  uint64_t generation, step, next_sample;
  std::string record, error;
  uint64_t shard = 0;
  uint32_t shards = 1;
};

/// supervisor -> publisher: the validation loss of a step, which its checkpoint is to record.
struct StepValidated {
  uint64_t step;
  double loss;
};

/// publisher -> supervisor: a checkpoint has been published in `folder`, or, if `error` is not
/// empty, has failed. signature: the hash of the numerics signature in it.
struct Published {
  uint64_t step;
  std::string folder, error;
  uint64_t generation;
  std::string signature = {};
};

/// An actor's timer.
struct Tick {};
/// supervisor -> itself: the injected fault kill_supervisor.
struct Die {};
/// node -> itself, every heartbeat: check that the trainers live.
struct CheckLiveness {};

/// Term watch -> supervisor: what the term files say. question: the decision that waits for this
/// answer, or 0.
struct TermSeen {
  uint64_t question;
  bool deposed;                      // a newer term has been claimed
  uint64_t newest;                   // term
  std::set<std::string> votes = {};  // nodes that vote against the supervisor's term
  bool answered = true;              // false: the files could not be read, and say nothing
};

/// supervisor -> itself: the decision `sequence` has waited long enough for its answers.
struct WaitedLongEnough {
  uint64_t sequence;
};

}  // namespace simplescale::local

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::ChildStarted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::ProcessStarted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::ProcessDying)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::ProcessEnded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::StopSignal)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::SaveShard)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::StageCopy)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::ShardWritten)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::StepValidated)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::Published)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::Tick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::Die)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::CheckLiveness)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::TermSeen)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::WaitedLongEnough)
