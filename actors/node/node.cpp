#include "actors/node/node.hpp"

#include <signal.h>
#include <unistd.h>

#include "actors/checkpoint/checkpoint.hpp"
#include "actors/dataloader/dataloader.hpp"
#include "actors/node/trainer_process.hpp"
#include "actors/supervision/supervisor_actor.hpp"
#include "runtime/base/log.hpp"
#include "runtime/data/data_location.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

namespace {

using Self = caf::stateful_actor<NodeState>;

SpawnOptions trainer_command(const NodeOptions& o, const std::string& trainer, int slot) {
  SpawnOptions command;
  command.argv = {program_folder() + "/simplescale-compute",
                  "trainer",
                  "--run",
                  o.run.path,
                  "--trainer",
                  trainer};
  command.environment = {{"SIMPLESCALE_AGENT", o.address},
                         {"SIMPLESCALE_INSTANCE", o.instance},
                         {"SIMPLESCALE_SLOT", std::to_string(slot)}};
  command.output = o.run.logs() + "/" + trainer + ".log";
  return command;
}

/// The node's supervision tree; its children are spawned by it and known to the node by handle.
caf::actor spawn_tree(Self* self) {
  using namespace supervision;
  NodeState& s = self->state;
  auto node = caf::actor_cast<caf::actor>(self);
  const NodeOptions& o = s.options;
  const Topology& topology = o.plan.topology;
  SupervisorOptions tree;
  tree.name = o.name();
  tree.spec.strategy = supervision::Strategy::one_for_one;
  tree.spec.intensity = {static_cast<uint32_t>(o.config.supervision.max_restarts),
                         o.config.supervision.within_s * 1000};
  const BatchLayout layout = batch_layout(o.plan, static_cast<uint64_t>(topology.groups));
  tree.children.push_back({{.id = o.name() + "/dataloader"},
                           [node, filler = o.filler, layout](caf::scheduled_actor* parent) {
                             caf::actor child = parent->spawn(dataloader_actor, filler, layout);
                             caf::anon_send(node, local::ChildUp{"dataloader", child});
                             return child;
                           }});
  const CheckpointOptions checkpoint{checkpoint_folder(o.config), o.plan.shape,
                                     static_cast<size_t>(topology.shards)};
  tree.children.push_back({{.id = o.name() + "/checkpoint"},
                           [node, states = o.states, checkpoint](caf::scheduled_actor* parent) {
                             caf::actor child = parent->spawn<caf::detached>(checkpoint_actor, node,
                                                                             states, checkpoint);
                             caf::anon_send(node, local::ChildUp{"checkpoint", child});
                             return child;
                           }});
  for (const auto& [name, local] : s.trainers)
    tree.children.push_back(
        {{.id = name, .restart = Restart::transient},
         [node, watcher = o.watcher, name,
          command = trainer_command(o, name, local.place.slot)](caf::scheduled_actor* parent) {
           return parent->spawn(trainer_process, node, watcher, name, command);
         }});
  return self->spawn<caf::monitored>(supervisor_actor, std::move(tree));
}

/// Reports the end, once.
void end(Self* self) {
  NodeState& s = self->state;
  if (s.options.finished) s.options.finished(s.exit_code, s.exit_reason);
  s.options.finished = nullptr;
  self->quit();
}

void leave(Self* self, int exit_code, const std::string& reason) {
  NodeState& s = self->state;
  if (s.stopping) return;
  s.stopping = true;
  s.exit_code = exit_code;
  s.exit_reason = reason;
  log::info("stopping: {}", reason);
  for (auto& [name, local] : s.trainers)
    if (local.handle) self->send(local.handle, Shutdown{exit_code, reason});
  if (s.tree) {
    self->send_exit(s.tree, caf::exit_reason::user_shutdown);
    self->delayed_send(self, std::chrono::milliseconds(s.options.config.supervision.shutdown_ms),
                       local::Tick{});
  } else {
    end(self);
  }
}

void join(Self* self, const JoinGeneration& job) {
  NodeState& s = self->state;
  s.fill = {job.generation, job.step, {}};
  for (auto& [name, local] : s.trainers)
    s.fill.trainers.push_back(
        {static_cast<uint64_t>(local.place.group), static_cast<uint64_t>(local.place.shard)});
  if (s.dataloader) self->send(s.dataloader, s.fill);  // else it gets this when it is up
  for (auto& [name, local] : s.trainers) {
    if (!local.handle) continue;  // it has just died; the supervisor is about to hear of it
    JoinTrainer order;
    order.trainer = name;
    order.generation = job.generation;
    order.group = static_cast<uint32_t>(local.place.group);
    order.shard = static_cast<uint32_t>(local.place.shard);
    order.ring = static_cast<uint32_t>(local.ring);
    order.state_segment = s.options.states->segment(name);
    order.ring_segment = s.options.filler->name();
    order.source = job.source;
    order.step = job.step;
    order.checkpoint = job.checkpoint;
    order.shard_members.resize(static_cast<size_t>(s.options.plan.topology.shards));
    order.replicate_members.resize(static_cast<size_t>(s.options.plan.topology.groups));
    for (const Member& member : job.members) {
      if (member.group == order.group)
        order.shard_members.at(member.shard).bytes = member.data_address;
      if (member.shard == order.shard)
        order.replicate_members.at(member.group).bytes = member.data_address;
    }
    local.generation = job.generation;
    self->send(local.handle, std::move(order));
  }
}

/// Passes a pinned state on to the checkpoint actor.
void save(Self* self, const std::string& trainer, uint64_t generation, uint64_t step, bool pinned) {
  NodeState& s = self->state;
  auto found = s.trainers.find(trainer);
  if (!pinned || found == s.trainers.end()) return;
  const auto shard = static_cast<uint64_t>(found->second.place.shard);
  if (s.checkpoint)
    self->send(s.checkpoint, local::SaveShard{trainer, found->second.pid, generation, step, shard});
  else
    self->send(s.supervisor,
               ShardSaved{generation, step, shard, "", "the checkpoint actor is being restarted"});
}

template <class Message>
void to_trainers(Self* self, const Message& message) {
  for (auto& [name, local] : self->state.trainers)
    if (local.handle) self->send(local.handle, message);
}

}  // namespace

caf::behavior node_actor(Self* self, caf::actor supervisor, NodeOptions options) {
  NodeState& s = self->state;
  s.options = std::move(options);
  s.supervisor = std::move(supervisor);
  const NodeOptions& o = s.options;
  uint64_t ring = 0;
  for (const TrainerPlace& place : o.plan.topology.trainers)
    if (place.node == o.index) s.trainers[place.name()].place = place;
  for (auto& [name, local] : s.trainers) local.ring = ring++;
  s.tree = spawn_tree(self);
  self->monitor(s.supervisor);

  self->set_down_handler([self](const caf::down_msg& down) {
    NodeState& s = self->state;
    if (s.tree && down.source == s.tree.address()) {
      s.tree = nullptr;
      if (s.stopping) {
        end(self);
        return;
      }
      for (const auto& [name, local] : s.trainers)
        self->send(s.supervisor,
                   TrainerDown{name, "the node's restart budget is exhausted", false});
    } else if (down.source == s.supervisor.address()) {
      leave(self, exit_code(Code::requeue), "the supervisor is lost");
    } else {
      for (auto& [name, local] : s.trainers) {
        if (!local.handle || down.source != local.handle.address()) continue;
        local.handle = nullptr;
        // Not heard of any more: make sure that it is dead. Its process actor tells the rest.
        if (!s.stopping && local.pid > 0) kill(local.pid, SIGKILL);
      }
    }
  });

  char host[256] = "";
  gethostname(host, sizeof host - 1);
  self->send(s.supervisor,
             NodeHello{o.name(), host, getpid(), static_cast<uint32_t>(s.trainers.size()), 0});

  return {
      // From trainers.
      [self](const TrainerHello& hello) {
        NodeState& s = self->state;
        auto found = s.trainers.find(hello.trainer);
        if (found == s.trainers.end()) {
          log::warn("a trainer named {} reports here, which this node does not have",
                    hello.trainer);
          return;
        }
        found->second.handle = caf::actor_cast<caf::actor>(self->current_sender());
        found->second.pid = hello.pid;
        self->monitor(found->second.handle);
        s.options.states->trainer_restarted(hello.trainer, hello.pid);
        self->send(s.supervisor, TrainerUp{hello.trainer, hello.pid, hello.data_address,
                                           static_cast<uint32_t>(found->second.place.shard),
                                           s.options.states->held(hello.trainer), 0});
      },
      [self](TrainerIdle& idle) {
        auto found = self->state.trainers.find(idle.trainer);
        if (found == self->state.trainers.end()) return;
        idle.shard = static_cast<uint32_t>(found->second.place.shard);
        idle.held = self->state.options.states->held(idle.trainer);
        self->send(self->state.supervisor, idle);
      },
      [self](const StepDone& done) {
        NodeState& s = self->state;
        self->send(s.supervisor, done);
        auto found = s.trainers.find(done.trainer);
        if (found != s.trainers.end() && found->second.restarted) {
          found->second.restarted = false;  // it has committed a step: its budget starts anew
          self->send(s.tree, supervision::Progress{{done.trainer}});
        }
        save(self, done.trainer, done.generation, done.step, done.save);
      },
      [self](const Validated& result) { self->send(self->state.supervisor, result); },
      [self](const TrainerFinished& end) {
        NodeState& s = self->state;
        self->send(s.supervisor, end);
        save(self, end.trainer, end.generation, end.step, end.save);
      },
      // From the children on this node.
      [self](const local::ChildUp& up) {
        NodeState& s = self->state;
        (up.name == "dataloader" ? s.dataloader : s.checkpoint) = up.child;
        if (up.name == "dataloader" && s.fill.generation > 0) self->send(s.dataloader, s.fill);
      },
      [self](const local::ProcessEnded& end) {
        NodeState& s = self->state;
        auto found = s.trainers.find(end.trainer);
        if (s.stopping || found == s.trainers.end()) return;
        found->second.handle = nullptr;
        found->second.restarted = true;
        unlink_shared_memory("ss-" + s.options.instance + "-" + end.trainer + "-" +
                             std::to_string(end.pid));
        self->send(s.supervisor, TrainerDown{end.trainer, end.how, true});
      },
      [self](const ShardSaved& saved) { self->send(self->state.supervisor, saved); },
      [self](const local::StopSignal& stop) {
        const bool now = stop.signal == SIGQUIT;
        const Code code = stop.signal == SIGINT || now ? Code::ok : Code::requeue;
        self->send(
            self->state.supervisor,
            RequestStop{exit_code(code), std::string("signal ") + strsignal(stop.signal), now});
      },
      // From the supervisor.
      [self](const JoinGeneration& job) { join(self, job); },
      [self](const FenceGeneration& fence) { to_trainers(self, fence); },
      [self](const StopTraining& stop) { to_trainers(self, stop); },
      [self](const Shutdown& order) { leave(self, order.exit_code, order.reason); },
      [self](const local::Tick&) {  // the tree has not stopped in time
        log::error("the node's children do not stop; leaving without them");
        end(self);
      },
  };
}

}  // namespace simplescale
