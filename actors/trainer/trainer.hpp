// The trainer actor: connects the compute thread of its process to the node's agent. It announces
// the process to the node, sends heartbeats with the compute thread's progress, passes the node's
// orders to the compute thread and the compute thread's reports to the node. Handlers never block;
// the compute thread does the work.
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
  std::string process;  // "n1/p2"; the process learns its trainer's name with its first generation
  std::chrono::milliseconds heartbeat{100};
  ComputeOptions compute;
  std::function<void(const std::string& trainer)> became;  // called for every JoinTrainer
  std::function<void(int exit_code)> finished;             // ends the process
};

/// data_address: the address at which other trainers reach `plane`. The actor takes *plane.
caf::behavior trainer_actor(caf::stateful_actor<TrainerActorState>* self, caf::actor node,
                            TrainerOptions options, std::vector<uint8_t> data_address,
                            std::shared_ptr<std::unique_ptr<DataPlane>> plane);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::ComputeReport)
