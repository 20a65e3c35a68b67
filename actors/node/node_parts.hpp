// Declarations for the files of the node actor. Each file handles the messages of one subject:
//
//   node.cpp              start, stop, actors that die
//   node_tree.cpp         the supervision tree and the trainers' command line
//   node_processes.cpp    trainer processes: slots, signs of life, death
//   node_generations.cpp  generations: join, leave, steps, the dataloader
//   node_copies.cpp       copies of trainers' states: checkpoints and peer nodes
//   node_observe.cpp      logs, health, traces, diagnosis, injected faults
//
// All of it runs in the node actor.
#pragma once

#include <string>
#include <utility>

#include "actors/node/join.hpp"
#include "actors/node/node.hpp"

namespace simplescale::node {

using Self = caf::stateful_actor<NodeState>;

// Handlers of one subject each.
caf::message_handler process_handlers(Self* self);
caf::message_handler generation_handlers(Self* self);
caf::message_handler copy_handlers(Self* self);
caf::message_handler observe_handlers(Self* self);

/// "n1/p2" as a part of a file's or segment's name: "n1.p2".
std::string with_dots(std::string process);
caf::actor spawn_tree(Self* self);
/// CPUs of slot "n1.0"; empty: all CPUs of the agent.
CpuList cpus_of(const NodeOptions& options, const std::string& slot);

/// Kills the process with SIGKILL. TrainerDown will give this reason.
void kill_process(Self* self, const std::string& id, const Reason& reason);

/// Tells all processes that are up with which instructions the run computes, once that is known.
void tell_instructions(Self* self, InstructionSet set);

void dataloader_started(Self* self, const caf::actor& dataloader);

void checkpoint_started(Self* self, const caf::actor& checkpoint);
/// Reports the saves under way as failed, because the actor that saved them is gone.
void checkpoint_ended(Self* self);
/// Orders a copy of a step's state for a checkpoint, if the trainer has pinned the state for it.
/// last: the trainers have finished.
void save_state(Self* self, const std::string& trainer, uint64_t generation, uint64_t step,
                bool pinned, bool last);
/// Orders saves from this node's memory of the shards that the order assigns to this node.
/// JoinGeneration::source is JoinSource::agents.
void save_from_memory(Self* self, const JoinGeneration& job);
/// Orders a copy of a step's state for a peer node, if the trainer has pinned the state for it.
void stage_state(Self* self, const StepDone& done);
void start_peer_copies(Self* self);
/// fence: as in PeerCopies.
void report_peer_copies(Self* self, uint64_t fence = 0);
/// JOB-1: tells the supervisor which steps the memory of `trainer` holds, while its process is
/// down. The agent owns that memory, so the memory outlives the process.
void report_memory(Self* self, const std::string& trainer);
/// All copies in the peer store and in the memory of this node's trainers.
std::vector<LocalMemory> local_memory(const NodeState& state);

std::unique_ptr<LogScanner> scan_logs(Self* self);
/// Moves the step's times from `done` to the next NodeHealth.
void keep_step_times(Self* self, StepDone& done);

template <class Message>
void to_supervisor(Self* self, Message&& message) {
  self->send(self->state.supervisor, std::forward<Message>(message));
}

/// Does nothing if the trainer is down.
template <class Message>
void to_trainer(Self* self, const std::string& trainer, Message&& message) {
  if (const Process* process = self->state.table.trainer(trainer))
    self->send(process->actor, std::forward<Message>(message));
}

template <class Message>
void to_trainers(Self* self, const Message& message) {
  for (const auto& [trainer, slot] : self->state.table.slots()) to_trainer(self, trainer, message);
}

/// A handler that relays Message to the supervisor.
template <class Message>
auto relay_to_supervisor(Self* self) {
  return [self](const Message& message) { to_supervisor(self, message); };
}

}  // namespace simplescale::node
