#include "actors/node/memory_sender.hpp"

#include "actors/peer/transfer.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"

namespace simplescale {

void send_from_memory(caf::event_based_actor* node, std::shared_ptr<DataPlane> plane,
                      JoinTrainer order, std::vector<Unit> units, int timeout_ms) {
  auto run = [=, to = caf::actor_cast<caf::actor>(node)](caf::event_based_actor* self) {
    std::vector<Hash128> blocks;
    for (const TransferPart& part : order.transfers) {
      const Status status = send_segment(*plane, order.generation, part, units, blocks, timeout_ms)
                                .in("transfer " + std::to_string(part.id) + " of shard " +
                                    std::to_string(part.shard));
      if (status.ok()) continue;
      log::warn("generation {}: {}", order.generation, status.message());
      const bool bad = status.code() == Code::mismatch || status.code() == Code::not_found;
      self->send(to, TrainerIdle{.trainer = order.trainer,
                                 .generation = order.generation,
                                 .fault = bad ? Fault::bad_copy : Fault::failed,
                                 .step = part.step,
                                 .suspect = bad ? order.trainer : "",
                                 .reason = {status.message()}});
      return;
    }
    log::info("generation {}: the agent helped with {} transfers", order.generation,
              order.transfers.size());
  };
  node->spawn<caf::detached>(std::move(run));
}

}  // namespace simplescale
