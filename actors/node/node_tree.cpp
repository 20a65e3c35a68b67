#include <algorithm>
#include <cstdlib>

#include "actors/checkpoint/checkpoint.hpp"
#include "actors/dataloader/dataloader.hpp"
#include "actors/local.hpp"
#include "actors/node/node_parts.hpp"
#include "actors/node/trainer_process.hpp"
#include "actors/restart/child_supervisor.hpp"
#include "runtime/config/secrets.hpp"

namespace simplescale::node {
namespace {

constexpr int kWarmNice = 15;  // nice value of a process without a slot
// The tree's restart budget is this many times the supervisor's: normally the supervisor gives up
// on the node before the tree gives up on a process.
constexpr uint32_t kBudgetFactor = 10;

/// slot: the slot that the process begins with; "": warm.
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
  command.inherits = trainers_inherit(o.config);
  // The file takes the output until the process learns which trainer it is; then it writes
  // logs/n1.0.log.
  command.output = o.run.logs() + "/" + with_dots(process) + ".log";
  // Slurm signals every process of a job step, and systemd every process of a service (--nnodes).
  // Only the agent or its launcher must act on such a signal.
  command.ignore_signals = std::getenv("SLURM_STEP_ID") || std::getenv("SIMPLESCALE_TASK");
  if (may_lower_nice()) command.nice = kWarmNice;
  command.cpus = cpus_of(o, slot);
  return command;
}

/// A child of the tree. The node gets its handle at every (re)start.
template <class Spawn>
restart::Child reported_child(Self* self, const char* name, Spawn spawn) {
  return {{.id = self->state.options.name() + "/" + name},
          [node = caf::actor_cast<caf::actor>(self), name, spawn](caf::scheduled_actor* parent) {
            caf::actor child = spawn(parent);
            caf::anon_send(node, local::ChildStarted{name, child});
            return child;
          }};
}

}  // namespace

std::string with_dots(std::string process) {
  std::ranges::replace(process, '/', '.');
  return process;
}

CpuList cpus_of(const NodeOptions& o, const std::string& slot) {
  const size_t dot = slot.rfind('.');
  const size_t index = dot == std::string::npos ? SIZE_MAX : std::stoul(slot.substr(dot + 1));
  return index < o.places.size() ? o.places[index] : CpuList();
}

caf::actor spawn_tree(Self* self) {
  const NodeOptions& o = self->state.options;
  const SupervisionConfig& config = o.config.supervision;
  const auto node = caf::actor_cast<caf::actor>(self);
  restart::ChildSupervisorOptions tree;
  tree.name = o.name();
  tree.limits = {.max_restarts = kBudgetFactor * static_cast<uint32_t>(config.max_restarts + 1),
                 .within_ms = config.within_s * 1000,
                 .first_delay_ms = config.backoff_ms,
                 .max_delay_ms = config.backoff_max_ms};
  tree.children.push_back(
      reported_child(self, "dataloader", [filler = o.filler](caf::scheduled_actor* parent) {
        return parent->spawn(dataloader_actor, filler);
      }));
  const CheckpointOptions checkpoint{checkpoint_folder(o.config), o.plan.shape, o.disk,
                                     static_cast<size_t>(o.plan.topology.trainers_per_node)};
  tree.children.push_back(
      reported_child(self, "checkpoint", [node, checkpoint](caf::scheduled_actor* parent) {
        return parent->spawn<caf::detached>(checkpoint_actor, node, checkpoint);
      }));
  for (const auto& [id, process] : self->state.table.processes())
    tree.children.push_back(
        {{.id = id, .restart = restart::Restart::transient},
         [node, watcher = o.watcher, id,
          command = trainer_command(o, id, process.slot)](caf::scheduled_actor* parent) {
           return parent->spawn(trainer_process, node, watcher, id, command);
         }});
  return self->spawn<caf::monitored>(restart::child_supervisor, std::move(tree));
}

}  // namespace simplescale::node
