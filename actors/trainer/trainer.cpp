#include "actors/trainer/trainer.hpp"

#include <unistd.h>

#include "actors/essential.hpp"
#include "actors/local.hpp"
#include "actors/trainer/inject.hpp"
#include "runtime/base/log.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

caf::behavior trainer_actor(caf::stateful_actor<TrainerActorState>* self, caf::actor node,
                            TrainerOptions options, std::vector<uint8_t> data_address,
                            std::shared_ptr<std::unique_ptr<DataPlane>> plane) {
  end_process_with(self, "trainer");
  auto me = caf::actor_cast<caf::actor>(self);
  self->state.compute = std::make_unique<ComputeThread>(
      options.compute, std::move(*plane),
      [me](ComputeReport report) { caf::anon_send(me, std::move(report)); });
  self->monitor(node);
  self->set_down_handler([finished = options.finished](const caf::down_msg&) {
    log::error("the node's agent has ended; this trainer ends, too");
    finished(1);
  });
  self->send(node, TrainerHello{options.process, getpid(), std::move(data_address)});
  self->delayed_send(self, options.heartbeat, local::Tick{});
  return {
      [self, node](ComputeReport& report) {
        std::visit([self, &node](auto& message) { self->send(node, std::move(message)); }, report);
      },
      [self, became = options.became](const JoinTrainer& order) {
        if (became) became(order.trainer);
        self->state.compute->join(order);
      },
      [self](const FenceGeneration& fence) {
        self->state.compute->fence(fence.generation, fence.reason);
      },
      [self](const LeaveGeneration& order) {
        self->state.compute->leave_after_step(order.generation);
      },
      [self](const PrepareGpus& order) { self->state.compute->prepare(order); },
      [self](const UseInstructions& order) { self->state.compute->prepare(order); },
      [self](const StopTraining&) { self->state.compute->stop_after_step(); },
      [self](const SaveCheckpoint&) { self->state.compute->save_after_step(); },
      [self](const InjectFault& fault) { inject_into_trainer(*self->state.compute, fault); },
      [self, node, options](const local::Tick&) {
        self->delayed_send(self, options.heartbeat, local::Tick{});
        TrainerProgress progress = self->state.compute->progress();
        progress.trainer = options.process;
        self->send(node, std::move(progress));
      },
      [finished = options.finished](const Shutdown&) { finished(0); },
  };
}

}  // namespace simplescale
