#include "actors/dataloader/dataloader.hpp"

#include "runtime/base/log.hpp"

namespace simplescale {

caf::behavior dataloader_actor(caf::stateful_actor<DataloaderState>* self,
                               std::shared_ptr<RingFiller> filler) {
  return {
      [self, filler](const FillPlan& plan) {
        if (Status status = filler->start(plan); !status.ok()) {
          log::error("the dataloader cannot fill its rings: {}", status.message());
          self->quit(caf::make_error(caf::sec::runtime_error, status.message()));
        }
      },
  };
}

}  // namespace simplescale
