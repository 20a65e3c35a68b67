#include <algorithm>
#include <cstdlib>

#include "actors/checkpoint/checkpoint.hpp"
#include "actors/dataloader/dataloader.hpp"
#include "actors/local.hpp"
#include "actors/node/node_parts.hpp"
#include "actors/node/trainer_process.hpp"
#include "actors/otp/supervisor_actor.hpp"
#include "runtime/config/secrets.hpp"

namespace simplescale::node {
namespace {

constexpr int kWarmNice = 15;  // of a process until it gets a slot
// The tree allows this many times the supervisor's own restart budget: normally the supervisor
// gives up on the node before the tree gives up on a process.
constexpr uint32_t kBudgetFactor = 10;

/// slot: that the process begins with; "": warm.
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
  // Holds the output until the process learns which trainer it is; then it writes logs/n1.0.log.
  command.output = o.run.logs() + "/" + with_dots(process) + ".log";
  // Slurm signals every process of a job step, systemd every one of a service (--nnodes); the agent
  // or its launcher alone is to act on that.
  command.ignore_signals = std::getenv("SLURM_STEP_ID") || std::getenv("SIMPLESCALE_TASK");
  if (may_lower_nice()) command.nice = kWarmNice;
  command.cpus = cpus_of(o, slot);
  return command;
}

/// A child of the tree whose handle the node gets with every (re)start.
template <class Spawn>
supervision::Child reported_child(Self* self, const char* name, Spawn spawn) {
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
  supervision::SupervisorOptions tree;
  tree.name = o.name();
  tree.spec.strategy = supervision::Strategy::one_for_one;
  tree.spec.intensity = {kBudgetFactor * static_cast<uint32_t>(config.max_restarts + 1),
                         config.within_s * 1000, supervision::Intensity::Scope::child};
  tree.spec.back_off = {.first_ms = config.backoff_ms, .max_ms = config.backoff_max_ms};
  tree.children.push_back(
      reported_child(self, "dataloader", [filler = o.filler](caf::scheduled_actor* parent) {
        return parent->spawn(dataloader_actor, filler);
      }));
  const CheckpointOptions checkpoint{checkpoint_folder(o.config), o.plan.shape,
                                     static_cast<size_t>(o.plan.topology.shards), o.disk,
                                     static_cast<size_t>(o.plan.topology.trainers_per_node)};
  tree.children.push_back(
      reported_child(self, "checkpoint", [node, checkpoint](caf::scheduled_actor* parent) {
        return parent->spawn<caf::detached>(checkpoint_actor, node, checkpoint);
      }));
  for (const auto& [id, process] : self->state.table.processes())
    tree.children.push_back(
        {{.id = id, .restart = supervision::Restart::transient},
         [node, watcher = o.watcher, id,
          command = trainer_command(o, id, process.slot)](caf::scheduled_actor* parent) {
           return parent->spawn(trainer_process, node, watcher, id, command);
         }});
  return self->spawn<caf::monitored>(supervision::supervisor_actor, std::move(tree));
}

}  // namespace simplescale::node
