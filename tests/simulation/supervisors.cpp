// The simulated supervisor: the work of the real actor around decide() in a few lines, and the bugs
// that can be planted there.
#include <algorithm>

#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

namespace {

constexpr Time tick_time = 100 * ms;
constexpr Time epoch_time = 500 * ms;    // between two looks at the epoch files
constexpr Time patience = 200 * ms;      // for the standby to confirm a decision
constexpr Time return_time = 1500 * ms;  // for agents to report to a new supervisor

bool only_records(const std::vector<job::Action>& actions) {
  return std::ranges::all_of(actions,
                             [](const auto& a) { return std::holds_alternative<job::Record>(a); });
}

job::State make_job(const Options& o) {
  job::LayoutRules rules;
  rules.trainers_per_node = o.trainers;
  rules.shards = o.trainers * o.cell_nodes;
  rules.cell_nodes = o.cell_nodes;
  rules.cells = (o.nodes - o.spares) / o.cell_nodes;
  std::vector<std::string> names;
  for (int n = 0; n < o.nodes; ++n) names.push_back(node_name(n));
  job::State state = job::make_state(rules, names);
  state.max_steps = o.steps;
  state.join_timeout_ms = 30'000;
  state.restart_timeout_ms = 5'000;
  state.save_timeout_ms = 30'000;
  return state;
}

}  // namespace

/// A process of this host claims the next epoch. from: the state that the standby has; null: this
/// process was no standby.
void Cluster::claim(int host, std::shared_ptr<const SupervisorState> from) {
  Claim made{host, nodes[host].pid, 0, std::move(from), {disk.ledger.size(), disk.metrics.size()},
             now};
  if (options.bug == Bug::read_before_claim) {
    read_state(made);
    after(random.between(1, 30) * ms, [this, made]() mutable {
      made.epoch = ++disk.newest_epoch;
      prepare(std::move(made));
    });
    return;
  }
  made.epoch = ++disk.newest_epoch;
  if (logging())
    log_line(nodes[host].name + ": a process claims epoch " + std::to_string(made.epoch));
  const bool frozen = std::exchange(freeze_claim_due, false);
  after(frozen ? random.between(500, 8000) * ms : random.between(1, 30) * ms,
        [this, made]() mutable { prepare(std::move(made)); });
}

/// The disk has a newer state if the last supervisor decided without a standby.
void Cluster::read_state(Claim& claim) const {
  if (disk.state && (!claim.from || disk.state->sequence > claim.from->sequence))
    claim.from = disk.state;
}

/// Between its claim and its first decision a supervisor may be frozen, too.
void Cluster::prepare(Claim claim) {
  const Node& node = nodes[claim.host];
  if (!node.up || node.pid != claim.agent || ended) return;
  const Time wakes = std::max({node.hung_until, disk.hung_until, node.folder_hung_until});
  if (wakes > now) {
    after(wakes - now + 1, [this, claim]() mutable { prepare(std::move(claim)); });
    return;
  }
  const bool deposed = claim.epoch != disk.newest_epoch;  // LEAD-1
  if (deposed && options.bug != Bug::prepares_unfenced) return;
  if (!deposed && options.bug != Bug::read_before_claim) read_state(claim);
  mend_records(claim);
  if (deposed) return;
  revoke_publishers();
  start_supervisor(claim);
}

void Cluster::start_twice(int host) {
  if (nodes[host].up && !hung(nodes[host])) claim(host, nullptr);
}

void Cluster::start_supervisor(const Claim& claim) {
  const int host = claim.host;
  const bool replica = claim.from != nullptr;
  for (auto* lines : {&disk.ledger, &disk.metrics})  // what this host reads, the server has
    for (Disk::Line& line : *lines) line.synced = true;
  const RecordsEnd records = end_of_steps(recorded_steps(), true, BatchSchedule(rows));
  auto made = std::make_unique<Supervisor>();
  Supervisor& supervisor = *made;
  supervisor.epoch = claim.epoch;
  supervisor.host = host;
  supervisor.job = replica ? claim.from->job : make_job(options);
  if (!replica) supervisor.job.waiting_since_ms = now / ms;
  for (auto& [name, node] : supervisor.job.nodes) node.answered = 0;  // not in state_codec.hpp
  const uint64_t written =
      options.bug == Bug::generation_reused ? 0 : std::max(disk.generation, records.generation);
  supervisor.job.generation = std::max(supervisor.job.generation, written);
  if (options.bug == Bug::generation_reused && replica && supervisor.job.generation > 1)
    --supervisor.job.generation;
  if (options.bug != Bug::generation_reused) {  // as supervise() of supervisor_process.cpp
    disk.claimed_above = claim.epoch == 1
                             ? written
                             : std::max(written, disk.claimed_above) + job::unknown_generations;
    supervisor.job.generations_above = job::numbers_above(
        claim.epoch, disk.claimed_above, std::max(written, records.newest_generation));
  }
  supervisor.elected = disk.resigned_epoch > 0 && claim.epoch == disk.resigned_epoch + 1;
  supervisor.sequence = supervisor.acted = replica ? claim.from->sequence : 0;
  if (logging())
    log_line("supervisor " + std::to_string(supervisor.epoch) + " on " + nodes[host].name +
             (replica ? ", with the last state" : ", without the last state") + ", generation " +
             std::to_string(supervisor.job.generation));
  if (replica)
    for (const auto& [name, node] : supervisor.job.nodes)
      if (node.state != job::NodeState::absent && node.state != job::NodeState::lost)
        supervisor.expected.insert(node_index.at(name));
  supervisor.shadow = supervisor.job;
  supervisors.push_back(std::move(made));
  invariants->supervisor_started(supervisor, claim.from.get(), claim.claimed);
  Supervisor* raw = supervisors.back().get();
  if (replica) take_over(*raw, *claim.from, records);
  // The last decision may not have been acted on.
  if (job::over(raw->job.phase))
    ended = job::Shutdown{raw->job.phase == job::Phase::failed ? Code::gave_up : Code::ok,
                          "decided by the previous supervisor"};
  after(tick_time, [this, raw] { tick(*raw); });
  after(return_time + silence, [this, raw] {
    while (!raw->expected.empty()) {
      const int node = *raw->expected.begin();
      handle(*raw, job::NodeLost{nodes[node].name, "its agent has not come to its new supervisor"});
      raw->expected.erase(node);
    }
  });
}

/// As take_over() of actors/supervisor/take_over.cpp.
void Cluster::take_over(Supervisor& by, const SupervisorState& from, const RecordsEnd& records) {
  std::optional<HeldStep> last;
  if (records.any) last = HeldStep{records.step, records.generation};
  std::optional<uint64_t> recorded = job::recorded_of(
      by.job, last, from.recorded ? std::optional(from.recorded_step) : std::nullopt);
  if (options.bug == Bug::undone_lines_count && last) recorded = last->step;
  const uint64_t joined = job::newest_joined(by.job);
  by.ledger_generation = joined > 0 ? joined : by.job.generation;
  by.recorded = by.first_after = recorded;
  by.recorded_generation = records.generation;
  if (last && last->step > recorded) by.undone = last;
  by.beyond = records.beyond;
  if (recorded) set_mark(by, *recorded);
  record_up_to(by, by.job.joined_step);
  if (recorded && *recorded > by.job.committed_step) {
    if (records.generation == by.job.generation)
      handle(by, job::StepCommitted{by.job.generation, *recorded});
    else
      by.job.committed_step = by.shadow.committed_step = *recorded;
  }
  const std::vector<uint64_t> on_disk = find_checkpoints(&from.job);
  if (options.bug == Bug::disk_not_read || on_disk.empty()) return;
  if (!by.job.has_checkpoint || on_disk.back() > by.job.checkpoint_step) {
    handle(by, job::CheckpointSaved{on_disk.back()});
    handle(by, job::CheckpointsLeft{on_disk});
  }
}

void Cluster::kill_supervisor() {
  Supervisor* supervisor = leader();
  if (!supervisor) return;
  if (logging()) log_line("supervisor " + std::to_string(supervisor->epoch) + ": killed");
  supervisor->up = false;
  notice_supervisor_loss(*supervisor, false);
}

void Cluster::hang_supervisor(Time how_long) {
  Supervisor* supervisor = leader();
  if (!supervisor) return;
  if (logging()) log_line("supervisor " + std::to_string(supervisor->epoch) + ": hangs");
  supervisor->hung_until = std::max(supervisor->hung_until, now + how_long);
  after(silence + random.between(0, 500) * ms, [this, supervisor] {
    check_links();
    if (supervisor->hung_until > now && supervisor->up) notice_supervisor_loss(*supervisor, true);
  });
}

std::shared_ptr<const SupervisorState> Cluster::snapshot(const Supervisor& by) const {
  auto state = std::make_shared<SupervisorState>();
  state->job = by.job;
  state->epoch = by.epoch;
  state->sequence = by.sequence;
  state->recorded = by.recorded.has_value();
  state->recorded_step = by.journal.marked > 0 ? by.journal.marked : by.first_after.value_or(0);
  return state;
}

/// The nodes and the standby notice the loss. silent: the supervisor hangs and may wake up again.
void Cluster::notice_supervisor_loss(Supervisor& supervisor, bool silent) {
  for (int n = 0; n < options.nodes; ++n)
    if (nodes[n].link.up && nodes[n].link.supervisor == &supervisor) break_link(n, false);
  const int host = supervisor.standby;
  supervisor.standby = -1;
  if (host < 0 || !supervisor.replica) return;
  after(silent ? random.between(1, 300) * ms : random.between(1, 100) * ms,
        [this, &supervisor, silent, host, pid = nodes[host].pid] {
          if (!nodes[host].up || nodes[host].pid != pid || hung(nodes[host])) return;
          if (supervisor.epoch != disk.newest_epoch) return;
          if (silent && supervisor.hung_until <= now) return;  // it has woken up
          claim(host, supervisor.replica);
        });
}

void Cluster::resign(Supervisor& supervisor) {
  ++faults["resigned"];
  if (logging()) log_line("supervisor " + std::to_string(supervisor.epoch) + ": resigns");
  supervisor.up = false;
  supervisor.standby = -1;
  disk.resigned_epoch = supervisor.epoch;
  for (Node& node : nodes)
    if (node.voted == supervisor.epoch) node.alone_since = now;
  notice_supervisor_loss(supervisor, false);
}

void Cluster::tick(Supervisor& supervisor) {
  if (!supervisor.up || ended) return;
  if (supervisor.hung_until > now || hung(nodes[supervisor.host])) {
    // Its other threads run before it reads the epoch files again.
    after(std::max(supervisor.hung_until, nodes[supervisor.host].hung_until) - now +
              random.between(0, epoch_time),
          [this, &supervisor] { tick(supervisor); });
    return;
  }
  if (supervisor.epoch != disk.newest_epoch && options.bug != Bug::two_supervisors) {
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
        if (!supervisor.pending_actions.empty()) return;  // try again at the next tick
        supervisor.standby = node;
        supervisor.replica = snapshot(supervisor);
      });
      break;
    }
  }
}

void Cluster::node_connected(Supervisor& supervisor, int node, uint64_t link, int32_t pid) {
  supervisor.expected.erase(node);
  supervisor.links[node] = link;
  supervisor.joined_at = now;
  const uint64_t generation = supervisor.job.generation;
  const std::vector<uint8_t> address(options.bug == Bug::agents_send_nothing ? 0 : 1);
  handle(supervisor, job::NodeUp{nodes[node].name, pid, address});
  if (generation == 0) return;
  send_fence(supervisor, node, generation);
  if (supervisor.job.leaving)
    carry_out(supervisor, job::Leave{supervisor.job.generation, "the generation is to be left"});
  if (supervisor.job.stop_requested)
    carry_out(supervisor, job::StopAtStep{supervisor.job.exit_reason});
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
  for (const auto& cell : supervisor.job.layout.cells) members += cell.size();
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
    if (!options.large()) copy_to_peers(supervisor, step);
  }
}

/// Decides on an event. submit() gives the decision to the standby before it is acted on.
void Cluster::handle(Supervisor& supervisor, const job::Event& event) {
  if (!supervisor.up || ended) return;
  if (!supervisor.pending_actions.empty()) {
    if (!std::holds_alternative<job::Tick>(event)) supervisor.deferred.push_back(event);
    return;
  }
  invariants->event_received(supervisor, event);
  const bool more = !supervisor.deferred.empty() && options.bug != Bug::planned_early;
  job::Decision decision = job::decide(now / ms, supervisor.job, event, more);
  if (!options.large() && options.bug == Bug::none) {
    const job::Decision again = job::decide(now / ms, supervisor.shadow, event, more);
    invariants->same_decision(decision, again);
  }
  if (options.bug != Bug::none) plant_bug(supervisor, event, decision);
  if (logging() && !decision.actions.empty() && !std::holds_alternative<job::Tick>(event))
    log_line("supervisor " + std::to_string(supervisor.epoch) + " decides on " + text_of(event));
  invariants->decision_made(supervisor, decision);
  if (!decision.actions.empty()) submit(supervisor, std::move(decision.actions));
}

void Cluster::submit(Supervisor& supervisor, std::vector<job::Action> actions) {
  supervisor.pending_actions = std::move(actions);
  const uint64_t sequence = ++supervisor.sequence;
  const bool light = options.large() && only_records(supervisor.pending_actions);
  const bool late = options.bug == Bug::acts_unreplicated;
  const auto kept = light ? nullptr : snapshot(supervisor);
  if (!light && !late && supervisor.epoch == disk.newest_epoch) {
    // A run begins on a disk that works: the lines of its first generation have a page.
    const bool full = disk.failing_until > now && disk.state && disk.state->job.generation > 0;
    (full ? supervisor.journal.page : disk.state) = kept;
    if (full)
      run_journal(supervisor, random.between(100, 5000));
    else
      supervisor.journal.page = nullptr;
  }
  if (supervisor.standby < 0 || light) return act(supervisor, sequence);
  const int standby = supervisor.standby;
  after(late ? random.between(10, 100) * ms : random.between(100, 1500),
        [this, &supervisor, sequence, standby, late, kept] {
          if (!supervisor.up || supervisor.standby != standby) return;
          if (!nodes[standby].up || hung(nodes[standby]) || !reachable(supervisor.host, standby))
            return;
          supervisor.replica = kept;
          if (!late && reachable(standby, supervisor.host))
            after(random.between(100, 1500),
                  [this, &supervisor, sequence] { act(supervisor, sequence); });
        });
  if (late) return act(supervisor, sequence);
  after(patience, [this, &supervisor, sequence] {
    if (supervisor.pending_actions.empty() || supervisor.sequence != sequence) return;
    supervisor.standby = -1;  // it did not confirm in time
    act(supervisor, sequence);
  });
}

void Cluster::act(Supervisor& supervisor, uint64_t sequence) {
  if (!supervisor.up || supervisor.sequence != sequence || supervisor.pending_actions.empty())
    return;
  if (supervisor.hung_until > now || hung(nodes[supervisor.host])) {
    after(std::max(supervisor.hung_until, nodes[supervisor.host].hung_until) - now + 1,
          [this, &supervisor, sequence] { act(supervisor, sequence); });
    return;
  }
  if (!only_records(supervisor.pending_actions) && supervisor.epoch != disk.newest_epoch &&
      options.bug != Bug::two_supervisors) {
    supervisor.up = false;  // deposed
    notice_supervisor_loss(supervisor, false);
    return;
  }
  if (!only_records(supervisor.pending_actions)) supervisor.acted = sequence;
  const std::vector<job::Action> actions = std::move(supervisor.pending_actions);
  supervisor.pending_actions.clear();
  for (const job::Action& action : actions) {
    if (logging())
      log_line("supervisor " + std::to_string(supervisor.epoch) + ": " + text_of(action));
    invariants->action_taken(supervisor, action);
    carry_out(supervisor, action);
  }
  while (!supervisor.deferred.empty() && supervisor.pending_actions.empty()) {
    const job::Event event = std::move(supervisor.deferred.front());
    supervisor.deferred.pop_front();
    handle(supervisor, event);
  }
}

/// Sends an order to the agent of a node. The agent refuses orders of older epochs.
void Cluster::command(Supervisor& supervisor, int node, const char* what,
                      std::function<void()> effect) {
  if (!connected(supervisor, node) && options.bug != Bug::two_supervisors) return;
  auto arrive = [this, node, what, epoch = supervisor.epoch, effect = std::move(effect)] {
    Node& n = nodes[node];
    if (!n.up) return;
    if (epoch < n.epoch && options.bug != Bug::two_supervisors) return;  // LEAD-1
    invariants->command_obeyed(node, epoch, what);
    n.epoch = std::max(n.epoch, epoch);
    effect();
  };
  if (connected(supervisor, node))
    send(node, 1, std::move(arrive));
  else
    after(random.between(100, 2000), std::move(arrive));
}

/// Orders the trainers of a node to leave generations older than this one.
void Cluster::send_fence(Supervisor& supervisor, int node, uint64_t generation) {
  command(supervisor, node, "fence", [this, node, generation] {
    Node& n = nodes[node];
    n.generation = std::max(n.generation, generation);
    n.ended = std::max(n.ended, generation - 1);
    const int first = node * options.trainers;
    for (int t = first; t < first + options.trainers; ++t)
      if (!trainers[t].up) report_memory(t);
    report_peer_copies(node, generation);
    for (int t = first; t < first + options.trainers; ++t) {
      to_trainer(t, random.between(50, 2000), [this, t, generation] { fence(t, generation); });
    }
  });
}

/// Every step up to `step` is committed.
void Cluster::record_up_to(Supervisor& by, uint64_t step) {
  while (by.recorded && *by.recorded < step && options.bug != Bug::committed_unrecorded)
    record_step(by, by.ledger_generation, *by.recorded + 1);
}

/// A generation begins: the records go on after its first step, up to which every step is committed.
void Cluster::record_committed(Supervisor& by, const job::Join& order) {
  if (order.regained) {
    const uint64_t count = !by.undone ? 0
                           : options.bug == Bug::undone_lines_regained
                               ? by.undone->step
                               : job::committed_of(by.job, by.undone->step, by.undone->generation);
    if (by.recorded && std::min(order.step, count) > *by.recorded)
      set_mark(by, *(by.recorded = std::min(order.step, count)));
  } else if (!by.recorded || *by.recorded > order.step) {
    if (!by.undone && by.recorded) by.undone = HeldStep{*by.recorded, by.recorded_generation};
    by.recorded = order.step;
    if (!by.first_after) by.first_after = order.step;
    set_mark(by, order.step);
  }
  uint64_t reported = by.recorded.value_or(0);
  while (by.step_reports.contains(reported + 1)) ++reported;
  record_up_to(by, std::min(order.step, reported));
  by.ledger_generation = order.generation;
  record_up_to(by, order.step);
  by.step_reports.clear();
}

void Cluster::use_generation(Supervisor& by, uint64_t generation) {
  if (disk.failing_until <= now) disk.generation = std::max(disk.generation, generation);
  by.journal.generation = generation;
}

void Cluster::begin_generation(Supervisor& supervisor, const job::Join& order) {
  use_generation(supervisor, order.generation);
  auto g = std::make_shared<Generation>();
  g->number = order.generation;
  g->epoch = supervisor.epoch;
  g->source = order.source;
  g->begun_at = g->step = order.step;
  g->stop = order.save_only;
  g->by_agents = order.by_agents;
  g->moves = order.moves;
  auto add = [&](const std::string& name, uint32_t group, uint32_t shard, bool helper) {
    const int index = trainer_index.at(name);
    if (!g->index.emplace(index, static_cast<int>(g->members.size())).second) return;
    g->members.push_back({index, supervisor.job.trainers.at(name).pid, group, shard, helper});
  };
  g->over = g->by_agents;  // nobody joins it
  if (!g->by_agents)
    for (const job::Place& place : job::places(supervisor.job.rules, supervisor.job.layout)) {
      add(place.trainer, place.group, place.shard, false);
      g->groups = std::max(g->groups, place.group + 1);
    }
  g->trainers = g->members.size();
  for (const job::Move& move : order.moves)
    if (g->by_agents)
      break;
    else if (const auto node = node_index.find(move.source); node != node_index.end())
      g->agents[node->second].pid = supervisor.job.nodes.at(move.source).pid;
    else
      add(move.source, 0, move.shard, true);
  record_committed(supervisor, order);
  supervisor.publisher.jobs.push_back(
      {{order.step, order.generation}, 0, "", PublisherJob::Kind::undo});
  run_publisher(supervisor);
  generations[g->number] = g;
  supervisor.rounds.reset();
  while (generations.size() > 8) generations.erase(generations.begin());
  for (int n = 0; n < options.nodes; ++n)
    command(supervisor, n, "join", [this, n, g] {
      nodes[n].generation = nodes[n].ended = g->number;
      nodes[n].copied_step = 0;
      g->by_agents ? save_from_memory(n, *g) : join_members(n, g);
    });
  after(2 * collective_timeout, [this, g] {
    if (!g->restored && !g->over) abort_generation(*g, job::Fault::failed, "");
  });
}

void Cluster::check_node(Supervisor& supervisor, int n) {
  command(supervisor, n, "check", [this, n] {
    nodes[n].checked.reset();
    after(random.between(500, 2500) * ms, [this, n, pid = nodes[n].pid] {
      Node& node = nodes[n];
      if (!node.up || node.pid != pid) return;
      node.checked =
          job::NodeChecked{node.name, !node.sick, node.sick ? "core 1 adds wrongly" : ""};
      to_supervisor(n, *node.checked);
    });
  });
}

void Cluster::carry_out(Supervisor& supervisor, const job::Action& action) {
  auto to_all_trainers = [&](const char* what, std::function<void(int)> effect) {
    for (int n = 0; n < options.nodes; ++n)
      command(supervisor, n, what, [this, n, effect] {
        for (int slot = 0; slot < options.trainers; ++slot) {
          const int t = n * options.trainers + slot;
          to_trainer(t, random.between(50, 2000), [effect, t] { effect(t); });
        }
      });
  };
  if (const auto* fence = std::get_if<job::Fence>(&action)) {
    use_generation(supervisor, fence->generation);
    for (int n = 0; n < options.nodes; ++n) send_fence(supervisor, n, fence->generation);
  } else if (const auto* leave = std::get_if<job::Leave>(&action)) {
    to_all_trainers("leave", [this, number = leave->generation](int t) {
      if (trainers[t].generation != number) return;
      if (auto g = generations.find(number); g != generations.end()) g->second->leave = true;
    });
  } else if (std::holds_alternative<job::StopAtStep>(action)) {
    to_all_trainers("stop", [this](int t) {
      if (auto g = generations.find(trainers[t].generation); g != generations.end())
        g->second->stop = true;
    });
  } else if (const auto* order = std::get_if<job::Join>(&action)) {
    begin_generation(supervisor, *order);
  } else if (const auto* kill = std::get_if<job::KillTrainer>(&action)) {
    const int t = trainer_index.at(kill->trainer);
    command(supervisor, node_of(t), "kill", [this, t] { kill_trainer(t, 0); });
  } else if (const auto* check = std::get_if<job::CheckNode>(&action)) {
    check_node(supervisor, node_index.at(check->node));
  } else if (const auto* prune = std::get_if<job::PruneCheckpoints>(&action)) {
    supervisor.publisher.jobs.push_back({{prune->step, 0}, 0, "", PublisherJob::Kind::prune});
    run_publisher(supervisor);
  } else if (const auto* end = std::get_if<job::Shutdown>(&action)) {
    ended = *end;
  }
}

/// Changes the state or the decision as a bug in decide() would.
void Cluster::plant_bug(Supervisor& supervisor, const job::Event& event, job::Decision& decision) {
  job::State& s = supervisor.job;
  switch (options.bug) {
    case Bug::budget_by_uptime:
      for (auto& [name, node] : s.nodes)
        std::erase_if(node.failures_ms, [&](int64_t t) { return now / ms - t > 3000; });
      break;
    case Bug::lost_node_kept:
      if (const auto* lost = std::get_if<job::NodeLost>(&event);
          lost && s.layout.contains(lost->node)) {
        s.nodes.at(lost->node).state = job::NodeState::up;
        for (int slot = 0; slot < options.trainers; ++slot)
          s.trainers.at(trainer_name(lost->node, slot)).state = job::TrainerState::idle;
      }
      break;
    case Bug::two_shards:
      if (s.layout.cells.size() > 1 && !s.layout.cells[1].empty())
        s.layout.cells[1][0] = s.layout.cells[0][0];
      break;
    case Bug::waits_for_the_dead:
      if (s.phase == job::Phase::recovering) s.waiting_since_ms = now / ms;
      break;
    case Bug::waits_for_the_missing:
      if (s.phase == job::Phase::training) s.waiting_since_ms = now / ms;
      break;
    case Bug::growth_without_leave:
      for (job::Action& action : decision.actions) {
        const auto* leave = std::get_if<job::Leave>(&action);
        if (!leave) continue;
        job::Join join{++s.generation, job::Source::memory, s.committed_step, {}};
        s.leaving = false;
        action = join;
        break;
      }
      break;
    case Bug::ceiling_dropped:
      s.suspect_steps.clear();
      break;
    case Bug::undone_copies:
      s.undoings.clear();
      break;
    case Bug::published_unheard:
      s.publishing = {};
      break;
    case Bug::begins_again:
      s.had_checkpoint = false;
      break;
    case Bug::memory_discarded:
      for (job::Action& action : decision.actions) {
        const auto* join = std::get_if<job::Join>(&action);
        if (!join || !join->by_agents) continue;
        s.phase = job::Phase::failed;
        action = job::Shutdown{s.exit, "no memory holds a copy of every shard"};
        break;
      }
      break;
    case Bug::answers_not_awaited:
      for (auto& [name, node] : s.nodes) node.answered = UINT64_MAX;
      break;
    case Bug::memory_forgotten:
      for (auto& [name, trainer] : s.trainers)
        if (trainer.state == job::TrainerState::down) trainer.generation = 0, trainer.held.clear();
      break;
    case Bug::silent_decision:
      for (job::Action& action : decision.actions)
        if (auto* fence = std::get_if<job::Fence>(&action)) fence->reason.clear();
      break;
    default:
      break;
  }
}

}  // namespace simplescale::simulation
