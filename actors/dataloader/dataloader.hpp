// The dataloader actor of a node: one for all its trainers. It passes each FillPlan on to the
// filler thread (runtime/feed/ring_filler.hpp), which fills the token rings in shared memory;
// tokens never pass through a mailbox. In: FillPlan, from the node.
#pragma once

#include <caf/all.hpp>
#include <memory>

#include "runtime/feed/ring_filler.hpp"

namespace simplescale {

struct DataloaderState {
  static inline const char* name = "dataloader";
};

/// Quits with an error if the filler refuses a plan; its supervisor restarts it.
caf::behavior dataloader_actor(caf::stateful_actor<DataloaderState>* self,
                               std::shared_ptr<RingFiller> filler);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::FillPlan)
