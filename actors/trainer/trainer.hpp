// The trainer actor: the voice of the compute thread. It presents its process to the node, says
// several times a second that it lives and how far the compute thread is, hands orders to the
// compute thread and its reports to the node. Handlers never block; the compute thread does the
// work.
#pragma once

#include <caf/all.hpp>
#include <functional>
#include <memory>
#include <string>

#include "actors/trainer/compute_thread.hpp"

namespace simplescale {

struct TrainerActorState {
  static inline const char* name = "trainer";
  std::unique_ptr<ComputeThread> compute;
};

struct TrainerOptions {
  std::string process;  // "n1/p2"; which trainer it is, it learns with its first generation
  std::chrono::milliseconds heartbeat{100};
  ComputeOptions compute;
  std::function<void(const std::string& trainer)> became;  // called with every generation joined
  std::function<void(int exit_code)> finished;             // ends the process
};

/// data_address: how other trainers reach the plane.
caf::behavior trainer_actor(caf::stateful_actor<TrainerActorState>* self, caf::actor node,
                            TrainerOptions options, std::vector<uint8_t> data_address,
                            std::shared_ptr<std::unique_ptr<DataPlane>> plane);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::ComputeReport)
