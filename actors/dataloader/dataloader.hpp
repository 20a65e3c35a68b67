// The dataloader actor of a node: one for all its trainers. It tells the filler thread
// (runtime/data/ring_filler.hpp) what to keep ready; tokens themselves never pass through a
// mailbox.
#pragma once

#include <caf/all.hpp>
#include <memory>

#include "actors/local.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/data/ring_filler.hpp"

namespace simplescale {

struct DataloaderState {
  static inline const char* name = "dataloader";
};

caf::behavior dataloader_actor(caf::stateful_actor<DataloaderState>* self,
                               std::shared_ptr<RingFiller> filler, Plan plan);

}  // namespace simplescale
