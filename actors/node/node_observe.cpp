#include "actors/diagnosis/node_check.hpp"
#include "actors/node/inject.hpp"
#include "actors/node/node_parts.hpp"
#include "runtime/base/log.hpp"
#include "runtime/observe/trace.hpp"

namespace simplescale::node {
namespace {

/// The trainer or node that a finding concerns; nullopt: the process is not of this node.
std::optional<std::string> subject_of(NodeState& s, const LogFinding& found) {
  const std::string node = s.options.name();
  std::optional<std::string> slot;
  if (found.file == "kernel") {
    const auto pid = process_in(found.text);
    if (!pid) return found.source;
    slot = s.table.slot_of(*pid);
    // The kernel reports on all processes of the host. A broken device concerns the node in any
    // case.
    if (!slot) return found.action == "diagnose" ? std::optional(found.source) : std::nullopt;
  } else if (found.source.starts_with(node + ".p")) {
    const Process* process = s.table.process(node + "/" + found.source.substr(node.size() + 1));
    slot = process ? process->slot : "";
  } else {
    slot = s.table.slot(found.source) ? found.source : "";
  }
  return slot->empty() ? node : *slot;
}

void log_found(Self* self, const LogFinding& found) {
  NodeState& s = self->state;
  if (const auto subject = subject_of(s, found))
    to_supervisor(self, LogFound{s.options.name(), *subject, found.file, found.line, found.text,
                                 found.rule, found.severity, found.action, found.hint, found.root});
}

/// Adds the trainers' newest steps to the host's health. Treats a new Xid like a line of the
/// kernel's log.
void report_health(Self* self, NodeHealth& health) {
  NodeState& s = self->state;
  for (const auto& [trainer, times] : s.observed.step_times) health.trainers.push_back(times);
  for (size_t i = 0; i < health.gpus.size(); ++i) {
    const GpuHealth& gpu = health.gpus[i];
    if (std::exchange(s.observed.xids[i], gpu.xids) >= gpu.xids || !s.observed.logs) continue;
    s.observed.logs->add_kernel_line("NVRM: Xid (GPU " + std::to_string(i) +
                                     "): " + std::to_string(gpu.xid) + ", reported by NVML");
  }
  to_supervisor(self, std::move(health));
}

void inject_fault(Self* self, const InjectFault& fault) {
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
  context.send_to_trainer = [self](const std::string& trainer, const InjectFault& inner) {
    to_trainer(self, trainer, inner);
  };
  context.inject_network_fault = [&o](const TransportFault& network) {
    if (o.inject_network_fault) o.inject_network_fault(network);
  };
  context.kill_supervisors = o.kill_supervisors;
  context.states = o.states;
  if (o.peers) context.corrupt_peer_copies = [&o] { return o.peers->store.flip_bits(); };
  context.disk = o.disk;
  context.checkpoints = checkpoint_folder(o.config);
  if (Status status = inject(context, fault); !status.ok()) log::warn("{}", status.message());
}

/// Writes a window of the traces of this node's processes to the run folder, in an actor of its
/// own, which may block.
void write_trace(Self* self, const WriteTrace& order) {
  const NodeState& s = self->state;
  if (!trace::on()) return;
  auto sources = s.observed.traces.sources(
      s.options.name(), [&](const std::string& process) { return s.table.name_of(process); });
  self->spawn<caf::detached>(
      [run = s.options.run, node = s.options.name(), sources = std::move(sources),
       window = TraceWindow{order.name, order.begin_ns, order.end_ns}](caf::event_based_actor*) {
        if (Status status = write_trace_part(run, window, node, sources); !status.ok())
          log::warn("no trace {} of this node: {}", window.name, status.message());
      });
}

void check_node(Self* self, const CheckNode& order) {
  const NodeOptions& o = self->state.options;
  log::info("a diagnosis: {}", order.reason);
  spawn_node_check(self->system(), caf::actor_cast<caf::actor>(self), o.name(), o.run.logs(),
                   o.find, order.links);
}

}  // namespace

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

void keep_step_times(Self* self, StepDone& done) {
  self->state.observed.step_times[done.trainer] = {
      done.trainer,    done.step,        done.step_ms,      done.data_ms,
      done.forward_ms, done.backward_ms, done.optimizer_ms, done.step_ms - done.busy_ms};
  done.data_ms = done.forward_ms = done.backward_ms = done.optimizer_ms = 0;
}

caf::message_handler observe_handlers(Self* self) {
  return {
      // From this agent's threads and actors.
      [self](const LogFinding& found) { log_found(self, found); },
      [self](NodeHealth& health) { report_health(self, health); },
      relay_to_supervisor<NodeChecked>(self),
      // From the supervisor.
      [self](const InjectFault& fault) { inject_fault(self, fault); },
      [self](const WriteTrace& order) { write_trace(self, order); },
      [self](const CheckNode& order) { check_node(self, order); },
      // From another node's diagnosis.
      [](const Ping& ping) {
        return Pong{ping.id, ping.payload};
      },
  };
}

}  // namespace simplescale::node
