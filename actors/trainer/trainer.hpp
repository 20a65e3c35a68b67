// The trainer actor: the voice of the compute thread. It presents itself to the node, hands orders
// to the compute thread and its reports to the node. Handlers never block; the compute thread does
// the work.
#pragma once

#include <caf/all.hpp>
#include <functional>
#include <memory>

#include "actors/trainer/compute_thread.hpp"

namespace simplescale {

struct TrainerActorState {
  static inline const char* name = "trainer";
  std::unique_ptr<ComputeThread> compute;
};

struct TrainerOptions {
  ComputeOptions compute;
  std::function<void(int exit_code)> finished;  // ends the process
};

caf::behavior trainer_actor(caf::stateful_actor<TrainerActorState>* self, caf::actor node,
                            TrainerOptions options,
                            std::shared_ptr<std::unique_ptr<DataPlane>> plane);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::ComputeReport)
