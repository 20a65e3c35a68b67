#include "actors/supervisor/leadership.hpp"

#include <unistd.h>

#include "actors/clock.hpp"
#include "actors/supervisor/supervisor.hpp"
#include "runtime/base/log.hpp"

namespace simplescale::leadership {

namespace {

using namespace std::chrono_literals;
constexpr auto kPatience = 200ms;       // for the standby, and for the epoch files
constexpr int64_t kAppointMs = 10'000;  // for a standby to present itself
constexpr int64_t kReturnMs = 1'500;    // for nodes to find a new supervisor
constexpr int64_t kComeMs = 2'000;      // between two of many nodes that come

void finish(Self* self, int code, const std::string& reason, bool resigns = false) {
  auto& finished = self->state.options.leadership.finished;
  if (finished) finished(code, reason, resigns);
  finished = nullptr;
}

bool over(Self* self) {
  const job::Phase phase = self->state.job.phase;
  return phase == job::Phase::finished || phase == job::Phase::failed;
}

Lead lead_message(Self* self) {
  const JobState& s = self->state;
  const LeadershipOptions& o = s.options.leadership;
  Lead lead{o.epoch, s.options.node, o.address, "", "", s.options.journal->marked()};
  if (s.lead.standby) {
    lead.standby_node = s.lead.standby->node;
    lead.standby_address = s.lead.standby->address;
  }
  return lead;
}

void tell_nodes(Self* self) {
  JobState& s = self->state;
  const Lead lead = lead_message(self);
  s.lead.told_step = lead.recorded_step;
  for (auto& [name, node] : s.nodes)
    if (node.handle) self->send(node.handle, lead);
}

void record(Self* self, const char* phase, const char* kind, const std::string& subject,
            const std::string& reason) {
  self->state.lead.act({job::Record{phase, kind, subject, reason}});
}

/// The lowest node that reports, is not our own, and has not just failed to host one.
void appoint(Self* self) {
  JobState& s = self->state;
  Leadership& l = s.lead;
  // Before all nodes have come, the lowest cannot be told.
  if (l.standby || over(self) || s.job.phase == job::Phase::starting) return;
  const int64_t now = now_ms(self);
  if (!l.asked.empty() && now - l.asked_at_ms < kAppointMs) return;
  if (!l.asked.empty()) l.failed = l.asked;
  l.asked.clear();
  const caf::actor* host = nullptr;
  for (const std::string& name : s.job.node_order) {
    const auto found = s.nodes.find(name);
    if (name == s.options.node || found == s.nodes.end() || !found->second.handle) continue;
    if (host && name != l.failed && l.asked != l.failed) break;
    if (host && name == l.failed) continue;
    host = &found->second.handle;
    l.asked = name;
  }
  if (!host) return;
  l.asked_at_ms = now;
  self->send(*host, HostStandby{s.options.leadership.epoch, s.options.leadership.address});
}

void drop_standby(Self* self, const std::string& reason) {
  Leadership& l = self->state.lead;
  if (!l.standby) return;
  const Leadership::Standby gone = *l.standby;
  l.standby.reset();
  l.asked.clear();
  l.failed = gone.node;
  self->demonitor(gone.handle);
  self->send(gone.handle, Shutdown{0, "dismissed: " + reason});
  l.kept = true;
  if (over(self)) return;
  record(self, "", "standby_lost", gone.node, reason);
  tell_nodes(self);
}

void act_if_may(Self* self) {
  Leadership& l = self->state.lead;
  if (!l.kept || !l.checked || l.deposed || l.waiting.empty()) return;
  const std::vector<job::Action> actions = std::move(l.waiting);
  l.waiting.clear();
  l.act(actions);
  while (!l.later.empty() && l.waiting.empty()) {
    const job::Event event = std::move(l.later.front());
    l.later.pop_front();
    l.handle(event);
  }
}

/// Whether more nodes say that they cannot reach this supervisor than report to it, and no more
/// come. Votes of nodes that have missed a step do not count: that step may be on this side only.
bool outvoted(Self* self, const std::set<std::string>& votes) {
  const JobState& s = self->state;
  if (s.options.leadership.elected || over(self)) return false;
  if (now_ms(self) - s.lead.last_came_ms < kComeMs) return false;
  for (const auto& [name, trainer] : s.job.trainers)
    if (trainer.state == job::TrainerState::training ||
        trainer.state == job::TrainerState::finished)
      return false;
  size_t against = 0, with = 0;
  for (const auto& [name, node] : s.job.nodes) {
    const auto here = s.nodes.find(name);
    if (here != s.nodes.end() && here->second.handle)
      ++with;
    else if (votes.contains(name) &&
             (node.state == job::NodeState::absent || node.failed_at_step >= s.job.committed_step))
      ++against;
  }
  return against > with;
}

/// Its standby is dismissed first: on this side of the network it would fare no better.
void resign(Self* self, const std::string& reason) {
  Leadership& l = self->state.lead;
  log::warn("resigning: {}", reason);
  drop_standby(self, reason);
  record(self, "", "resigned", self->state.options.node, reason);
  l.deposed = true;
  finish(self, 0, "resigned: " + reason, true);
}

/// Actions after which somebody does something that a second supervisor must not order as well.
bool changes_membership(const job::Action& action) {
  return !std::holds_alternative<job::Record>(action);
}

}  // namespace

SupervisorState snapshot(Self* self) {
  const JobState& s = self->state;
  SupervisorState out;
  out.job = s.job;
  out.now_ms = now_ms(self);
  out.epoch = s.options.leadership.epoch;
  out.sequence = s.lead.sequence;
  out.incidents = s.incidents;
  if (s.incident) {
    out.incident_since_ms = s.incident->since_ms;
    out.incident_what = s.incident->what;
    out.incident_decision = s.incident->decision;
  }
  out.recorded = s.recorded_step.has_value();
  out.recorded_step = s.recorded_step.value_or(0);
  out.end_exit = s.lead.end_exit;
  out.end_reason = s.lead.end_reason;
  out.planned = s.planned;
  out.traced = s.traces.chosen();
  return out;
}

void begin(Self* self) {
  JobState& s = self->state;
  LeadershipOptions& o = s.options.leadership;
  const int64_t now = now_ms(self);
  s.lead.alone_since_ms = s.lead.last_came_ms = now;
  s.options.journal->replace(
      "control/supervisor.json",
      nlohmann::json{{"epoch", o.epoch}, {"address", o.address}, {"instance", o.instance}}.dump(1) +
          "\n");
  if (!o.state) return;
  SupervisorState from = std::move(*o.state);
  o.state.reset();
  rebase(from, now);
  const uint64_t given_out = s.job.generation;  // as far as the run's folder tells
  s.job = std::move(from.job);
  s.job.generation = std::max(s.job.generation, given_out);
  s.incidents = from.incidents;
  s.members = job::places(s.job.rules, s.job.layout);
  s.members_generation = job::newest_joined(s.job);
  if (s.members_generation == 0) s.members_generation = s.job.generation;
  for (const job::Place& place : s.members)
    s.groups = std::max<uint64_t>(s.groups, place.group + 1);
  // At the end of one its last records may still have been on their way to the file.
  const bool incident = from.incident_since_ms >= 0 && s.job.incident;
  if (incident) {
    s.incident.emplace();
    s.incident->since_ms = from.incident_since_ms;
    s.incident->what = from.incident_what;
    s.incident->decision = from.incident_decision;
  } else {
    ++s.incidents;
    s.incident.emplace();
    s.incident->since_ms = o.lost_at_ms;
    s.incident->what = "supervisor: " + o.lost;
  }
  // Nothing usable is in the files: what has been made in this generation is told again.
  if (!s.recorded_step && from.recorded)
    s.recorded_step = std::min(from.recorded_step, s.job.joined_step);
  if (s.recorded_step) {
    s.recorded_step = job::committed_of(s.job, *s.recorded_step, s.options.recorded_generation);
    s.options.journal->mark(*s.recorded_step);  // checkpoints wait for it
  }
  s.planned = std::move(from.planned);
  std::erase_if(s.planned, [&s](const InjectFault& fault) {  // these have happened
    return fault.step <= s.recorded_step.value_or(0) + 1;
  });
  s.traces.go_on_with(std::move(from.traced));
  s.lead.sequence = from.sequence;
  s.lead.end_exit = from.end_exit;
  s.lead.end_reason = from.end_reason;
  for (const auto& [name, node] : s.job.nodes)
    if (node.state != job::NodeState::absent && node.state != job::NodeState::lost)
      s.lead.expected.insert(name);
  s.lead.expected_until_ms =
      now + kReturnMs + (o.silent ? s.options.config.supervision.silence_ms : 0);
  if (s.recorded_step) s.training_since_step = *s.recorded_step;
  s.training_since_ms = s.committed_at_ms = now;
  record(self, "detect", "supervisor_lost", "supervisor", o.lost);
  record(self, incident ? "decide" : "resume", "took_over", s.options.node,
         "epoch " + std::to_string(o.epoch) + ", generation " + std::to_string(s.job.generation) +
             (s.recorded_step ? ", after step " + std::to_string(*s.recorded_step) : ""));
  if (!s.recorded_step || *s.recorded_step <= s.job.committed_step) return;
  if (s.options.recorded_generation == s.job.generation)
    s.lead.handle(job::StepCommitted{s.job.generation, *s.recorded_step});
  else
    s.job.committed_step = *s.recorded_step;  // just before its generation was fenced
}

bool put_off(Self* self, const job::Event& event) {
  Leadership& l = self->state.lead;
  if (l.deposed) return true;
  if (l.waiting.empty()) return false;
  if (!std::holds_alternative<job::Tick>(event)) l.later.push_back(event);
  return true;
}

void replicate(Self* self) {
  JobState& s = self->state;
  Leadership& l = s.lead;
  const LeadershipOptions& o = s.options.leadership;
  ++l.sequence;
  std::vector<uint8_t> state = encode(snapshot(self));
  s.options.journal->replace("control/state-" + o.instance,
                             std::string(state.begin(), state.end()));
  if (l.standby) self->send(l.standby->handle, Replica{o.epoch, l.sequence, std::move(state)});
}

void submit(Self* self, std::vector<job::Action> actions) {
  JobState& s = self->state;
  Leadership& l = s.lead;
  const LeadershipOptions& o = s.options.leadership;
  bool check = false;
  for (const job::Action& action : actions) {
    check = check || changes_membership(action);
    if (const auto* end = std::get_if<job::Shutdown>(&action)) {
      l.end_exit = exit_code(end->exit);
      l.end_reason = end->reason;
    }
  }
  replicate(self);
  l.decision = l.sequence;
  l.waiting = std::move(actions);
  l.kept = !l.standby;
  l.checked = !check || !o.watch;
  if (!l.checked)
    o.watch->poll([me = caf::actor_cast<caf::actor>(self), decision = l.decision,
                   epoch = o.epoch](const EpochView& view) {
      caf::anon_send(me, local::EpochSeen{decision, view.deposed(epoch), view.newest.number});
    });
  if (!l.kept || !l.checked)
    self->delayed_send(self, kPatience, local::WaitedLongEnough{l.decision});
  act_if_may(self);
}

void node_came(Self* self, const std::string& name) {
  JobState& s = self->state;
  const caf::actor& node = s.nodes.at(name).handle;
  s.lead.expected.erase(name);
  s.lead.last_came_ms = now_ms(self);
  self->send(node, lead_message(self));
  // What was decided while it was away, or by the one before, who perhaps did not come to say it.
  if (over(self)) {
    self->send(node, Shutdown{s.lead.end_exit, s.lead.end_reason});
    return;
  }
  if (s.job.generation > 0)
    self->send(node, FenceGeneration{s.job.generation, "an older generation is over"});
  if (s.job.leaving)
    self->send(node, LeaveGeneration{s.job.generation, "the generation is to be left"});
  if (s.job.stop_requested) self->send(node, StopTraining{s.job.exit_reason});
}

void tick(Self* self) {
  JobState& s = self->state;
  Leadership& l = s.lead;
  if (l.deposed) return;
  const int64_t now = now_ms(self);
  if (s.job.phase == job::Phase::training) s.options.leadership.elected = false;
  appoint(self);
  if (s.options.journal->marked() != l.told_step) tell_nodes(self);
  if (!l.expected.empty() && now > l.expected_until_ms && l.waiting.empty()) {
    const auto missing = std::move(l.expected);
    l.expected.clear();
    for (const std::string& name : missing)
      l.handle(job::NodeLost{name, "its agent has not come to the new supervisor"});
  }
  bool alone = true;
  for (const auto& [name, node] : s.nodes) alone = alone && !node.handle;
  if (!alone) l.alone_since_ms = now;
  if (over(self) && l.waiting.empty()) {
    if (!l.over) {
      l.over = true;
      l.over_since_ms = now;
      if (l.standby) self->send(l.standby->handle, Shutdown{0, "the run is over"});
    }
    // Nodes that have yet to come are still to hear of it.
    const bool told = alone && l.expected.empty();
    if (told || now - l.over_since_ms > 2 * s.options.config.supervision.shutdown_ms)
      finish(self, 0, "the run is over");
  } else if (alone && now - l.alone_since_ms > s.options.config.cluster.join_timeout_ms) {
    finish(self, exit_code(Code::requeue),
           "no agent has reported for " + std::to_string(s.options.config.cluster.join_timeout_ms) +
               " ms");
  }
}

bool went_down(Self* self, const caf::down_msg& down) {
  Leadership& l = self->state.lead;
  if (!l.standby || down.source != l.standby->handle.address()) return false;
  drop_standby(self, "its process does not answer any more");
  appoint(self);
  act_if_may(self);
  return true;
}

void standby_came(Self* self, const StandbyHello& hello) {
  JobState& s = self->state;
  Leadership& l = s.lead;
  auto handle = caf::actor_cast<caf::actor>(self->current_sender());
  if (!handle) return;
  if (over(self) || l.deposed || l.standby || hello.node != l.asked) {
    self->send(handle, Shutdown{0, "no standby is wanted"});
    return;
  }
  l.standby = Leadership::Standby{handle, hello.node, hello.address, hello.pid};
  l.asked.clear();
  l.failed.clear();
  self->monitor(handle);
  ++l.sequence;
  self->send(handle, Replica{s.options.leadership.epoch, l.sequence, encode(snapshot(self))});
  record(self, "", "standby_appointed", hello.node, "process " + std::to_string(hello.pid));
  tell_nodes(self);
}

void replica_kept(Self* self, const ReplicaKept& kept) {
  Leadership& l = self->state.lead;
  if (!l.standby || self->current_sender() != l.standby->handle) return;
  if (kept.sequence >= l.decision) l.kept = true;
  act_if_may(self);
}

void epoch_seen(Self* self, const local::EpochSeen& seen) {
  JobState& s = self->state;
  Leadership& l = s.lead;
  if (l.deposed) return;
  if (seen.deposed) {
    l.deposed = true;
    s.options.journal->stop();
    const std::string reason = seen.newest > s.options.leadership.epoch
                                   ? "epoch " + std::to_string(seen.newest) +
                                         " leads, this is epoch " +
                                         std::to_string(s.options.leadership.epoch)
                                   : "the run has been started anew";
    log::warn("deposed: {}", reason);
    finish(self, 0, "deposed: " + reason);
    return;
  }
  if (outvoted(self, seen.votes))
    return resign(self, std::to_string(seen.votes.size()) + " nodes cannot reach it");
  if (seen.question == l.decision) l.checked = true;
  act_if_may(self);
}

void waited(Self* self, const local::WaitedLongEnough& wait) {
  Leadership& l = self->state.lead;
  if (wait.sequence != l.decision || l.waiting.empty()) return;
  if (!l.checked) log::warn("the run's folder does not answer; going on without it");
  if (!l.kept) drop_standby(self, "it has not kept a decision within 200 ms");
  l.kept = l.checked = true;
  act_if_may(self);
}

}  // namespace simplescale::leadership
