#include <algorithm>

#include "actors/dataloader/dataloader.hpp"
#include "actors/node/join.hpp"
#include "actors/node/memory_sender.hpp"
#include "actors/node/node_parts.hpp"
#include "actors/restart/child_supervisor.hpp"
#include "runtime/base/log.hpp"

namespace simplescale::node {
namespace {

/// Reports that a trainer has left a generation, and what its memory holds.
void report_idle(Self* self, TrainerIdle idle) {
  NodeState& s = self->state;
  if (Slot* slot = s.table.slot(idle.trainer); slot && slot->generation <= idle.generation)
    slot->generation = 0;
  if (idle.fault == Fault::bad_copy)
    report_peer_copies(self);  // the copy may be one of this node's
  idle.held = s.options.states->held(idle.trainer);
  to_supervisor(self, std::move(idle));
}

void trainer_idle(Self* self, TrainerIdle& idle) {
  if (idle.trainer.empty())  // the process has never joined a generation: it knows no name
    for (const auto& [id, process] : self->state.table.processes())
      if (process.up && process.actor == self->current_sender()) idle.trainer = process.slot;
  if (!idle.trainer.empty()) report_idle(self, std::move(idle));
}

void fence(Self* self, uint64_t generation) {
  const NodeOptions& o = self->state.options;
  if (o.peers) return o.peers->fence(generation);
  if (o.plane && generation > 0) o.plane->abort(generation - 1, "a new generation begins");
}

void join(Self* self, const JoinGeneration& job) {
  NodeState& s = self->state;
  const NodeOptions& o = s.options;
  std::vector<LocalTrainer> locals;
  for (const auto& [name, slot] : s.table.slots())
    if (const Process* process = s.table.trainer(name))
      locals.push_back({name, o.states->segment(name), process->data_address});
  if (o.plane) locals.push_back({o.name(), "", o.plane->address()});
  tell_instructions(self, job.instructions);
  fence(self, job.generation);
  s.ended = std::max(s.ended, job.generation);
  if (job.source == JoinSource::agents) return save_from_memory(self, job);
  auto orders = orders_of(job, o.plan, locals, [&](const Transfer& transfer) {
    return segment_of_copy(job, local_memory(s), transfer);
  });
  if (!orders.ok()) {
    log::error("{}", orders.status().message());
    report_peer_copies(self);  // the order may name a copy that this node does not have
    const bool lacks_copy = orders.status().code() == Code::not_found;
    for (const LocalTrainer& local : locals)
      report_idle(self, {.trainer = local.name,
                         .generation = job.generation,
                         .fault = lacks_copy ? Fault::failed : Fault::bad_order,
                         .reason = {orders.status().message()}});
    return;
  }
  if (!orders->fill.trainers.empty()) {
    s.fill = orders->fill;
    if (s.dataloader) self->send(s.dataloader, s.fill);  // else dataloader_started() sends it
  }
  for (JoinTrainer& order : orders->trainers) {
    if (order.trainer == o.name()) {
      send_from_memory(self, o.plane, std::move(order), units_of(o.plan.shape),
                       static_cast<int>(o.config.parallel.collective_timeout_ms));
      continue;
    }
    order.ring_segment = o.filler->name();
    s.table.slot(order.trainer)->generation = order.generation;
    to_trainer(self, std::string(order.trainer), std::move(order));
  }
}

void step_done(Self* self, StepDone& done) {
  NodeState& s = self->state;
  keep_step_times(self, done);
  to_supervisor(self, done);
  if (const Slot* slot = s.table.slot(done.trainer)) {
    s.liveness.add_step(slot->process, done.step_ms);
    // A committed step renews the restart budget of the process.
    if (Process* process = s.table.process(slot->process);
        process && std::exchange(process->unproven, false))
      self->send(s.tree, restart::Progress{slot->process});
  }
  save_state(self, done.trainer, done.generation, done.step, done.save, false);
  stage_state(self, done);
}

}  // namespace

void dataloader_started(Self* self, const caf::actor& dataloader) {
  NodeState& s = self->state;
  s.dataloader = dataloader;
  if (s.fill.generation > 0) self->send(s.dataloader, s.fill);
}

caf::message_handler generation_handlers(Self* self) {
  return {
      // From the supervisor.
      [self](const JoinGeneration& job) { join(self, job); },
      [self](const FenceGeneration& order) {
        NodeState& s = self->state;
        fence(self, order.generation);
        if (order.generation > 0) s.ended = std::max(s.ended, order.generation - 1);
        for (const auto& [trainer, slot] : s.table.slots())
          if (!s.table.trainer(trainer)) report_memory(self, trainer);
        report_peer_copies(self, order.generation);
        to_trainers(self, order);
      },
      [self](const LeaveGeneration& order) { to_trainers(self, order); },
      [self](const StopTraining& order) { to_trainers(self, order); },
      // From trainers.
      [self](TrainerIdle& idle) { trainer_idle(self, idle); },
      relay_to_supervisor<TrainerReady>(self),
      [self](StepDone& done) { step_done(self, done); },
      relay_to_supervisor<Validated>(self),
      [self](const TrainerFinished& end) {
        to_supervisor(self, end);
        save_state(self, end.trainer, end.generation, end.step, end.save, true);
      },
  };
}

}  // namespace simplescale::node
