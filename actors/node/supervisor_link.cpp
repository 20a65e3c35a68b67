#include "actors/node/supervisor_link.hpp"

#include "actors/clock.hpp"
#include "runtime/base/log.hpp"

namespace simplescale {

namespace {

using Self = caf::stateful_actor<LinkState>;
using namespace std::chrono_literals;

constexpr size_t kReportsMax = 100'000;  // beyond that the oldest are forgotten
constexpr int64_t kLookMs = 20;          // how often the epochs are looked at without a supervisor
constexpr int64_t kAskAgainMs = 100;     // the same address is tried again
constexpr int64_t kPatienceMs = 1'000;   // before a node starts a supervisor
constexpr int64_t kTakeoverMs = 3'000;   // the same where a standby is to take over
constexpr int64_t kPerNodeMs = 500;      // more for each node,
constexpr int64_t kPerNodeMaxMs = 10'000;  // at most this
constexpr int64_t kVoteAfterMs = 1'500;    // that one lives and cannot be reached

/// One node after the other starts a supervisor; only the first is needed.
int64_t turn_ms(const LinkState& s) {
  return std::min(kPerNodeMs * s.options.index, kPerNodeMaxMs);
}

void alone(Self* self, int64_t patience_ms) {
  LinkState& s = self->state;
  s.alone_since_ms = now_ms(self);
  s.start_at_ms = s.alone_since_ms + patience_ms;
  s.asking = s.prepares = s.votes = false;
  s.seen_since_ms = s.beat_at_ms = s.alone_since_ms;
  s.options.watch->poll_every(kLookMs);
  self->delayed_send(self, 200ms, local::Tick{});
}

template <class Message>
void to_leader(Self* self, const Message& message) {
  if (self->state.leader) self->send(self->state.leader, message);
}

template <class Message>
void report(Self* self, const Message& message) {
  LinkState& s = self->state;
  if (s.reports.size() >= kReportsMax) s.reports.pop_front();
  s.reports.emplace_back(message);
  to_leader(self, message);
}

/// Everything that a supervisor which knows nothing of this node must hear, in the order in which
/// it happened to each trainer.
void present(Self* self) {
  LinkState& s = self->state;
  if (!s.hello) return;
  s.hello->epoch = s.lead.epoch;
  to_leader(self, *s.hello);
  for (auto& [name, trainer] : s.trainers) {
    // Why a trainer left the newest generation is news; that it is idle shows in its generation.
    const bool news = trainer.idle && trainer.idle->generation + 1 >= s.generation;
    if (trainer.up.pid > 0) {
      TrainerUp up = trainer.up;
      const HeldState held = s.options.held(name);
      up.shard = held.shard;
      up.held = held.steps;
      if (trainer.idle && !news) up.generation = 0;
      to_leader(self, up);
    }
    if (news) to_leader(self, *trainer.idle);
    if (trainer.down) to_leader(self, *trainer.down);
  }
  if (s.copies) to_leader(self, *s.copies);
  for (const auto& report : s.reports)
    std::visit([self](const auto& message) { to_leader(self, message); }, report);
  if (s.stop) to_leader(self, *s.stop);
}

/// What the run's records have need not be told again. Saved shards stay a little longer: they
/// count when their checkpoint is published.
void forget(LinkState& s, uint64_t recorded_step) {
  auto told = [recorded_step](const LinkState::Report& report) {
    if (const auto* done = std::get_if<StepDone>(&report)) return done->step <= recorded_step;
    if (const auto* valid = std::get_if<Validated>(&report)) return valid->step < recorded_step;
    if (const auto* ready = std::get_if<TrainerReady>(&report)) return ready->step < recorded_step;
    return false;
  };
  std::erase_if(s.reports, told);
  size_t others = 0;
  for (size_t i = s.reports.size(); i-- > 0;)
    if (!std::holds_alternative<StepDone>(s.reports[i]) && ++others > 64)
      s.reports.erase(s.reports.begin() + static_cast<std::ptrdiff_t>(i));
}

void leave_run(Self* self, const std::string& reason) {
  LinkState& s = self->state;
  if (s.over) return;
  s.over = true;
  s.options.watch->poll_every(0);
  if (s.node) self->send(s.node, Shutdown{exit_code(Code::requeue), reason});
}

/// A supervisor that lives, and cannot be reached from here, is waited for as long as it leads; if
/// most nodes find it so, it is to resign.
void vote(Self* self, const local::EpochsSeen& view) {
  LinkState& s = self->state;
  const int64_t now = now_ms(self);
  if (view.number != std::exchange(s.seen, view.number)) {
    s.seen_since_ms = now;
    s.votes = s.prepares = false;
  }
  if (view.number == 0) return;
  if (view.lives) s.beat_at_ms = now;
  if (view.resigned && std::exchange(s.votes, false))
    s.start_at_ms = std::min(s.start_at_ms, now + turn_ms(s));
  if (!view.lives || s.votes || s.prepares ||
      now - std::max(s.seen_since_ms, s.alone_since_ms) < kVoteAfterMs)
    return;
  s.votes = true;
  s.options.watch->vote(view.number, s.options.node);
  log::warn("the supervisor of epoch {} lives, but cannot be reached from here", view.number);
}

/// A look at the epochs, while there is no supervisor.
void seen(Self* self, const local::EpochsSeen& view) {
  LinkState& s = self->state;
  if (s.leader || s.over || !view.answered) return;
  if (!view.current) return leave_run(self, "the run has been started anew");
  const int64_t now = now_ms(self);
  vote(self, view);
  const bool again = s.asked != view.number || (!s.asking && now - s.asked_at_ms >= kAskAgainMs);
  if (view.number > 0 && view.number >= s.epoch && !view.address.empty() && again) {
    s.asked = view.number;
    s.asking = true;
    s.asked_at_ms = now;
    s.options.lookup(view.address, [me = caf::actor_cast<caf::actor>(self),
                                    number = view.number](Result<caf::actor> found) {
      caf::anon_send(me, local::SupervisorFound{number, found.ok() ? *found : caf::actor(),
                                                found.ok() ? "" : found.status().message(),
                                                found.status().code() == Code::not_found});
    });
  }
  // A run in which nobody has led yet begins with its first node.
  const bool first = view.number == 0 && s.epoch == 0 && s.options.index == 0;
  if (now < s.start_at_ms && !(first && s.start_at_ms != INT64_MAX)) return;
  log::info("no supervisor answers; starting one");
  if (Status started = s.options.start_supervisor(""); !started.ok())
    log::error("cannot start a supervisor: {}", started.message());
  s.epoch = std::max<uint64_t>(s.epoch, 1);  // not the first any more
  s.start_at_ms = now + kTakeoverMs + turn_ms(s);
}

void found(Self* self, const local::SupervisorFound& found) {
  LinkState& s = self->state;
  if (s.leader || s.over || found.number != s.asked) return;
  s.asking = false;
  if (!found.supervisor) {
    log::debug("supervisor {} does not answer: {}", found.number, found.error);
    s.prepares = found.prepares;
    if (found.prepares) s.start_at_ms = now_ms(self) + kPatienceMs + turn_ms(s);
    return;
  }
  s.leader = found.supervisor;
  s.epoch = found.number;
  s.options.watch->poll_every(0);
  s.options.watch->vote(0, "");
  self->monitor(s.leader);
  log::info("the supervisor is that of epoch {}", s.epoch);
  present(self);
}

/// LEAD-1: true if a command comes from who leads.
bool from_leader(Self* self) {
  const LinkState& s = self->state;
  if (s.leader && self->current_sender() == s.leader) return true;
  log::warn("a command from somebody who does not lead is ignored");
  return false;
}

template <class Message>
auto passed_on(Self* self) {
  return [self](const Message& message) {
    if (from_leader(self) && self->state.node) self->send(self->state.node, message);
  };
}

template <class Message>
auto reported(Self* self) {
  return [self](const Message& message) { report(self, message); };
}

caf::message_handler commands(Self* self) {
  return {
      [self](const JoinGeneration& join) {
        LinkState& s = self->state;
        if (!from_leader(self)) return;
        s.generation = join.generation;
        for (const Member& member : join.members)
          if (auto at = s.trainers.find(member.trainer); at != s.trainers.end()) {
            at->second.up.generation = member.group == no_group ? 0 : join.generation;
            at->second.up.shard = member.shard;
            at->second.idle.reset();
          }
        self->send(s.node, join);
      },
      [self](const FenceGeneration& fence) {
        LinkState& s = self->state;
        if (!from_leader(self)) return;
        s.generation = std::max(s.generation, fence.generation);
        self->send(s.node, fence);
      },
      passed_on<LeaveGeneration>(self),
      passed_on<StopTraining>(self),
      passed_on<KillTrainer>(self),
      passed_on<SaveCheckpoint>(self),
      passed_on<CheckNode>(self),
      passed_on<CopyToPeers>(self),
      passed_on<WriteTrace>(self),
      passed_on<InjectFault>(self),
      [self](const Shutdown& order) {
        LinkState& s = self->state;
        if (!from_leader(self)) return;
        s.over = true;
        self->send(s.node, order);
      },
      [self](const Lead& lead) {
        LinkState& s = self->state;
        if (!from_leader(self)) return;
        s.lead = lead;
        s.epoch = std::max(s.epoch, lead.epoch);
        forget(s, lead.recorded_step);
      },
      [self](const HostStandby& order) {
        if (!from_leader(self)) return;
        if (Status started = self->state.options.start_supervisor(order.address); !started.ok())
          log::error("cannot start a standby: {}", started.message());
      },
  };
}

}  // namespace

local::EpochsSeen epochs_seen(const EpochView& view) {
  return {view.answered,       view.current,        view.newest.number,
          view.newest.address, view.leader_alive(), view.resigned};
}

caf::behavior supervisor_link(Self* self, LinkOptions options) {
  LinkState& s = self->state;
  s.options = std::move(options);
  alone(self, kPatienceMs + turn_ms(s));
  self->set_down_handler([self](const caf::down_msg& down) {
    LinkState& s = self->state;
    if (!s.leader || down.source != s.leader.address()) return;
    s.leader = nullptr;
    if (s.over) return;
    log::warn("the supervisor of epoch {} is lost; training goes on", s.epoch);
    alone(self, (s.lead.standby_node.empty() ? kPatienceMs : kTakeoverMs) + turn_ms(s));
  });
  const caf::message_handler reports{
      [self](const NodeHello& hello) {
        LinkState& s = self->state;
        s.node = caf::actor_cast<caf::actor>(self->current_sender());
        s.hello = hello;
        if (s.leader) present(self);
      },
      [self](const TrainerUp& up) {
        LinkState::Trainer& trainer = self->state.trainers[up.trainer];
        trainer = {up, std::nullopt, std::nullopt};
        to_leader(self, up);
      },
      [self](const TrainerDown& down) {
        LinkState::Trainer& trainer = self->state.trainers[down.trainer];
        trainer.down = down;
        trainer.up.pid = 0;
        to_leader(self, down);
      },
      [self](const TrainerIdle& idle) {
        // The answer to a fence says less than what the trainer found in that generation; and that
        // to an older one, which may have had to wait, nothing.
        LinkState::Trainer& trainer = self->state.trainers[idle.trainer];
        const uint64_t newest =
            std::max(trainer.up.generation, trainer.idle ? trainer.idle->generation : 0);
        const bool news =
            !trainer.idle || trainer.idle->generation < idle.generation || !idle.fault.empty();
        if (idle.generation >= newest && news) trainer.idle = idle;
        to_leader(self, idle);
      },
      [self](const PeerCopies& copies) {
        self->state.copies = copies;
        to_leader(self, copies);
      },
      [self](const CopySent& sent) { to_leader(self, sent); },
      [self](const NodeHealth& health) { to_leader(self, health); },
      // Not told again: whoever still wants to know asks anew, and this may be of long ago.
      [self](const NodeChecked& checked) { to_leader(self, checked); },
      [self](const RequestStop& stop) {
        self->state.stop = stop;
        to_leader(self, stop);
      },
      [self](const LogFound& found) { to_leader(self, found); },
      reported<TrainerReady>(self),
      reported<StepDone>(self),
      reported<Validated>(self),
      reported<TrainerFinished>(self),
      reported<ShardSaved>(self),
  };
  const caf::message_handler own{
      [self](const local::EpochsSeen& view) { seen(self, view); },
      [self](const local::SupervisorFound& result) { found(self, result); },
      [self](const local::Tick&) {
        LinkState& s = self->state;
        if (s.leader || s.over) return;
        const int64_t limit = s.options.join_timeout_ms;
        if (now_ms(self) - std::max(s.alone_since_ms, s.beat_at_ms) > limit)
          return leave_run(self, "no supervisor has shown up within " + std::to_string(limit) +
                                     " ms; is the run folder on a file system that all nodes see?");
        self->delayed_send(self, 200ms, local::Tick{});
      },
  };
  return reports.or_else(commands(self)).or_else(own);
}

}  // namespace simplescale
