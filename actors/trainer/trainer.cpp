#include "actors/trainer/trainer.hpp"

#include <unistd.h>

#include "runtime/base/log.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

caf::behavior trainer_actor(caf::stateful_actor<TrainerActorState>* self, caf::actor node,
                            TrainerOptions options,
                            std::shared_ptr<std::unique_ptr<DataPlane>> plane) {
  auto me = caf::actor_cast<caf::actor>(self);
  TrainerHello hello{options.compute.trainer, getpid(), (*plane)->address()};
  self->state.compute = std::make_unique<ComputeThread>(
      options.compute, std::move(*plane),
      [me](ComputeReport report) { caf::anon_send(me, std::move(report)); });
  self->monitor(node);
  self->set_down_handler([finished = options.finished](const caf::down_msg&) {
    log::error("the node's agent is gone");
    finished(1);
  });
  self->send(node, std::move(hello));
  return {
      [self, node](ComputeReport& report) {
        std::visit([self, &node](auto& message) { self->send(node, std::move(message)); }, report);
      },
      [self](const JoinTrainer& order) { self->state.compute->join(order); },
      [self](const FenceGeneration& fence) {
        self->state.compute->fence(fence.generation, fence.reason);
      },
      [self](const StopTraining&) { self->state.compute->stop_after_step(); },
      [finished = options.finished](const Shutdown&) { finished(0); },
  };
}

}  // namespace simplescale
