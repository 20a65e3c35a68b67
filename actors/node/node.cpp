#include "actors/node/node.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "actors/essential.hpp"
#include "actors/local.hpp"
#include "actors/node/node_parts.hpp"
#include "runtime/base/log.hpp"

namespace simplescale {

namespace node {
namespace {

using std::chrono::milliseconds;

/// Reports the end and ends the actor.
void finish(Self* self) {
  const NodeState& s = self->state;
  if (s.peers) self->send_exit(s.peers, caf::exit_reason::user_shutdown);
  if (s.options.finished) s.options.finished(s.shutdown->exit_code, s.shutdown->reason);
  self->quit();
}

/// Stops the trainers and the tree; the tree's end, or a timeout, leads to finish().
void shut_down(Self* self, const Shutdown& order) {
  NodeState& s = self->state;
  if (s.shutdown) return;
  s.shutdown = order;
  log::info("stopping: {}", order.reason);
  for (const auto& [id, process] : s.table.processes())
    if (process.up) self->send(process.actor, order);
  if (s.options.plane) s.options.plane->abort(UINT64_MAX, "the node stops");
  if (!s.tree) return finish(self);
  self->send_exit(s.tree, caf::exit_reason::user_shutdown);
  self->delayed_send(self, milliseconds(s.options.config.supervision.shutdown_ms), local::Tick{});
}

void tree_ended(Self* self) {
  NodeState& s = self->state;
  s.tree = nullptr;
  if (s.shutdown) return finish(self);
  for (const auto& [name, slot] : s.table.slots())
    to_supervisor(self, TrainerDown{name, {"the node's restart budget is exhausted"}, false});
}

/// A trainer actor cannot be reached any more: kill its process, which must be dead before it is
/// replaced. ProcessEnded follows once the process is reaped.
void trainer_lost(Self* self, const caf::down_msg& down) {
  for (const auto& [id, process] : self->state.table.processes()) {
    if (!process.up || down.source != process.actor.address()) continue;
    if (process.pid != 0 && !process.dying && process_state(process.pid) != ProcessState::gone)
      kill_process(self, id, {"its process does not answer any more"});
    return;
  }
}

void actor_down(Self* self, const caf::down_msg& down) {
  NodeState& s = self->state;
  auto is = [&](const caf::actor& actor) { return actor && down.source == actor.address(); };
  if (is(s.tree)) {
    tree_ended(self);
  } else if (is(s.checkpoint)) {
    checkpoint_ended(self);
  } else if (is(s.peers)) {
    s.peers = nullptr;
    if (!s.shutdown) start_peer_copies(self);
  } else if (is(s.supervisor)) {
    shut_down(self, {exit_code(Code::requeue), "the supervisor is lost"});
  } else if (!s.shutdown) {
    trainer_lost(self, down);
  }
}

/// The host's name in Slurm, or else in the operating system.
std::string host_name() {
  if (const char* in_slurm = std::getenv("SLURMD_NODENAME")) return in_slurm;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return host;
}

std::string stop_reason(int signal) {
  if (signal == SIGINT) return "stopped by Ctrl-C";
  if (signal == SIGQUIT) return "stopped at once by a second Ctrl-C, without saving";
  return std::string("stopped by SIG") + sigabbrev_np(signal);
}

/// signal: SIGQUIT stands for a second SIGINT and means: stop at once.
void request_stop(Self* self, int signal) {
  const Code code = signal == SIGINT || signal == SIGQUIT ? Code::ok : Code::requeue;
  to_supervisor(self, RequestStop{exit_code(code), stop_reason(signal), signal == SIGQUIT});
}

caf::message_handler own_handlers(Self* self) {
  return {
      [self](const local::ChildStarted& child) {
        child.name == "checkpoint" ? checkpoint_started(self, child.actor)
                                   : dataloader_started(self, child.actor);
      },
      [self](const local::StopSignal& stop) { request_stop(self, stop.signal); },
      [self](const Shutdown& order) { shut_down(self, order); },
      [self](const local::Tick&) {  // of shut_down()
        log::error(
            "the node's children have not stopped within supervision.shutdown_ms; leaving "
            "without them");
        finish(self);
      },
  };
}

}  // namespace
}  // namespace node

caf::behavior node_actor(node::Self* self, caf::actor supervisor, NodeOptions options) {
  end_process_with(self, "node");
  NodeState& s = self->state;
  s.options = std::move(options);
  s.supervisor = std::move(supervisor);
  const NodeOptions& o = s.options;
  s.instructions = o.run_instructions;
  const SupervisionConfig& config = o.config.supervision;
  s.table = SlotTable(o.name(), o.plan.topology.trainers_per_node,
                      static_cast<int>(config.warm_processes));
  s.liveness =
      LivenessMonitor({config.heartbeat_ms, config.silence_ms, config.progress_timeout_ms});
  if (config.log_max_mib > 0) s.observed.logs = node::scan_logs(self);
  s.tree = node::spawn_tree(self);
  node::start_peer_copies(self);
  self->monitor(s.supervisor);
  self->delayed_send(self, node::milliseconds(config.heartbeat_ms), local::CheckLiveness{});
  self->set_down_handler([self](const caf::down_msg& down) { node::actor_down(self, down); });
  node::to_supervisor(self, NodeHello{o.name(), node::host_name(), getpid(),
                                      static_cast<uint32_t>(s.table.slots().size()), 0, o.address,
                                      o.plane ? o.plane->address() : std::vector<uint8_t>(),
                                      o.instructions, o.run_instructions});
  return node::own_handlers(self)
      .or_else(node::process_handlers(self))
      .or_else(node::generation_handlers(self))
      .or_else(node::copy_handlers(self))
      .or_else(node::observe_handlers(self));
}

}  // namespace simplescale
