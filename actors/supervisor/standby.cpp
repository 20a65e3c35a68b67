#include "actors/supervisor/standby.hpp"

#include <unistd.h>

#include <utility>

#include "actors/clock.hpp"
#include "actors/essential.hpp"
#include "runtime/base/log.hpp"
#include "transport/caf/transport.hpp"

namespace simplescale {

namespace {

using StandbyActor = caf::stateful_actor<StandbyState>;
constexpr int64_t kWatchMs = 100;  // between two reads of the term files after the loss

void carry_out(StandbyActor* self, const Failover::Decision& decision) {
  StandbyState& s = self->state;
  if (decision.verdict == Failover::Verdict::wait) return;
  auto ended = std::exchange(s.options.ended, nullptr);
  const bool takes_over = decision.verdict == Failover::Verdict::take_over;
  if (ended) ended(takes_over ? s.replica : std::nullopt, decision.reason, decision.silent);
  self->quit();
}

void lost(StandbyActor* self, const Reason& reason) {
  StandbyState& s = self->state;
  if (s.failover.is_lost() || !s.options.ended) return;
  log::warn("the supervisor is lost: {}", reason.text);
  s.options.watch->poll_every(kWatchMs);
  carry_out(self, s.failover.lost(reason, s.replica.has_value(), now_ms(self)));
}

}  // namespace

caf::behavior standby_actor(StandbyActor* self, caf::actor supervisor, StandbyOptions options) {
  end_process_with(self, "standby");
  StandbyState& s = self->state;
  s.options = std::move(options);
  s.supervisor = std::move(supervisor);
  self->monitor(s.supervisor);
  self->set_down_handler([self](const caf::down_msg& down) {
    if (down.source != self->state.supervisor.address()) return;
    lost(self, why_lost(down.reason)
                   .value_or(reason_of(ReasonKind::process_ended,
                                       "connection lost: the supervisor has ended")));
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
        s.replica->term = replica.term;
        s.replica->sequence = replica.sequence;
        self->send(s.supervisor, ReplicaKept{replica.sequence});
      },
      [self](const Shutdown& order) {
        carry_out(self, {Failover::Verdict::end, in_words(order.reason), false});
      },
      [self](const local::LeaderSeen& seen) {
        StandbyState& s = self->state;
        if (!s.options.ended) return;
        carry_out(self, s.failover.seen(seen, s.replica ? s.replica->term : 0, now_ms(self)));
      },
  };
}

}  // namespace simplescale
