#include "actors/supervisor/standby.hpp"

#include <unistd.h>

#include "actors/clock.hpp"
#include "runtime/base/log.hpp"
#include "transport/caf/transport.hpp"

namespace simplescale {

namespace {

using Self = caf::stateful_actor<StandbyState>;
constexpr int64_t kWatchMs = 100;  // between two reads of the epoch files after the loss
constexpr int64_t kUselessMs =
    4'000;  // if the heartbeat continues so long, only the link is broken

void end(Self* self, bool take_over, const std::string& reason, bool silent) {
  StandbyState& s = self->state;
  auto ended = std::move(s.options.ended);
  s.options.ended = nullptr;
  if (ended) ended(take_over ? s.replica : std::nullopt, reason, silent);
  self->quit();
}

void lost(Self* self, const std::string& reason) {
  StandbyState& s = self->state;
  if (s.lost || !s.options.ended) return;
  s.lost = true;
  s.lost_at_ms = now_ms(self);
  s.reason = reason;
  if (!s.replica)
    return end(self, false, "the supervisor was lost before it sent its state", false);
  log::warn("the supervisor is lost: {}", reason);
  // Silence may be a network fault. A connection closed by the supervisor's host proves that its
  // process has ended.
  if (reason.starts_with("connection lost") || reason == "its process has ended")
    return end(self, true, reason, false);
  s.options.watch->poll_every(kWatchMs);
}

}  // namespace

caf::behavior standby_actor(Self* self, caf::actor supervisor, StandbyOptions options) {
  StandbyState& s = self->state;
  s.options = std::move(options);
  s.supervisor = std::move(supervisor);
  self->monitor(s.supervisor);
  self->set_down_handler([self](const caf::down_msg& down) {
    if (down.source != self->state.supervisor.address()) return;
    const std::string why = why_lost(down.reason);
    lost(self, why.empty() ? "connection lost: the supervisor has ended" : why);
  });
  self->send(s.supervisor, StandbyHello{s.options.node, getpid(), s.options.address});
  return {
      [self](const Replica& replica) {
        StandbyState& s = self->state;
        if (self->current_sender() != s.supervisor) return;  // LEAD-1
        auto state = decode(replica.state);
        if (!state.ok()) {
          log::error("the supervisor sent {}", state.status().message());
          return;
        }
        s.replica = state.take();
        s.replica->epoch = replica.epoch;
        s.replica->sequence = replica.sequence;
        self->send(s.supervisor, ReplicaKept{replica.sequence});
      },
      [self](const Shutdown& order) { end(self, false, order.reason, false); },
      [self](const local::LeaderSeen& seen) {
        StandbyState& s = self->state;
        if (!s.options.ended) return;
        if (seen.answered && !seen.current)
          return end(self, false, "the run was started again", false);
        if (seen.answered && s.replica && seen.newest > s.replica->epoch)
          return end(self, false, "epoch " + std::to_string(seen.newest) + " leads", false);
        if (!s.lost || !seen.answered) return;
        if (!seen.lives) return end(self, true, s.reason, true);
        if (now_ms(self) - s.lost_at_ms > kUselessMs)
          return end(self, false, "the supervisor lives, but this standby cannot reach it", false);
      },
  };
}

}  // namespace simplescale
