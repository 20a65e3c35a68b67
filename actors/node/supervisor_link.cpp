#include "actors/node/supervisor_link.hpp"

#include <algorithm>
#include <utility>

#include "actors/clock.hpp"
#include "actors/essential.hpp"
#include "runtime/base/log.hpp"

namespace simplescale {

namespace {

using LinkActor = caf::stateful_actor<LinkState>;

constexpr size_t kReportsMax = 100'000;    // with more, the oldest are dropped
constexpr size_t kOtherReportsMax = 64;    // other reports than StepDone that are kept after a Lead
constexpr int64_t kPollMs = 20;            // how often the terms are polled without a supervisor
constexpr int64_t kRetryLookupMs = 100;    // between two lookups of the same address
constexpr int64_t kStartAfterMs = 1'000;   // before a node starts a supervisor
constexpr int64_t kTakeoverMs = 3'000;     // the same, if a standby can take over
constexpr int64_t kPerNodeMs = 500;        // plus this for each index
constexpr int64_t kPerNodeMaxMs = 10'000;  // but at most this
constexpr int64_t kVoteAfterMs = 1'500;    // a supervisor lives for so long, but is unreachable
constexpr int64_t kLeaderPollMs = 1'000;   // how often the terms are polled with a supervisor
constexpr int64_t kCheckMs = 200;          // how often join_timeout_ms is checked

/// Delays the nodes by different times, so that normally only one of them starts a supervisor.
int64_t stagger_ms(const LinkState& s) {
  return std::min(kPerNodeMs * s.options.index, kPerNodeMaxMs);
}

/// Starts to look for a supervisor; after delay_ms this node starts one.
void look_for_supervisor(LinkActor* self, int64_t delay_ms) {
  LinkState& s = self->state;
  s.checked_ms = now_ms(self);
  s.search.begin(s.checked_ms);
  s.start_at_ms = s.checked_ms + delay_ms;
  s.lookup_pending = s.preparing = s.voted = s.stayed = false;
  s.options.watch->poll_every(kPollMs);
  self->delayed_send(self, std::chrono::milliseconds(kCheckMs), local::Tick{});
}

template <class Message>
void to_leader(LinkActor* self, const Message& message) {
  if (self->state.leader) self->send(self->state.leader, message);
}

/// Tells a new leader everything about this node. Keeps the order of events of each trainer.
void introduce_node(LinkActor* self) {
  LinkState& s = self->state;
  if (!s.hello) return;
  s.hello->term = s.lead.term;
  to_leader(self, *s.hello);
  // Send these before the trainers: a generation may begin as soon as the last trainer is known
  // (JOB-1).
  if (s.copies) to_leader(self, PeerCopies{s.copies->node, s.copies->copies, 0});
  for (auto& [name, trainer] : s.trainers) {
    // The leader must learn why a trainer left the newest generation. If it left an older one, it
    // suffices that the trainer is in no generation.
    const bool news = trainer.idle && trainer.idle->generation >= s.generation;
    if (trainer.up.pid > 0) {
      TrainerUp up = trainer.up;
      up.held = s.options.held(name);
      if (trainer.idle && !news) up.generation = 0;
      to_leader(self, up);
    }
    if (news) to_leader(self, *trainer.idle);
    if (trainer.down) to_leader(self, *trainer.down);
  }
  for (const auto& report : s.reports)
    std::visit([self](const auto& message) { to_leader(self, message); }, report);
  if (s.stop) to_leader(self, *s.stop);
}

/// Drops the reports that the run's records have. Keeps ShardSaved, which counts until its
/// checkpoint is published, and Validated, which the checkpoint of its step records.
void drop_recorded(LinkState& s, uint64_t recorded_step) {
  auto recorded = [recorded_step](const LinkState::Report& report) {
    if (const auto* done = std::get_if<StepDone>(&report)) return done->step <= recorded_step;
    if (const auto* ready = std::get_if<TrainerReady>(&report)) return ready->step < recorded_step;
    return false;
  };
  std::erase_if(s.reports, recorded);
  size_t others = 0;
  for (size_t i = s.reports.size(); i-- > 0;)
    if (!std::holds_alternative<StepDone>(s.reports[i]) && ++others > kOtherReportsMax)
      s.reports.erase(s.reports.begin() + static_cast<std::ptrdiff_t>(i));
}

void leave_run(LinkActor* self, const std::string& reason) {
  LinkState& s = self->state;
  if (s.leaving) return;
  s.leaving = true;
  s.options.watch->poll_every(0);
  if (s.node) self->send(s.node, Shutdown{exit_code(Code::requeue), reason});
}

/// Votes against a supervisor that lives but cannot be reached from this node. The supervisor
/// resigns if it loses the majority; until then this node waits as long as that supervisor leads.
void vote_if_unreachable(LinkActor* self, const local::TermsPolled& polled) {
  LinkState& s = self->state;
  const int64_t now = now_ms(self);
  if (s.search.seen(polled.number, polled.lives, now)) s.voted = s.preparing = false;
  if (polled.number == 0) return;
  if (polled.resigned && std::exchange(s.voted, false))
    s.start_at_ms = std::min(s.start_at_ms, now + stagger_ms(s));
  if (!polled.lives || s.voted || s.preparing || now - s.search.since_ms() < kVoteAfterMs) return;
  s.voted = true;
  s.options.watch->vote(polled.number, s.options.node);
  log::warn("the supervisor of term {} lives, but cannot be reached from this node", polled.number);
}

void look_up_supervisor(LinkActor* self, const local::TermsPolled& polled) {
  LinkState& s = self->state;
  s.lookup_term = polled.number;
  s.lookup_pending = true;
  s.lookup_ms = now_ms(self);
  s.options.lookup(polled.address, [me = caf::actor_cast<caf::actor>(self),
                                    number = polled.number](Result<caf::actor> found) {
    caf::anon_send(me, local::LookupDone{number, found.ok() ? *found : caf::actor(),
                                         found.ok() ? "" : found.status().message(),
                                         found.status().code() == Code::not_found});
  });
}

/// LEAD-1: leaves a supervisor that has been replaced. It may not know that yet, if its host has
/// lost the run folder. This node takes no more commands from it, and connects to the newest
/// supervisor.
void leave_deposed_leader(LinkActor* self, uint64_t newest) {
  LinkState& s = self->state;
  log::warn("term {} leads; leaving the supervisor of term {}", newest, s.term);
  self->demonitor(s.leader);
  s.options.disconnect(s.leader.node(), "term " + std::to_string(newest) + " leads");
  s.leader = nullptr;
  look_for_supervisor(self, kTakeoverMs + stagger_ms(s));
}

void on_terms_polled(LinkActor* self, const local::TermsPolled& polled) {
  LinkState& s = self->state;
  if (s.leaving || !polled.answered) return;
  if (!polled.current) return leave_run(self, "the run was started again");
  if (polled.number < s.search.newest()) return;  // an old answer: terms only grow
  if (s.leader && polled.number > s.term) leave_deposed_leader(self, polled.number);
  if (s.leader) return;
  const int64_t now = now_ms(self);
  vote_if_unreachable(self, polled);
  const bool due =
      s.lookup_term != polled.number || (!s.lookup_pending && now - s.lookup_ms >= kRetryLookupMs);
  if (polled.number > 0 && polled.number >= s.term && !polled.address.empty() && due)
    look_up_supervisor(self, polled);
  // Node 0 starts the first supervisor of a run, without a delay.
  const bool first = polled.number == 0 && s.term == 0 && s.options.index == 0;
  if (now < s.start_at_ms && !(first && s.start_at_ms != INT64_MAX)) return;
  log::info("no supervisor answers; starting one");
  if (Status started = s.options.start_supervisor(""); !started.ok())
    log::error("cannot start a supervisor: {}", started.message());
  s.term = std::max<uint64_t>(s.term, 1);  // so that `first` is false from now on
  s.start_at_ms = now + kTakeoverMs + stagger_ms(s);
}

void on_lookup_done(LinkActor* self, const local::LookupDone& found) {
  LinkState& s = self->state;
  if (s.leader || s.leaving || found.number != s.lookup_term) return;
  s.lookup_pending = false;
  if (!found.supervisor) {
    log::debug("supervisor {} does not answer: {}", found.number, found.error);
    s.preparing = found.preparing;
    if (found.preparing) s.start_at_ms = now_ms(self) + kStartAfterMs + stagger_ms(s);
    return;
  }
  s.leader = found.supervisor;
  s.term = found.number;
  s.options.watch->poll_every(kLeaderPollMs);
  s.options.watch->vote(0, "");
  self->monitor(s.leader);
  log::info("connected to the supervisor of term {}", s.term);
  introduce_node(self);
}

void leader_lost(LinkActor* self) {
  LinkState& s = self->state;
  s.leader = nullptr;
  if (s.leaving) return;
  log::warn("the supervisor of term {} is lost; training goes on", s.term);
  look_for_supervisor(self,
                      (s.lead.standby_node.empty() ? kStartAfterMs : kTakeoverMs) + stagger_ms(s));
}

void check_join_timeout(LinkActor* self) {
  LinkState& s = self->state;
  if (s.leader || s.leaving) return;
  const int64_t limit = s.options.join_timeout_ms, now = now_ms(self);
  const int64_t late_ms = now - std::exchange(s.checked_ms, now) - kCheckMs;
  s.search.stopped(std::max<int64_t>(0, late_ms), now);
  const auto verdict = s.search.verdict(limit, holds_state(s), s.stop.has_value(), now);
  if (verdict != LeaderSearch::Verdict::wait) {
    const std::string silence =
        "no supervisor has answered within " + std::to_string(limit) + " ms";
    if (verdict == LeaderSearch::Verdict::leave)
      return leave_run(self, silence + "; is the run folder on a file system that all nodes see?");
    if (!std::exchange(s.stayed, true))
      log::warn(
          "{}; this node stays, since its memory holds a state of training; look into "
          "logs/supervisor-*.log and free space on the disk, or end the run (Ctrl-C)",
          silence);
  }
  self->delayed_send(self, std::chrono::milliseconds(kCheckMs), local::Tick{});
}

/// Handles a request to stop. A stop with `now` does not wait for a supervisor.
void stop_requested(LinkActor* self, const RequestStop& stop) {
  LinkState& s = self->state;
  s.stop = stop;
  to_leader(self, stop);
  if (!s.leader && stop.now) leave_run(self, stop.reason);
}

// --- Commands ---

/// LEAD-1: true if the leader has sent the command that is being handled.
bool from_leader(LinkActor* self) {
  const LinkState& s = self->state;
  if (s.leader && self->current_sender() == s.leader) return true;
  log::warn("ignored a command that the current supervisor has not sent");
  return false;
}

/// A function that updates the state for a message.
template <class Message>
using Update = void (*)(LinkState&, const Message&);

/// A handler that relays a command of the leader to the node.
template <class Message>
auto relayed(LinkActor* self, Update<Message> update = nullptr) {
  return [self, update](const Message& message) {
    LinkState& s = self->state;
    if (!from_leader(self)) return;
    if (update) update(s, message);
    if (s.node) self->send(s.node, message);
  };
}

void joined(LinkState& s, const JoinGeneration& job) {
  s.generation = job.generation;
  if (s.hello && job.instructions != InstructionSet::automatic)
    s.hello->run_instructions = job.instructions;
  for (const Member& member : job.members)
    if (auto at = s.trainers.find(member.trainer); at != s.trainers.end()) {
      at->second.up.generation = member.group == no_group ? 0 : job.generation;
      at->second.idle.reset();
    }
}

caf::message_handler commands(LinkActor* self) {
  return {
      relayed<JoinGeneration>(self, joined),
      relayed<FenceGeneration>(self),
      relayed<LeaveGeneration>(self),
      relayed<StopTraining>(self),
      relayed<KillTrainer>(self),
      relayed<SaveCheckpoint>(self),
      relayed<CheckNode>(self),
      relayed<CopyToPeers>(self),
      relayed<WriteTrace>(self),
      relayed<ReportProgress>(self),
      relayed<InjectFault>(self),
      relayed<Shutdown>(self, [](LinkState& s, const Shutdown&) { s.leaving = true; }),
      [self](const Lead& lead) {
        LinkState& s = self->state;
        if (!from_leader(self)) return;
        s.lead = lead;
        s.term = std::max(s.term, lead.term);
        drop_recorded(s, lead.recorded_step);
      },
      [self](const HostStandby& order) {
        if (!from_leader(self)) return;
        if (Status started = self->state.options.start_supervisor(order.address); !started.ok())
          log::error("cannot start a standby: {}", started.message());
      },
  };
}

// --- Reports ---

/// A handler that sends a report of the node to the leader. keep: stores what a later leader must
/// learn; nullptr: nothing, because a leader asks for it again.
template <class Message>
auto sent(LinkActor* self, Update<Message> keep = nullptr) {
  return [self, keep](const Message& message) {
    if (keep) keep(self->state, message);
    to_leader(self, message);
  };
}

template <class Message>
void keep_report(LinkState& s, const Message& message) {
  if (s.reports.size() >= kReportsMax) s.reports.pop_front();
  s.reports.emplace_back(message);
}

void keep_down(LinkState& s, const TrainerDown& down) {
  LinkState::Trainer& trainer = s.trainers[down.trainer];
  trainer.down = down;
  trainer.up.pid = 0;
}

/// Keeps why a trainer left its newest generation. An answer to a fence has no fault: it does not
/// replace a fault that the trainer found in the same generation. Ignores a late answer about an
/// older generation.
void keep_idle(LinkState& s, const TrainerIdle& idle) {
  LinkState::Trainer& trainer = s.trainers[idle.trainer];
  const uint64_t newest =
      std::max(trainer.up.generation, trainer.idle ? trainer.idle->generation : 0);
  const bool fault = trainer.idle && trainer.idle->fault != Fault::none &&
                     trainer.idle->generation >= trainer.up.generation;
  const bool news = !fault || idle.fault != Fault::none;
  if (idle.generation >= newest && news) trainer.idle = idle;
}

caf::message_handler reports(LinkActor* self) {
  return {
      [self](const NodeHello& hello) {
        LinkState& s = self->state;
        s.node = caf::actor_cast<caf::actor>(self->current_sender());
        s.hello = hello;
        if (s.leader) introduce_node(self);
      },
      sent<TrainerUp>(self,
                      [](auto& s, auto& up) {
                        s.trainers[up.trainer] = {up, {}, {}};
                      }),
      sent<TrainerDown>(self, keep_down),
      sent<TrainerIdle>(self, keep_idle),
      sent<PeerCopies>(self, [](auto& s, auto& copies) { s.copies = copies; }),
      [self](const RequestStop& stop) { stop_requested(self, stop); },
      sent<TrainerReady>(self, keep_report),
      sent<StepDone>(self, keep_report),
      sent<Validated>(self, keep_report),
      sent<TrainerFinished>(self, keep_report),
      sent<ShardSaved>(self, keep_report),
      sent<CopySent>(self),
      sent<NodeHealth>(self),
      sent<NodeProgress>(self),
      sent<NodeChecked>(self),
      sent<LogFound>(self),
  };
}

}  // namespace

local::TermsPolled terms_polled(const TermView& view) {
  return {view.answered,       view.current,        view.newest.number,
          view.newest.address, view.leader_alive(), view.resigned};
}

bool holds_state(const LinkState& s) {
  const bool copies = s.copies && !s.copies->copies.empty();
  return copies || std::ranges::any_of(s.trainers, [&](const auto& trainer) {
           return !s.options.held(trainer.first).empty();
         });
}

caf::behavior supervisor_link(LinkActor* self, LinkOptions options) {
  end_process_with(self, "supervisor link");
  LinkState& s = self->state;
  s.options = std::move(options);
  look_for_supervisor(self, kStartAfterMs + stagger_ms(s));
  self->set_down_handler([self](const caf::down_msg& down) {
    const LinkState& s = self->state;
    if (s.leader && down.source == s.leader.address()) leader_lost(self);
  });
  const caf::message_handler own{
      [self](const local::TermsPolled& polled) { on_terms_polled(self, polled); },
      [self](const local::LookupDone& done) { on_lookup_done(self, done); },
      [self](const local::Tick&) { check_join_timeout(self); },
  };
  return reports(self).or_else(commands(self)).or_else(own);
}

}  // namespace simplescale
