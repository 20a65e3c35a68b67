#include "actors/local.hpp"
#include "actors/node/node_parts.hpp"

namespace simplescale::node {
namespace {

/// Takes over the pin of the trainer that sent the current message. Null if the trainer has another
/// process now.
std::shared_ptr<StatePin> take_pin(Self* self, const std::string& trainer,
                                   const StateVersion& step) {
  const NodeState& s = self->state;
  const Process* process = s.table.trainer(trainer, self->current_sender());
  return process ? std::make_shared<StatePin>(s.options.states, trainer, process->pid, step)
                 : nullptr;
}

/// Orders a save from the checkpoint actor. Reports the save as failed if that actor is down.
void save(Self* self, local::SaveShard job) {
  NodeState& s = self->state;
  const ShardSaved failed{
      job.generation, job.step, job.shard, "", "the checkpoint actor is being restarted",
      job.shards};
  if (!s.checkpoint) return to_supervisor(self, failed);
  s.saving.push_back(failed);
  self->send(s.checkpoint, std::move(job));
}

void state_saved(Self* self, const ShardSaved& saved) {
  std::erase_if(self->state.saving, [&](const ShardSaved& asked) {
    return asked.generation == saved.generation && asked.step == saved.step &&
           asked.shard == saved.shard;
  });
  to_supervisor(self, saved);
}

/// Handles another node's offer of a copy.
void copy_offered(Self* self, const OfferCopy& offer) {
  const NodeState& s = self->state;
  auto answer = self->make_response_promise();
  if (s.peers && !s.shutdown)
    answer.delegate(s.peers, offer);
  else
    answer.deliver(AcceptCopy{false, s.options.name() + " keeps no copies for peers", {}});
}

}  // namespace

void checkpoint_started(Self* self, const caf::actor& checkpoint) {
  checkpoint_ended(self);  // its `down` message may come later than this one
  self->state.checkpoint = checkpoint;
  self->monitor(checkpoint);
}

void checkpoint_ended(Self* self) {
  NodeState& s = self->state;
  s.checkpoint = nullptr;
  for (const ShardSaved& failed : std::exchange(s.saving, {}))
    if (!s.shutdown) to_supervisor(self, failed);
}

void save_state(Self* self, const std::string& trainer, uint64_t generation, uint64_t step,
                bool pinned, bool last) {
  NodeState& s = self->state;
  auto pin = pinned ? take_pin(self, trainer, {step, generation}) : nullptr;
  const auto copy = s.options.states->held(trainer, {step, generation});
  if (!pin || !copy) return;
  save(self, {std::move(pin), generation, step, copy->shard, last, "", copy->shards});
}

void save_from_memory(Self* self, const JoinGeneration& job) {
  const NodeState& s = self->state;
  for (const Transfer& part : job.transfers) {
    if (part.source != s.options.name()) continue;
    std::string segment = segment_of_copy(job, local_memory(s), part);
    if (segment.empty())
      to_supervisor(self,
                    ShardSaved{job.generation, part.step, part.shard, "",
                               s.options.name() + " holds no copy of the shard", part.shards});
    else
      save(self,
           {nullptr, job.generation, part.step, part.shard, true, std::move(segment), part.shards});
  }
}

void stage_state(Self* self, const StepDone& done) {
  NodeState& s = self->state;
  auto pin = done.copy ? take_pin(self, done.trainer, {done.step, done.generation}) : nullptr;
  if (!pin || !s.peers) return;  // dropping `pin` releases it
  self->send(s.peers, local::StageCopy{done.trainer, std::move(pin), done.generation, done.step});
}

void start_peer_copies(Self* self) {
  const NodeOptions& o = self->state.options;
  if (o.peers) self->state.peers = spawn_peer_copies(self, {o.name(), o.peers, o.states, o.find});
}

void report_peer_copies(Self* self, uint64_t fence) {
  const NodeOptions& o = self->state.options;
  if (!o.peers && fence == 0) return;
  to_supervisor(
      self,
      PeerCopies{o.name(), o.peers ? o.peers->store.held() : std::vector<StateCopy>(), fence});
}

void report_memory(Self* self, const std::string& trainer) {
  NodeState& s = self->state;
  to_supervisor(self, TrainerIdle{.trainer = trainer,
                                  .generation = s.ended,
                                  .held = s.options.states->held(trainer),
                                  .reason = "its agent reports its memory"});
}

std::vector<LocalMemory> local_memory(const NodeState& s) {
  const NodeOptions& o = s.options;
  std::vector<LocalMemory> memory;
  if (o.peers)
    for (const StateCopy& copy : o.peers->store.held())
      memory.push_back(
          {"", {}, {copy}, o.peers->store.segment(layout_of(copy.shards, copy.shard), copy.step)});
  for (const auto& [trainer, slot] : s.table.slots()) {
    const Process* process = s.table.trainer(trainer);
    LocalMemory own{trainer, {}, {}, o.states->segment(trainer)};
    if (process) own.data_address = process->data_address;
    own.copies = o.states->held(trainer);
    memory.push_back(std::move(own));
  }
  return memory;
}

caf::message_handler copy_handlers(Self* self) {
  return {
      // From the supervisor.
      [self](const SaveCheckpoint& order) { to_trainer(self, order.trainer, order); },
      [self](const CopyToPeers& order) {
        if (!self->state.peers) return;
        self->state.options.peers->ordered(order.generation, order.step);
        self->send(self->state.peers, order);
      },
      // From the checkpoint actor and the peer copies actor.
      [self](const ShardSaved& saved) { state_saved(self, saved); },
      relay_to_supervisor<CopySent>(self),
      relay_to_supervisor<PeerCopies>(self),
      // From another node.
      [self](const OfferCopy& offer) { copy_offered(self, offer); },
  };
}

}  // namespace simplescale::node
