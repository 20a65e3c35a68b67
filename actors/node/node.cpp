#include "actors/node/node.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

#include "actors/checkpoint/checkpoint.hpp"
#include "actors/clock.hpp"
#include "actors/dataloader/dataloader.hpp"
#include "actors/node/join.hpp"
#include "actors/node/trainer_process.hpp"
#include "actors/otp/supervisor_actor.hpp"
#include "runtime/base/cpu_affinity.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/shared_memory.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/training/names.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

namespace {

using Self = caf::stateful_actor<NodeState>;

constexpr size_t kEndedKept = 64;
constexpr int kWarmNice = 15;  // of a process that no slot needs yet
// The tree gives up on a process only after the supervisor should have given up on the node.
constexpr uint32_t kLastResort = 10;

/// "n1/p2" as a part of a file's name.
std::string dotted(std::string process) {
  for (char& c : process)
    if (c == '/') c = '.';
  return process;
}

/// How the names of all shared-memory segments of a process begin.
std::string segments_of(const NodeState& s, const std::string& process, pid_t pid) {
  return "ss-" + s.options.instance + "-" + dotted(process) + "-" + std::to_string(pid);
}

/// The CPUs of a slot "n1.0"; empty: those of the node.
CpuList place_of(const NodeOptions& o, const std::string& slot) {
  const auto number = slot_number(slot);
  const auto index = static_cast<size_t>(number.value_or(-1));
  return index < o.places.size() ? o.places[index] : CpuList();
}

/// slot: what it is at first, or "".
SpawnOptions trainer_command(const NodeOptions& o, const std::string& process,
                             const std::string& slot) {
  SpawnOptions command;
  command.argv = {program_folder() + "/simplescale-compute",
                  "trainer",
                  "--run",
                  o.run.path,
                  "--process",
                  process};
  command.environment = {{"SIMPLESCALE_AGENT", o.address}, {"SIMPLESCALE_INSTANCE", o.instance}};
  // What a process writes before it knows which trainer it is; see logs/n1.0.log for the rest.
  command.output = o.run.logs() + "/" + dotted(process) + ".log";
  // Slurm signals every process of a step. The agent knows what to do, and ends this one.
  command.ignore_signals = std::getenv("SLURM_STEP_ID") != nullptr;
  if (may_lower_nice()) command.nice = kWarmNice;
  command.cpus = place_of(o, slot);
  return command;
}

/// The node's supervision tree; its children are spawned by it and known to the node by handle.
caf::actor spawn_tree(Self* self) {
  using namespace supervision;
  NodeState& s = self->state;
  auto node = caf::actor_cast<caf::actor>(self);
  const NodeOptions& o = s.options;
  const SupervisionConfig& config = o.config.supervision;
  SupervisorOptions tree;
  tree.name = o.name();
  tree.spec.strategy = supervision::Strategy::one_for_one;
  tree.spec.intensity = {kLastResort * static_cast<uint32_t>(config.max_restarts + 1),
                         config.within_s * 1000, Intensity::Scope::child};
  tree.spec.back_off = {.first_ms = config.backoff_ms, .max_ms = config.backoff_max_ms};
  tree.children.push_back({{.id = o.name() + "/dataloader"},
                           [node, filler = o.filler, plan = o.plan](caf::scheduled_actor* parent) {
                             caf::actor child = parent->spawn(dataloader_actor, filler, plan);
                             caf::anon_send(node, local::ChildUp{"dataloader", child});
                             return child;
                           }});
  const CheckpointOptions checkpoint{checkpoint_folder(o.config), o.plan.shape,
                                     static_cast<size_t>(o.plan.topology.shards), o.disk};
  tree.children.push_back(
      {{.id = o.name() + "/checkpoint"}, [node, checkpoint](caf::scheduled_actor* parent) {
         caf::actor child = parent->spawn<caf::detached>(checkpoint_actor, node, checkpoint);
         caf::anon_send(node, local::ChildUp{"checkpoint", child});
         return child;
       }});
  for (const auto& [id, process] : s.table.processes())
    tree.children.push_back(
        {{.id = id, .restart = Restart::transient},
         [node, watcher = o.watcher, id,
          command = trainer_command(o, id, process.slot)](caf::scheduled_actor* parent) {
           return parent->spawn(trainer_process, node, watcher, id, command);
         }});
  return self->spawn<caf::monitored>(supervisor_actor, std::move(tree));
}

/// Reports the end, once.
void end(Self* self) {
  NodeState& s = self->state;
  if (s.peers) self->send_exit(s.peers, caf::exit_reason::user_shutdown);
  if (s.options.finished) s.options.finished(s.exit_code, s.exit_reason);
  s.options.finished = nullptr;
  self->quit();
}

template <class Message>
void to_supervisor(Self* self, Message&& message) {
  self->send(self->state.supervisor, std::forward<Message>(message));
}

template <class Message>
void to_trainers(Self* self, const Message& message) {
  NodeState& s = self->state;
  for (const auto& [name, slot] : s.table.slots())
    if (auto found = s.handles.find(slot.process); found != s.handles.end())
      self->send(found->second, message);
}

void leave(Self* self, int exit_code, const std::string& reason) {
  NodeState& s = self->state;
  if (s.stopping) return;
  s.stopping = true;
  s.exit_code = exit_code;
  s.exit_reason = reason;
  log::info("stopping: {}", reason);
  for (const auto& [id, handle] : s.handles) self->send(handle, Shutdown{exit_code, reason});
  if (s.options.peers) s.options.peers->stop();
  if (s.tree) {
    self->send_exit(s.tree, caf::exit_reason::user_shutdown);
    self->delayed_send(self, std::chrono::milliseconds(s.options.config.supervision.shutdown_ms),
                       local::Tick{});
  } else {
    end(self);
  }
}

// --- Processes and slots ---

/// A slot's process is up: the supervisor may use it.
void announce(Self* self, const std::string& slot) {
  NodeState& s = self->state;
  const Process* process = s.table.trainer(slot);
  if (!process) return;
  s.options.states->trainer_restarted(slot, process->pid);
  HeldState held = s.options.states->held(slot);
  to_supervisor(self, TrainerUp{slot, process->pid, process->data_address, held.shard,
                                std::move(held.steps), s.table.slot(slot)->generation});
}

/// The process is needed now, if it is some slot's.
void raise(Self* self, const std::string& id) {
  NodeState& s = self->state;
  const Process* process = s.table.process(id);
  if (!process || process->slot.empty()) return;
  s.watch.needed(id);
  if (process->pid == 0) return;
  if (Status status = set_affinity(process->pid, place_of(s.options, process->slot)); !status.ok())
    log::debug("{} stays on its CPUs: {}", id, status.message());
  if (may_lower_nice())
    if (Status status = set_nice(process->pid, getpriority(PRIO_PROCESS, 0)); !status.ok())
      log::debug("{} stays at low priority: {}", id, status.message());
}

void fill_slots(Self* self) {
  NodeState& s = self->state;
  for (const std::string& slot : s.table.fill()) {
    const std::string id = s.table.slot(slot)->process;
    log::info("{} becomes {}", id, slot);
    trace::instant("becomes " + slot, id);
    raise(self, id);
    announce(self, slot);
  }
}

/// Its lifeline broke: the others need not wait until the kernel is done with it. How it ended, and
/// another process for the slot, follow when it is gone.
void process_dying(Self* self, const local::ProcessDying& dying) {
  NodeState& s = self->state;
  const Process* process = s.table.process(dying.process);
  if (s.stopping || !process || process->pid != dying.pid || process->slot.empty()) return;
  trace::instant("dying", process->slot);
  if (s.logs) s.logs->look_now();
  auto accused = s.accusations.find(dying.process);
  to_supervisor(
      self,
      TrainerDown{process->slot,
                  accused == s.accusations.end() ? "its process is dying" : accused->second, true});
}

/// Has the process's death told as early as possible; without a lifeline its pidfd tells it.
void hold_on_to(Self* self, const std::string& id, pid_t pid) {
  NodeState& s = self->state;
  Status status = s.lifelines.watch(segments_of(s, id, pid) + "-life",
                                    [node = caf::actor_cast<caf::actor>(self), id, pid] {
                                      caf::anon_send(node, local::ProcessDying{id, pid});
                                    });
  if (!status.ok()) log::warn("{}", status.message());
}

void process_ended(Self* self, const local::ProcessEnded& end) {
  NodeState& s = self->state;
  const Process* process = s.table.process(end.process);
  if (s.stopping || !process || process->pid != end.pid) return;
  s.handles.erase(end.process);
  s.watch.gone(end.process);
  s.unproven[end.process] = true;
  unlink_shared_memory(segments_of(s, end.process, end.pid));
  std::string how = end.how;
  if (auto accused = s.accusations.extract(end.process); !accused.empty()) how = accused.mapped();
  const std::string slot = s.table.ended(end.process);
  trace::instant("ended", slot.empty() ? end.process : slot);
  s.traces.ended(end.process, slot.empty() ? end.process : slot);
  s.ended.emplace_back(end.pid, slot);
  if (s.ended.size() > kEndedKept) s.ended.pop_front();
  if (s.logs) s.logs->look_now();  // what it said last
  log::warn("{}{}{} has ended: {}", end.process, slot.empty() ? "" : ", which was ", slot, how);
  if (slot.empty()) return;
  to_supervisor(self, TrainerDown{slot, how, true});
  fill_slots(self);
}

/// Ends a process for a reason that its TrainerDown will tell.
void kill_process(Self* self, const std::string& id, const std::string& reason) {
  NodeState& s = self->state;
  const Process* process = s.table.process(id);
  if (!process || process->pid == 0) return;
  log::warn("killing {}{}{}: {}", id, process->slot.empty() ? "" : ", which is ", process->slot,
            reason);
  s.accusations.emplace(id, reason);
  kill(process->pid, SIGKILL);
}

void look(Self* self) {
  NodeState& s = self->state;
  self->delayed_send(self, std::chrono::milliseconds(s.options.config.supervision.heartbeat_ms),
                     local::Look{});
  if (s.stopping) return;
  for (const auto& verdict : s.watch.look(now_ms(self), process_state))
    kill_process(self, verdict.process, verdict.reason);
}

/// A trainer has left a generation; the node adds what its memory holds.
void report_idle(Self* self, TrainerIdle idle) {
  NodeState& s = self->state;
  if (Slot* slot = s.table.slot(idle.trainer); slot && slot->generation <= idle.generation)
    slot->generation = 0;
  if (s.options.peers && idle.fault == "bad_copy")  // perhaps of the peer store
    to_supervisor(self, PeerCopies{s.options.name(), s.options.peers->store.held()});
  HeldState held = s.options.states->held(idle.trainer);
  idle.shard = held.shard;
  idle.held = std::move(held.steps);
  to_supervisor(self, std::move(idle));
}

/// Whose a process of this node is, or was; "" if it is none of ours.
std::string owner_of(const NodeState& s, int64_t pid) {
  for (const auto& [id, process] : s.table.processes())
    if (process.pid == pid) return process.slot.empty() ? s.options.name() : process.slot;
  for (const auto& [ended, slot] : s.ended)
    if (ended == pid) return slot.empty() ? s.options.name() : slot;
  return "";
}

/// A line of a log that means something: about a trainer if it is one's, else about the node.
void found_in_log(Self* self, const LogFinding& found) {
  NodeState& s = self->state;
  const std::string node = s.options.name();
  std::string subject = found.source;
  if (found.file == "kernel") {
    if (const auto pid = process_in(found.text)) {
      const std::string owner = owner_of(s, *pid);
      // A host's kernel also tells of others' processes; a broken device concerns everybody.
      if (owner.empty() && found.action != "diagnose") return;
      if (!owner.empty()) subject = owner;
    }
  } else if (subject.starts_with(node + ".p")) {
    const Process* process = s.table.process(node + "/" + subject.substr(node.size() + 1));
    subject = process && !process->slot.empty() ? process->slot : node;
  } else if (!s.table.slot(subject)) {
    subject = node;
  }
  to_supervisor(self, LogFound{node, subject, found.file, found.line, found.text, found.rule,
                               found.severity, found.action, found.hint, found.root});
}

/// The host's, with the trainers' newest steps. An Xid means what the kernel's line about it does.
void report_health(Self* self, NodeHealth& health) {
  NodeState& s = self->state;
  for (const auto& [trainer, times] : s.times) health.trainers.push_back(times);
  for (size_t i = 0; i < health.gpus.size(); ++i) {
    const GpuHealthReport& gpu = health.gpus[i];
    if (std::exchange(s.xids[i], gpu.xids) >= gpu.xids || !s.logs) continue;
    s.logs->kernel_line("NVRM: Xid (GPU " + std::to_string(i) + "): " + std::to_string(gpu.xid) +
                        ", told by NVML");
  }
  to_supervisor(self, std::move(health));
}

std::unique_ptr<LogScanner> scan_logs(Self* self) {
  const NodeOptions& o = self->state.options;
  LogScannerOptions options;
  options.folder = o.run.logs();
  options.node = o.name();
  options.batch = o.batch_log;
  options.rules = o.log_rules;
  options.file_bytes_max = static_cast<uint64_t>(o.config.supervision.log_max_mib) << 20;
  options.found = [node = caf::actor_cast<caf::actor>(self)](LogFinding found) {
    caf::anon_send(node, std::move(found));
  };
  return std::make_unique<LogScanner>(std::move(options));
}

void inject_here(Self* self, const InjectFault& fault) {
  NodeState& s = self->state;
  const NodeOptions& o = s.options;
  InjectContext context;
  context.node = o.name();
  for (const auto& [name, slot] : s.table.slots()) context.trainers.push_back(name);
  for (const auto& [id, process] : s.table.processes())
    if (process.pid != 0) context.processes.push_back(process.pid);
  context.pid_of = [&s](const std::string& trainer) {
    const Process* process = s.table.trainer(trainer);
    return process ? process->pid : 0;
  };
  context.pass_on = [self](const std::string& trainer, const InjectFault& inner) {
    NodeState& s = self->state;
    const Slot* slot = s.table.slot(trainer);
    if (auto found = s.handles.find(slot->process); found != s.handles.end())
      self->send(found->second, inner);
  };
  context.transport = [&o](const TransportFault& fault) {
    if (o.inject_network_fault) o.inject_network_fault(fault);
  };
  context.states = o.states;
  if (o.peers) context.damage_peers_copies = [&o] { return o.peers->store.damage(); };
  context.disk = o.disk;
  context.checkpoints = checkpoint_folder(o.config);
  if (Status status = inject(context, fault); !status.ok()) log::warn("{}", status.message());
}

/// What this node's processes did in a window of time goes to the run's folder, beside the actor.
void write_trace(Self* self, const WriteTrace& order) {
  const NodeState& s = self->state;
  if (!trace::on()) return;
  auto sources = s.traces.sources(s.options.name(), [&](const std::string& id) {
    const auto found = s.table.processes().find(id);
    const bool trainer = found != s.table.processes().end() && !found->second.slot.empty();
    return trainer ? found->second.slot : id;
  });
  self->spawn<caf::detached>(
      [run = s.options.run, node = s.options.name(), sources = std::move(sources),
       window = TraceWindow{order.name, order.begin_ns, order.end_ns}](caf::event_based_actor*) {
        if (Status status = write_trace_part(run, window, node, sources); !status.ok())
          log::warn("no trace {} of this node: {}", window.name, status.message());
      });
}

// --- Generations ---

void join(Self* self, const JoinGeneration& job) {
  NodeState& s = self->state;
  std::vector<LocalTrainer> locals;
  for (const auto& [name, slot] : s.table.slots())
    if (const Process* process = s.table.trainer(name))
      locals.push_back({name, s.options.states->segment(name), process->data_address});
  if (s.options.peers) {
    s.options.peers->fence(job.generation);
    s.options.peers->newest_step = 0;
  }
  auto orders = orders_of(job, static_cast<uint32_t>(s.options.plan.topology.shards), locals,
                          [&s](uint32_t shard, uint64_t step) {
                            const PeerTier* peers = s.options.peers.get();
                            return peers ? peers->store.segment(shard, step) : "";
                          });
  if (!orders.ok()) {
    log::error("{}", orders.status().message());
    if (s.options.peers)  // of which one is missing, perhaps
      to_supervisor(self, PeerCopies{s.options.name(), s.options.peers->store.held()});
    for (const LocalTrainer& local : locals) {
      TrainerIdle idle{.trainer = local.name, .generation = job.generation};
      idle.fault = "failed";
      idle.reason = orders.status().message();
      report_idle(self, std::move(idle));
    }
    return;
  }
  if (!orders->fill.trainers.empty()) {
    s.fill = orders->fill;
    if (s.dataloader) self->send(s.dataloader, s.fill);  // else it gets this when it is up
  }
  for (JoinTrainer& order : orders->trainers) {
    order.ring_segment = s.options.filler->name();
    Slot* slot = s.table.slot(order.trainer);
    slot->generation = order.generation;
    self->send(s.handles.at(slot->process), std::move(order));
  }
}

/// Passes a pinned state on to the checkpoint actor.
void save(Self* self, const std::string& trainer, uint64_t generation, uint64_t step, bool pinned) {
  NodeState& s = self->state;
  const Process* process = s.table.trainer(trainer);
  if (!pinned || !process) return;
  auto state = std::make_shared<PinnedState>(s.options.states, trainer, process->pid,
                                             HeldStep{step, generation});
  const uint64_t shard = s.options.states->held(trainer).shard;
  const ShardSaved lost{generation, step, shard, "", "the checkpoint actor is being restarted"};
  if (!s.checkpoint) return to_supervisor(self, lost);
  s.saving.push_back(lost);
  self->send(s.checkpoint, local::SaveShard{std::move(state), generation, step, shard});
}

/// The checkpoint actor has answered.
void saved(Self* self, const ShardSaved& saved) {
  std::erase_if(self->state.saving, [&](const ShardSaved& asked) {
    return asked.generation == saved.generation && asked.step == saved.step &&
           asked.shard == saved.shard;
  });
  to_supervisor(self, saved);
}

/// It is gone, or another one has taken its place: what it was asked for, nobody answers any more.
void lose_checkpoint_actor(Self* self) {
  NodeState& s = self->state;
  s.checkpoint = nullptr;
  for (const ShardSaved& lost : std::exchange(s.saving, {}))
    if (!s.stopping) to_supervisor(self, lost);
}

/// Has a pinned state copied for a peer node.
void stage(Self* self, const StepDone& done) {
  NodeState& s = self->state;
  const Process* process = s.table.trainer(done.trainer);
  if (!done.copy || !process) return;
  auto state = std::make_shared<PinnedState>(s.options.states, done.trainer, process->pid,
                                             HeldStep{done.step, done.generation});
  if (!s.peers) return;
  self->send(s.peers, local::StageCopy{done.trainer, std::move(state), done.generation, done.step,
                                       s.options.states->held(done.trainer).shard});
}

}  // namespace

caf::behavior node_actor(Self* self, caf::actor supervisor, NodeOptions options) {
  NodeState& s = self->state;
  s.options = std::move(options);
  s.supervisor = std::move(supervisor);
  const NodeOptions& o = s.options;
  const SupervisionConfig& config = o.config.supervision;
  s.table = SlotTable(o.name(), o.plan.topology.trainers_per_node,
                      static_cast<int>(config.warm_processes));
  s.watch = TrainerWatch({config.heartbeat_ms, config.silence_ms, config.progress_timeout_ms});
  if (config.log_max_mib > 0) s.logs = scan_logs(self);
  s.tree = spawn_tree(self);
  if (o.peers) s.peers = spawn_peer_copies(self, {o.name(), o.peers, o.states, o.find});
  self->monitor(s.supervisor);
  self->delayed_send(self, std::chrono::milliseconds(config.heartbeat_ms), local::Look{});

  self->set_down_handler([self](const caf::down_msg& down) {
    NodeState& s = self->state;
    if (s.tree && down.source == s.tree.address()) {
      s.tree = nullptr;
      if (s.stopping) {
        end(self);
        return;
      }
      for (const auto& [name, slot] : s.table.slots())
        to_supervisor(self, TrainerDown{name, "the node's restart budget is exhausted", false});
    } else if (s.checkpoint && down.source == s.checkpoint.address()) {
      lose_checkpoint_actor(self);
    } else if (s.peers && down.source == s.peers.address()) {
      const NodeOptions& o = s.options;
      s.peers = nullptr;
      if (!s.stopping) s.peers = spawn_peer_copies(self, {o.name(), o.peers, o.states, o.find});
    } else if (down.source == s.supervisor.address()) {
      leave(self, exit_code(Code::requeue), "the supervisor is lost");
    } else if (!s.stopping) {
      for (const auto& [id, handle] : s.handles) {
        if (down.source != handle.address()) continue;
        // Not heard of any more: make sure that it is dead. Its process actor tells the rest.
        if (const Process* process = s.table.process(id);
            process && process->pid != 0 && process_state(process->pid) != ProcessState::gone)
          kill_process(self, id, "its actor is gone: " + to_string(down.reason));
        break;
      }
    }
  });

  char host[256] = "";
  gethostname(host, sizeof host - 1);
  // The name under which Slurm knows it, if it is Slurm that started us.
  const char* in_slurm = std::getenv("SLURMD_NODENAME");
  to_supervisor(self, NodeHello{o.name(), in_slurm ? in_slurm : host, getpid(),
                                static_cast<uint32_t>(s.table.slots().size()), 0, o.address});

  return {
      // From trainers.
      [self](const TrainerHello& hello) {
        NodeState& s = self->state;
        Process* process = s.table.process(hello.trainer);
        if (!process) {
          log::warn("a process named {} reports here, which this node does not have",
                    hello.trainer);
          return;
        }
        process->pid = hello.pid;
        process->up = true;
        process->data_address = hello.data_address;
        s.handles[hello.trainer] = caf::actor_cast<caf::actor>(self->current_sender());
        self->monitor(s.handles[hello.trainer]);
        s.watch.up(now_ms(self), hello.trainer, hello.pid);
        s.traces.up(hello.trainer, hello.pid, segments_of(s, hello.trainer, hello.pid) + "-trace");
        hold_on_to(self, hello.trainer, hello.pid);
        if (!process->slot.empty()) announce(self, process->slot);
      },
      [self](const TrainerProgress& progress) {
        self->state.watch.heard(now_ms(self), progress.trainer, progress);
      },
      [self](TrainerIdle& idle) {
        NodeState& s = self->state;
        if (idle.trainer.empty())  // it has never joined a generation
          for (const auto& [id, handle] : s.handles)
            if (handle == self->current_sender()) idle.trainer = s.table.process(id)->slot;
        if (!idle.trainer.empty()) report_idle(self, std::move(idle));
      },
      [self](const TrainerReady& ready) { to_supervisor(self, ready); },
      [self](StepDone& done) {
        NodeState& s = self->state;
        s.times[done.trainer] = {
            done.trainer,    done.step,        done.step_ms,      done.data_ms,
            done.forward_ms, done.backward_ms, done.optimizer_ms, done.step_ms - done.busy_ms};
        done.data_ms = done.forward_ms = done.backward_ms = done.optimizer_ms = 0;
        to_supervisor(self, done);
        if (const Slot* slot = s.table.slot(done.trainer)) {
          s.watch.step_took(slot->process, done.step_ms);
          // It has committed a step: its budget starts anew.
          if (s.unproven.erase(slot->process))
            self->send(s.tree, supervision::Progress{{slot->process}});
        }
        save(self, done.trainer, done.generation, done.step, done.save);
        stage(self, done);
      },
      [self](const Validated& result) { to_supervisor(self, result); },
      [self](const TrainerFinished& end) {
        to_supervisor(self, end);
        save(self, end.trainer, end.generation, end.step, end.save);
      },
      // From the children on this node.
      [self](const local::ChildUp& up) {
        NodeState& s = self->state;
        if (up.name == "checkpoint") {
          lose_checkpoint_actor(self);  // the one before
          s.checkpoint = up.child;
          self->monitor(s.checkpoint);
          return;
        }
        s.dataloader = up.child;
        if (s.fill.generation > 0) self->send(s.dataloader, s.fill);
      },
      [self](const local::ProcessStarted& start) {
        NodeState& s = self->state;
        if (Process* process = s.table.process(start.process)) process->pid = start.pid;
        raise(self, start.process);
      },
      [self](const local::ProcessDying& dying) { process_dying(self, dying); },
      [self](const local::ProcessEnded& end) { process_ended(self, end); },
      [self](const LogFinding& found) { found_in_log(self, found); },
      [self](const ShardSaved& answer) { saved(self, answer); },
      [self](const local::StopSignal& stop) {
        const bool now = stop.signal == SIGQUIT;
        const Code code = stop.signal == SIGINT || now ? Code::ok : Code::requeue;
        to_supervisor(self, RequestStop{exit_code(code),
                                        std::string("signal ") + strsignal(stop.signal), now});
      },
      // From the supervisor.
      [self](const JoinGeneration& job) { join(self, job); },
      [self](const FenceGeneration& fence) {
        if (self->state.options.peers) self->state.options.peers->fence(fence.generation);
        to_trainers(self, fence);
      },
      [self](const LeaveGeneration& order) { to_trainers(self, order); },
      [self](const StopTraining& stop) { to_trainers(self, stop); },
      [self](const KillTrainer& order) {
        if (const Slot* slot = self->state.table.slot(order.trainer))
          kill_process(self, slot->process, order.reason);
      },
      [self](const SaveCheckpoint& order) {
        NodeState& s = self->state;
        const Slot* slot = s.table.slot(order.trainer);
        if (auto found = slot ? s.handles.find(slot->process) : s.handles.end();
            found != s.handles.end())
          self->send(found->second, order);
      },
      [self](const InjectFault& fault) { inject_here(self, fault); },
      [self](const WriteTrace& order) { write_trace(self, order); },
      [self](const CheckNode& order) {
        NodeState& s = self->state;
        log::info("a diagnosis: {}", order.reason);
        spawn_check(self->system(), caf::actor_cast<caf::actor>(self), s.options.name(),
                    s.options.run.logs(), s.options.find, order.links);
      },
      [self](const CopyToPeers& order) {
        if (!self->state.peers) return;
        self->state.options.peers->newest_step = order.step;
        self->send(self->state.peers, order);
      },
      [self](const NodeChecked& checked) { to_supervisor(self, checked); },
      [self](NodeHealth& health) { report_health(self, health); },
      // From its peer copies.
      [self](const CopySent& sent) { to_supervisor(self, sent); },
      [self](const PeerCopies& copies) { to_supervisor(self, copies); },
      // From another node's.
      [self](const OfferCopy& offer) {
        const NodeState& s = self->state;
        auto answer = self->make_response_promise();
        if (s.peers && !s.stopping)
          answer.delegate(s.peers, offer);
        else
          answer.deliver(AcceptCopy{false, s.options.name() + " keeps none", {}});
      },
      // From another node's diagnosis.
      [](const Ping& ping) {
        return Pong{ping.id, ping.payload};
      },
      [self](const Shutdown& order) { leave(self, order.exit_code, order.reason); },
      // From the clock.
      [self](const local::Look&) { look(self); },
      [self](const local::Tick&) {  // the tree has not stopped in time
        log::error("the node's children do not stop; leaving without them");
        end(self);
      },
  };
}

}  // namespace simplescale
