// The simulated supervisor: the work of the real actor around decide() in a few lines.
#include <algorithm>
#include <utility>

#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

namespace {

constexpr Time term_time = 500 * ms;  // between two looks at the term files
constexpr Time patience = 200 * ms;   // for the standby and the run folder, as kAnswerTimeout

bool only_records(const std::vector<job::Action>& actions) {
  return std::ranges::all_of(actions,
                             [](const auto& a) { return std::holds_alternative<job::Record>(a); });
}

}  // namespace

void Cluster::kill_supervisor() {
  Supervisor* supervisor = leader();
  if (!supervisor) return;
  if (logging()) log_line("supervisor " + std::to_string(supervisor->term) + ": killed");
  supervisor->up = false;
  notice_supervisor_loss(*supervisor, false);
}

void Cluster::hang_supervisor(Time how_long) {
  Supervisor* supervisor = leader();
  if (!supervisor) return;
  if (logging()) log_line("supervisor " + std::to_string(supervisor->term) + ": hangs");
  supervisor->hung_until = std::max(supervisor->hung_until, now + how_long);
  after(silence + random.between(0, 500) * ms, [this, supervisor] {
    check_links();
    if (supervisor->hung_until > now && supervisor->up) notice_supervisor_loss(*supervisor, true);
  });
}

std::shared_ptr<const SupervisorState> Cluster::snapshot(const Supervisor& by) const {
  auto state = std::make_shared<SupervisorState>();
  state->job = by.job;
  state->term = by.term;
  state->sequence = by.sequence;
  state->recorded = by.recorded.has_value();
  state->recorded_step = by.journal.marked > 0 ? by.journal.marked : by.first_after.value_or(0);
  for (const job::Action& action : by.pending_actions)  // as Leadership::submit()
    if (const auto* end = std::get_if<job::Shutdown>(&action)) {
      state->end_exit = exit_code(end->exit);
      state->end_reason = end->reason;
    }
  return state;
}

/// The nodes and the standby notice the loss. silent: the supervisor hangs and may wake up again.
void Cluster::notice_supervisor_loss(Supervisor& supervisor, bool silent) {
  for (int n = 0; n < options.nodes; ++n)
    if (nodes[n].link.up && nodes[n].link.supervisor == &supervisor) break_link(n, false);
  const int host = supervisor.standby;
  supervisor.standby = -1;
  if (host < 0 || !supervisor.replica) return;
  auto standby =
      std::make_shared<Standby>(host, nodes[host].pid, silent, supervisor.room, supervisor.replica);
  standby->beat = standby->beat_at = supervisor.beat;
  after(random.between(1, 100) * ms,
        [this, &supervisor, standby] { succeed(supervisor, standby); });
}

void Cluster::tick(Supervisor& supervisor) {
  if (!supervisor.up || ended) return;
  if (supervisor.hung_until > now || hung(nodes[supervisor.host])) {
    // Its other threads run before it reads the term files again.
    after(std::max(supervisor.hung_until, nodes[supervisor.host].hung_until) - now +
              random.between(0, term_time),
          [this, &supervisor] { tick(supervisor); });
    return;
  }
  const bool looks = folder_works_at(supervisor.host) <= now;
  if (looks) supervisor.beat = now;
  if (looks && supervisor.term != disk.newest_term && options.bug != Bug::two_supervisors) {
    supervisor.up = false;  // deposed
    notice_supervisor_loss(supervisor, false);
    return;
  }
  if (supervisor.job.phase == job::Phase::training) supervisor.elected = false;
  if (resigns(supervisor)) return resign(supervisor);
  after(tick_time, [this, &supervisor] { tick(supervisor); });
  publish_shards(supervisor);
  handle(supervisor, job::Tick{});
  if (supervisor.standby < 0 && !supervisor.standby_requested) {
    for (const auto& [node, link] : supervisor.links) {
      if (node == supervisor.host) continue;
      supervisor.standby_requested = true;
      after(random.between(50, 600) * ms, [this, &supervisor, node = node] {
        supervisor.standby_requested = false;
        if (!supervisor.up || !nodes[node].up || hung(nodes[node]) || !connected(supervisor, node))
          return;
        supervisor.standby = node;
        supervisor.room = std::max(disk.failing_until, folder_works_at(node)) <= now;
        supervisor.replica = nullptr;
        if (supervisor.pending_actions.empty())
          supervisor.replica = snapshot(supervisor);
        else  // as Leadership::accept_standby()
          replicate(supervisor, number_state(supervisor));
      });
      break;
    }
  }
}

/// As Leadership::behind().
bool Cluster::behind(const Supervisor& supervisor, int node) const {
  return std::ranges::any_of(supervisor.deferred, [&](const job::Event& event) {
    const auto* lost = std::get_if<job::NodeLost>(&event);
    const auto* up = std::get_if<job::NodeUp>(&event);
    return (lost && lost->node == nodes[node].name) || (up && up->node == nodes[node].name);
  });
}

/// As tell_decided() of actors/supervisor/carry_out.cpp.
void Cluster::tell_decided(Supervisor& supervisor, int node) {
  const uint64_t generation = supervisor.job.generation;
  if (generation == 0) return;
  send_fence(supervisor, node, generation);
  if (supervisor.job.leaving)
    carry_out(supervisor, job::Leave{generation, "the generation is to be left"});
  if (supervisor.job.stop_requested)
    carry_out(supervisor, job::StopAtStep{supervisor.job.exit_reason});
}

void Cluster::node_connected(Supervisor& supervisor, int node, uint64_t link, int32_t pid) {
  supervisor.expected.erase(node);
  supervisor.links[node] = link;
  supervisor.joined_at = now;
  const std::vector<uint8_t> address(options.bug == Bug::agents_send_nothing ? 0 : 1);
  if (options.bug == Bug::orders_overtake) tell_decided(supervisor, node);
  const Node& n = nodes[node];
  const bool equal = options.bug == Bug::hosts_taken_for_equal;
  const bool tells = options.bug != Bug::instructions_forgotten;
  handle(supervisor,
         job::NodeUp{n.name, pid, address, equal ? InstructionSet::avx512 : n.instructions,
                     tells ? n.run_instructions : InstructionSet::automatic});
}

void Cluster::step_done(Supervisor& supervisor, const StepReport& report) {
  if (!supervisor.up) return;
  if (report.generation != supervisor.ledger_generation && options.bug != Bug::no_fencing)
    return;                                                                // GEN-1
  if (supervisor.recorded && report.step <= *supervisor.recorded) return;  // reported before
  supervisor.step_reports[report.step].insert(report.trainers.begin(), report.trainers.end());
  // After a fence, reports still say which steps the old generation made, but complete none.
  if (report.generation != supervisor.job.generation && options.bug != Bug::no_fencing) return;
  size_t members = 0;
  for (const auto& domain : supervisor.job.layout.domains) members += domain.size();
  members *= static_cast<size_t>(options.trainers);
  if (members == 0) return;
  if (options.bug == Bug::early_commit && members > 1) --members;
  while (!supervisor.step_reports.empty() &&
         supervisor.step_reports.begin()->second.size() >= members) {
    const uint64_t step = supervisor.step_reports.begin()->first;
    supervisor.step_reports.erase(supervisor.step_reports.begin());
    invariants->step_counted(supervisor, supervisor.job.generation, step);
    handle(supervisor, job::StepCommitted{supervisor.job.generation, step});
    record_step(supervisor, report.generation, step);
    if (options.large()) continue;
    copy_to_peers(supervisor, step);
    measure(supervisor, step);
  }
}

/// As commit() of actors/supervisor/supervisor.cpp.
void Cluster::measure(Supervisor& supervisor, uint64_t step) {
  std::map<std::string, double> busy_ms;
  for (const job::Place& place : job::places(supervisor.job.rules, supervisor.job.layout)) {
    const int index = trainer_index.at(place.trainer);
    const auto noise = static_cast<double>((step * 7 + static_cast<uint64_t>(index) * 3) % 5);
    busy_ms[place.trainer] = nodes[node_of(index)].slow * (10 + noise / 10);
  }
  (void)supervisor.anomalies.step(step, 1, 1, busy_ms);
  if (auto speeds = supervisor.anomalies.take_speeds(); !speeds.empty())
    handle(supervisor, job::SpeedsMeasured{supervisor.job.generation, std::move(speeds),
                                           supervisor.anomalies.stragglers()});
}

/// As in actors/supervisor/carry_out.cpp.
void Cluster::notice_stop(Supervisor& supervisor) {
  const Time late = now - std::exchange(supervisor.seen, now) - second;
  if (late <= 0 || options.bug == Bug::stop_counted) return;
  for (job::State* job : {&supervisor.job, &supervisor.shadow}) move_times(*job, late / ms);
}

/// Decides on an event. submit() gives the decision to the standby before it is acted on.
void Cluster::handle(Supervisor& supervisor, const job::Event& event) {
  if (!supervisor.up || ended) return;
  notice_stop(supervisor);
  if (!supervisor.pending_actions.empty()) {
    if (!std::holds_alternative<job::Tick>(event)) supervisor.deferred.push_back(event);
    return;
  }
  if (const auto* up = std::get_if<job::NodeUp>(&event);
      up && supervisor.job.nodes.contains(up->node) && options.bug != Bug::orders_overtake)
    tell_decided(supervisor, node_index.at(up->node));
  invariants->event_received(supervisor, event);
  const bool more = !supervisor.deferred.empty() && options.bug != Bug::planned_early;
  job::Decision decision = job::decide(now / ms, supervisor.job, event, more);
  if (!options.large() && options.bug == Bug::none) {
    const job::Decision again = job::decide(now / ms, supervisor.shadow, event, more);
    invariants->same_decision(decision, again);
  }
  if (options.bug != Bug::none) plant_bug(supervisor, event, decision);
  if (logging() && !decision.actions.empty() && !std::holds_alternative<job::Tick>(event))
    log_line("supervisor " + std::to_string(supervisor.term) + " decides on " + text_of(event));
  invariants->decision_made(supervisor, decision);
  if (!decision.actions.empty()) submit(supervisor, std::move(decision.actions));
}

void Cluster::submit(Supervisor& supervisor, std::vector<job::Action> actions) {
  supervisor.pending_actions = std::move(actions);
  const bool late = options.bug == Bug::acts_unreplicated;
  const auto kept = number_state(supervisor);
  supervisor.decision = supervisor.sequence;
  if (kept && !late && supervisor.term == disk.newest_term) {
    // A run begins on a disk that works: the lines of its first generation have a page.
    const bool fails = std::max(disk.failing_until, folder_works_at(supervisor.host)) > now &&
                       disk.state && disk.state->job.generation > 0;
    (fails ? supervisor.journal.page : disk.state) = kept;
    if (fails)
      run_journal(supervisor, random.between(100, 5000));
    else
      supervisor.journal.page = nullptr;
  }
  if (supervisor.standby < 0 || !kept) return act(supervisor, supervisor.sequence);
  replicate(supervisor, kept);
}

/// The state with its pending decision, which the standby is to store. Null in a large cluster, if
/// the decision only records something.
std::shared_ptr<const SupervisorState> Cluster::number_state(Supervisor& supervisor) {
  ++supervisor.sequence;
  supervisor.decided_at = now;
  supervisor.stored = false;
  const bool light = options.large() && only_records(supervisor.pending_actions);
  return light ? nullptr : snapshot(supervisor);
}

void Cluster::replicate(Supervisor& supervisor, std::shared_ptr<const SupervisorState> kept) {
  const uint64_t sequence = supervisor.sequence;
  const int standby = supervisor.standby;
  const bool late = options.bug == Bug::acts_unreplicated;
  after(late ? random.between(10, 100) * ms : random.between(100, 1500),
        [this, &supervisor, sequence, standby, late, kept] {
          if (!supervisor.up || supervisor.standby != standby) return;
          if (!nodes[standby].up || hung(nodes[standby]) || !reachable(supervisor.host, standby))
            return;
          // Twice a second a standby reads the term files, too.
          if (folder_works_at(standby) <= now && supervisor.term != disk.newest_term) return;
          supervisor.replica = kept;
          if (!late && reachable(standby, supervisor.host))
            after(random.between(100, 1500), [this, &supervisor, sequence] {
              if (supervisor.sequence == sequence) supervisor.stored = true;
              act(supervisor, sequence);
            });
        });
  if (late) return act(supervisor, sequence);
  after(patience, [this, &supervisor, sequence] {
    if (supervisor.pending_actions.empty() || supervisor.sequence != sequence) return;
    if (!supervisor.stored) supervisor.standby = -1;  // it did not confirm in time
    act(supervisor, sequence);
  });
}

/// LEAD-1: the run folder does not answer on the supervisor's host. As Leadership::timed_out().
bool Cluster::may_act_unseen(const Supervisor& supervisor) const {
  const std::vector<job::Action>& actions = supervisor.pending_actions;
  if (now < supervisor.decided_at + patience) return false;
  const bool all_report = std::ranges::all_of(supervisor.job.nodes, [&](const auto& node) {
    return supervisor.links.contains(node_index.at(node.first));
  });
  if (all_report || options.bug == Bug::acts_unseen) return true;
  const bool stored = supervisor.stored && supervisor.standby >= 0;
  const bool ends = std::ranges::any_of(
      actions, [](const auto& a) { return std::holds_alternative<job::Shutdown>(a); });
  if (ends && options.bug == Bug::ends_unseen) return true;
  return !job::waits_for_folder(actions, stored);
}

void Cluster::act(Supervisor& supervisor, uint64_t sequence) {
  if (!supervisor.up || supervisor.sequence != sequence || supervisor.pending_actions.empty())
    return;
  if (supervisor.hung_until > now || hung(nodes[supervisor.host])) {
    after(std::max(supervisor.hung_until, nodes[supervisor.host].hung_until) - now + 1,
          [this, &supervisor, sequence] { act(supervisor, sequence); });
    return;
  }
  if (!only_records(supervisor.pending_actions)) {
    const bool looks = folder_works_at(supervisor.host) <= now;
    if (!looks && !may_act_unseen(supervisor))
      return after(patience, [this, &supervisor, sequence] { act(supervisor, sequence); });
    if (looks && supervisor.term != disk.newest_term && options.bug != Bug::two_supervisors) {
      supervisor.up = false;  // deposed
      notice_supervisor_loss(supervisor, false);
      return;
    }
  }
  if (!only_records(supervisor.pending_actions) && supervisor.term == disk.newest_term)
    supervisor.acted = supervisor.decision;
  const std::vector<job::Action> actions = std::move(supervisor.pending_actions);
  supervisor.pending_actions.clear();
  for (const job::Action& action : actions) {
    if (logging())
      log_line("supervisor " + std::to_string(supervisor.term) + ": " + text_of(action));
    invariants->action_taken(supervisor, action);
    carry_out(supervisor, action);
  }
  while (!supervisor.deferred.empty() && supervisor.pending_actions.empty()) {
    const job::Event event = std::move(supervisor.deferred.front());
    supervisor.deferred.pop_front();
    handle(supervisor, event);
  }
}

}  // namespace simplescale::simulation
