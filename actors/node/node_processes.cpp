#include <signal.h>
#include <sys/resource.h>

#include "actors/clock.hpp"
#include "actors/local.hpp"
#include "actors/node/node_parts.hpp"
#include "runtime/base/log.hpp"
#include "runtime/observe/trace.hpp"

namespace simplescale::node {
namespace {

/// The prefix of the names of all shared-memory segments that a process creates.
std::string segment_prefix(const NodeState& s, const std::string& process, int32_t pid) {
  return "ss-" + s.options.instance + "-" + with_dots(process) + "-" + std::to_string(pid);
}

void report_trainer_up(Self* self, const std::string& slot) {
  NodeState& s = self->state;
  const Process* process = s.table.trainer(slot);
  if (!process) return;
  s.options.states->trainer_restarted(slot, process->pid);
  to_supervisor(self, TrainerUp{slot, process->pid, process->data_address,
                                s.options.states->held(slot), s.table.slot(slot)->generation});
}

/// Gives a process that has a slot the slot's CPUs and the agent's priority.
void promote_process(Self* self, const std::string& id) {
  NodeState& s = self->state;
  const Process* process = s.table.process(id);
  if (!process || process->slot.empty()) return;
  s.liveness.set_in_slot(id);
  if (process->pid == 0) return;
  if (Status status = set_affinity(process->pid, cpus_of(s.options, process->slot)); !status.ok())
    log::debug("{} stays on its CPUs: {}", id, status.message());
  if (may_lower_nice())
    if (Status status = set_nice(process->pid, getpriority(PRIO_PROCESS, 0)); !status.ok())
      log::debug("{} stays at low priority: {}", id, status.message());
}

void fill_slots(Self* self) {
  NodeState& s = self->state;
  for (const std::string& slot : s.table.fill_slots()) {
    const std::string id = s.table.slot(slot)->process;
    log::info("{} becomes {}", id, slot);
    trace::instant("becomes " + slot, id);
    promote_process(self, id);
    report_trainer_up(self, slot);
  }
}

void process_up(Self* self, const TrainerHello& hello) {
  NodeState& s = self->state;
  const std::string& id = hello.trainer;
  Process* process = s.table.process(id);
  if (!process) return log::warn("ignored a hello of {}: this node has no such process", id);
  process->pid = hello.pid;
  process->up = true;
  process->data_address = hello.data_address;
  process->actor = caf::actor_cast<caf::actor>(self->current_sender());
  self->monitor(process->actor);
  s.liveness.add(now_ms(self), id, hello.pid);
  const std::string prefix = segment_prefix(s, id, hello.pid);
  s.observed.traces.process_up(id, hello.pid, prefix + "-trace");
  // The lifeline reports a death before the kernel has freed the process's memory. Without it,
  // ProcessEnded is the first report.
  Status status = s.lifelines.watch(
      prefix + "-life", [node = caf::actor_cast<caf::actor>(self), id, pid = hello.pid] {
        caf::anon_send(node, local::ProcessDying{id, pid});
      });
  if (!status.ok()) log::warn("{}", status.message());
  if (s.instructions != InstructionSet::automatic)
    self->send(process->actor, UseInstructions{s.instructions});
  if (!process->slot.empty()) report_trainer_up(self, process->slot);
}

/// Tells the warm processes the GPUs of all trainers of this node, because any of these trainers
/// may die.
void tell_gpus(Self* self) {
  NodeState& s = self->state;
  const std::vector<uint64_t> gpus = s.table.gpus();
  if (gpus.empty()) return;
  for (const auto& [id, _] : s.table.processes()) {
    Process& process = *s.table.process(id);
    if (!process.up || !process.slot.empty() || process.told_gpus == gpus) continue;
    process.told_gpus = gpus;
    self->send(process.actor, PrepareGpus{gpus});
  }
}

void trainer_progress(Self* self, const TrainerProgress& progress) {
  NodeState& s = self->state;
  s.liveness.add_progress(now_ms(self), progress.trainer, progress);
  if (Process* process = s.table.process(progress.trainer)) process->gpu = progress.gpu;
  if (s.options.config.supervision.warm_context) tell_gpus(self);
}

void process_dying(Self* self, const local::ProcessDying& dying) {
  NodeState& s = self->state;
  Process* process = s.table.process(dying.process);
  if (s.shutdown || !process || process->pid != dying.pid) return;
  process->dying = true;
  if (process->slot.empty()) return;
  trace::instant("dying", process->slot);
  if (s.observed.logs) s.observed.logs->scan_now();
  to_supervisor(
      self, TrainerDown{process->slot, process->kill_reason.value_or(reason_of(
                                           ReasonKind::process_ended, "its process is dying"))});
}

void process_ended(Self* self, const local::ProcessEnded& end) {
  NodeState& s = self->state;
  const Process* process = s.table.process(end.process);
  if (s.shutdown || !process || process->pid != end.pid) return;
  const Reason how = process->kill_reason.value_or(end.how);
  const std::string name = s.table.name_of(end.process);
  const std::string slot = s.table.process_ended(end.process);
  s.liveness.remove(end.process);
  trace::instant("ended", name);
  s.observed.traces.process_ended(end.process, name);
  if (s.observed.logs) s.observed.logs->scan_now();  // read its last lines
  log::warn("{}{}{} has ended: {}", end.process, slot.empty() ? "" : ", which was ", slot,
            how.text);
  if (slot.empty()) return;
  to_supervisor(self, TrainerDown{slot, how});
  report_memory(self, slot);
  fill_slots(self);
}

void check_liveness(Self* self) {
  NodeState& s = self->state;
  self->delayed_send(self, std::chrono::milliseconds(s.options.config.supervision.heartbeat_ms),
                     local::CheckLiveness{});
  if (s.shutdown) return;
  for (const auto& verdict : s.liveness.check(now_ms(self), process_state))
    kill_process(self, verdict.process, verdict.reason);
}

void report_progress(Self* self, uint64_t generation) {
  NodeState& s = self->state;
  NodeProgress report{s.options.name(), s.liveness.progress(now_ms(self), generation)};
  for (TrainerProgress& progress : report.trainers)
    progress.trainer = s.table.name_of(progress.trainer);
  to_supervisor(self, std::move(report));
}

}  // namespace

void kill_process(Self* self, const std::string& id, const Reason& reason) {
  Process* process = self->state.table.process(id);
  if (!process || process->pid == 0) return;
  log::warn("killing {}{}{}: {}", id, process->slot.empty() ? "" : ", which is ", process->slot,
            reason.text);
  if (!process->kill_reason) process->kill_reason = reason;
  kill(process->pid, SIGKILL);
}

void tell_instructions(Self* self, InstructionSet set) {
  NodeState& s = self->state;
  if (set == s.instructions || set == InstructionSet::automatic) return;
  s.instructions = set;
  for (const auto& [id, process] : s.table.processes())
    if (process.up) self->send(process.actor, UseInstructions{set});
}

caf::message_handler process_handlers(Self* self) {
  return {
      // From trainers.
      [self](const TrainerHello& hello) { process_up(self, hello); },
      [self](const TrainerProgress& progress) { trainer_progress(self, progress); },
      // From the processes' own actors and lifelines.
      [self](const local::ProcessStarted& start) {
        if (Process* process = self->state.table.process(start.process)) process->pid = start.pid;
        promote_process(self, start.process);
      },
      [self](const local::ProcessDying& dying) { process_dying(self, dying); },
      [self](const local::ProcessEnded& end) { process_ended(self, end); },
      // From the supervisor.
      [self](const KillTrainer& order) {
        if (const Slot* slot = self->state.table.slot(order.trainer))
          kill_process(self, slot->process, order.reason);
      },
      [self](const ReportProgress& order) { report_progress(self, order.generation); },
      // From the clock.
      [self](const local::CheckLiveness&) { check_liveness(self); },
  };
}

}  // namespace simplescale::node
