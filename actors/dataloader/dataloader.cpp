#include "actors/dataloader/dataloader.hpp"

#include "runtime/base/log.hpp"
#include "runtime/data/data_location.hpp"

namespace simplescale {

caf::behavior dataloader_actor(caf::stateful_actor<DataloaderState>* self,
                               std::shared_ptr<RingFiller> filler, Plan run) {
  return {
      [self, filler, run](const local::FillRings& job) {
        FillPlan plan;
        plan.generation = job.generation;
        plan.start_step = job.start_step;
        plan.layout = batch_layout(run, job.groups);
        for (const auto& trainer : job.trainers)
          plan.trainers.push_back({trainer.group, trainer.shard});
        if (Status status = filler->start(plan); !status.ok()) {
          log::error("the dataloader cannot fill its rings: {}", status.message());
          self->quit(caf::make_error(caf::sec::runtime_error, status.message()));
        }
      },
  };
}

}  // namespace simplescale
