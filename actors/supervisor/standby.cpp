#include "actors/supervisor/standby.hpp"

#include <unistd.h>

#include "actors/clock.hpp"
#include "runtime/base/log.hpp"

namespace simplescale {

namespace {

using Self = caf::stateful_actor<StandbyState>;
constexpr int64_t kWatchMs = 100;      // how often it is looked at once the link is broken
constexpr int64_t kUselessMs = 4'000;  // a heartbeat that goes on so long: only the link is broken

void end(Self* self, bool take_over, const std::string& reason, bool silent) {
  StandbyState& s = self->state;
  auto ended = std::move(s.options.ended);
  s.options.ended = nullptr;
  if (ended) ended(take_over ? s.kept : std::nullopt, reason, silent);
  self->quit();
}

void lost(Self* self, const std::string& reason) {
  StandbyState& s = self->state;
  if (s.lost || !s.options.ended) return;
  s.lost = true;
  s.lost_at_ms = now_ms(self);
  s.why = reason;
  if (!s.kept) return end(self, false, "the supervisor is lost before it said anything", false);
  log::warn("the supervisor is lost: {}", reason);
  // Not a word from it for some time may be the network's doing; a connection that the other
  // side's system closed is not.
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
    if (down.reason != caf::exit_reason::remote_link_unreachable)
      return lost(self, "connection lost: the supervisor has ended");
    // The transport says why in a message of its own; should that be missing, silence it is.
    self->delayed_send(self, std::chrono::milliseconds(50),
                       local::SupervisorLost{"it does not answer any more"});
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
        s.kept = state.take();
        s.kept->epoch = replica.epoch;
        s.kept->sequence = replica.sequence;
        self->send(s.supervisor, ReplicaKept{replica.sequence});
      },
      [self](const Shutdown& order) { end(self, false, order.reason, false); },
      [self](const local::SupervisorLost& loss) { lost(self, loss.reason); },
      [self](const local::LeaderSeen& seen) {
        StandbyState& s = self->state;
        if (!s.options.ended) return;
        if (seen.answered && !seen.current)
          return end(self, false, "the run has been started anew", false);
        if (seen.answered && s.kept && seen.newest > s.kept->epoch)
          return end(self, false, "epoch " + std::to_string(seen.newest) + " leads", false);
        if (!s.lost || !seen.answered) return;
        if (!seen.lives) return end(self, true, s.why, true);
        if (now_ms(self) - s.lost_at_ms > kUselessMs)
          return end(self, false, "the supervisor lives, but cannot be reached from here", false);
      },
  };
}

}  // namespace simplescale
