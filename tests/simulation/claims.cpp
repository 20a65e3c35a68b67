// Supervisors that begin: a process claims a term, reads what its predecessor has left, and takes
// over. As in app/processes/supervisor_process.cpp, and in claim.cpp and take_over.cpp of
// actors/supervisor.
#include <algorithm>

#include "runtime/run/term.hpp"
#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

namespace {

constexpr Time read_time = 15 * second;  // as kReadRetries of claim.hpp
constexpr Time return_time = 1500 * ms;  // for agents to report to a new supervisor
constexpr Time watch_time =
    100 * ms;  // between two looks of a standby that has lost its supervisor

job::State make_job(const Options& o) {
  job::LayoutRules rules;
  rules.trainers_per_node = o.trainers;
  rules.shards = o.trainers * o.domain_nodes;
  rules.domain_nodes = o.domain_nodes;
  rules.domains = (o.first() - o.spares) / o.domain_nodes;
  rules.spares = o.spares;
  rules.max_nodes = o.nodes;
  rules.domain_sizes = o.sizes;
  rules.rate_first = o.rate_first;
  std::vector<std::string> names;
  for (int n = 0; n < o.first(); ++n) names.push_back(node_name(n));
  job::State state = job::make_state(rules, names);
  state.max_steps = o.steps;
  state.join_timeout_ms = join_timeout_ms;
  state.restart_timeout_ms = 5'000;
  state.balance = !o.large();
  state.leaves = leaves_of(o);
  state.balance_pause_ms = 15'000;
  state.save_timeout_ms = 120'000;  // longer than the run folder is away
  return state;
}

/// What a successor reads: not all of a state is written.
std::shared_ptr<const SupervisorState> as_read(const SupervisorState& left) {
  return std::make_shared<SupervisorState>(decode(encode(left)).take());
}

Code code_of(int exit) {
  unsigned code = 0;
  while (is_code(code) && exit_code(static_cast<Code>(code)) != exit) ++code;
  return static_cast<Code>(code);
}

}  // namespace

Time Cluster::folder_works_at(int host) const {
  return std::max(disk.hung_until, nodes[host].folder_hung_until);
}

/// The standby has lost its supervisor, and looks at the term files until it knows what to do.
void Cluster::succeed(Supervisor& lost, std::shared_ptr<Standby> standby) {
  const Node& node = nodes[standby->host];
  if (!node.up || node.pid != standby->pid || ended || lost.term != disk.newest_term) return;
  Failover::Decision decision;
  const Time works = std::max(folder_works_at(standby->host), node.hung_until);
  if (!standby->failover.is_lost()) {
    decision = standby->failover.lost(
        {"lost", standby->silent ? ReasonKind::silent : ReasonKind::process_ended}, true, now / ms);
  } else if (works <= now) {
    if (std::exchange(standby->beat, lost.beat) != lost.beat) standby->beat_at = now;
    const bool lives =
        disk.resigned_term != lost.term && now - standby->beat_at < kHeartbeatTimeoutMs * ms;
    decision = standby->failover.seen({true, true, lost.term, lives}, lost.term, now / ms);
  }
  if (decision.verdict == Failover::Verdict::take_over)
    claim(standby->host, standby->state, standby->room);
  if (decision.verdict != Failover::Verdict::wait) return;
  after(std::max(works - now + 1, watch_time), [this, &lost, standby] { succeed(lost, standby); });
}

/// A process of this host claims the next term. from: the state that the standby has; null: this
/// process was no standby. room: it has room on the disk for its claim. In a folder that hangs a
/// claim hangs. On a full disk a claim without room fails: a standby, which may be alone to have the
/// newest state, tries again; else an agent starts a process later.
void Cluster::claim(int host, std::shared_ptr<const SupervisorState> from, bool room) {
  const Time works = std::max(folder_works_at(host), nodes[host].hung_until);
  // A process that was no standby reads the state of its predecessor before it claims, too.
  const bool full =
      (disk.failing_until > now && !room) || (!from && unreadable(host, &Unreadable::page));
  if (full && (!from || options.bug == Bug::claims_once)) return;
  if (full || works > now) {
    after(std::max(works - now + 1, watch_time),
          [this, host, from, room, pid = nodes[host].pid, term = disk.newest_term] {
            const Node& node = nodes[host];
            const Supervisor* lives = leader();  // it was only stopped
            if (lives && (lives->hung_until > now || hung(nodes[lives->host]))) lives = nullptr;
            if (node.up && node.pid == pid && disk.newest_term == term && !ended && !lives)
              claim(host, from, room);
          });
    return;
  }
  Claim made{.host = host,
             .agent = nodes[host].pid,
             .from = from,
             .lines = {disk.ledger.size(), disk.metrics.size()},
             .claimed = now,
             .stood_by = from != nullptr};
  if (options.bug == Bug::read_before_claim) {
    read_state(made);
    after(random.between(1, 30) * ms, [this, made]() mutable {
      made.term = ++disk.newest_term;
      disk.claimed_at = now;
      prepare(std::move(made));
    });
    return;
  }
  made.term = ++disk.newest_term;
  disk.claimed_at = now;
  for (int n = 0; n < options.nodes; ++n)
    if (nodes[n].link.up)
      after(random.between(1, 1000) * ms, [this, n] { leave_deposed_leader(n); });
  if (logging())
    log_line(nodes[host].name + ": a process claims term " + std::to_string(made.term));
  if (const auto due = std::exchange(unreadable_due, std::nullopt)) {
    Unreadable& fails = random.chance(50) ? disk.unreadable : nodes[host].unreadable;
    fails = {due->page + now, due->records + now};
  }
  const bool frozen = std::exchange(freeze_claim_due, false);
  after(frozen ? random.between(500, 8000) * ms : random.between(1, 30) * ms,
        [this, made]() mutable { prepare(std::move(made)); });
}

bool Cluster::unreadable(int host, Time Unreadable::*what) const {
  return std::max(disk.unreadable.*what, nodes[host].unreadable.*what) > now;
}

/// The process that has claimed the newest term prepares, and its heartbeat goes on.
bool Cluster::prepares() const {
  if (preparing_.term != disk.newest_term || disk.resigned_term == disk.newest_term) return false;
  const Node& node = nodes[preparing_.host];
  return node.up && node.pid == preparing_.agent && !hung(node) &&
         folder_works_at(preparing_.host) <= now;
}

/// JOB-1: a process that has claimed a term reads a file. False: it cannot; it tries again, or
/// lets another process lead. As supervise().
bool Cluster::reads(Claim& claim, Time Unreadable::*what) {
  if (!unreadable(claim.host, what)) {
    claim.failing_since.reset();
    return true;
  }
  if (!claim.failing_since) claim.failing_since = now;
  if (now - *claim.failing_since >= read_time) {
    step_down(claim);
    return false;
  }
  after(random.between(500, 1500) * ms, [this, claim]() mutable { prepare(std::move(claim)); });
  return false;
}

/// As resign_unprepared() of actors/supervisor/step_down.cpp, and as read_left_state().
void Cluster::step_down(const Claim& claim) {
  const Node& node = nodes[claim.host];
  if (!node.up || node.pid != claim.agent || ended || claim.term != disk.newest_term) return;
  if (claim.term == 1) return refuse(Code::io, "the run folder cannot be read");
  const bool leaves = claim.stood_by && options.bug != Bug::state_not_left;
  const auto state = leaves ? claim.from : nullptr;
  const Time works = std::max(folder_works_at(claim.host), node.hung_until);
  if (works > now || (state && disk.failing_until > now)) {
    after(std::max(works - now + 1, watch_time), [this, claim] { step_down(claim); });
    return;
  }
  ++faults["stepped_down"];
  if (logging()) log_line("supervisor " + std::to_string(claim.term) + ": cannot read, resigns");
  const auto page = disk.state;
  const bool newer = state && (!page || is_newer(*state, *page));
  if (newer || (state && options.bug == Bug::pages_not_compared)) disk.state = state;
  disk.resigned_term = claim.term;
  for (const auto& known : {claim.from, page})
    if (known) invariants->stepped_down(claim.term, *known);
}

/// As refuse_agents() of app/processes/supervisor_process.cpp.
void Cluster::refuse(Code code, const std::string& reason) {
  if (options.bug == Bug::refuses_nobody) return preparing_ = {}, void();
  refused = true;
  ended = job::Shutdown{code, reason};
}

void Cluster::keep_old_page(int node, Time how_long) {
  if (!disk.state || disk.state->job.generation == 0) return;
  nodes[node].old_page = disk.state;
  nodes[node].finds_old_until = now + how_long;
}

/// As read_known() of claim.cpp: the disk has a newer state if the last supervisor decided without a
/// standby.
void Cluster::read_state(Claim& claim) const {
  const Node& host = nodes[claim.host];
  const auto& page = host.finds_old_until > now ? host.old_page : disk.state;
  if (page && (!claim.from || is_newer(*page, *claim.from))) claim.from = page;
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
  const bool deposed = claim.term != disk.newest_term;  // LEAD-1
  if (deposed && options.bug != Bug::prepares_unfenced) return;
  if (!deposed) {
    preparing_ = {claim.term, claim.host, claim.agent};
    if (disk.number_damaged) return refuse(Code::bad_data, "control/generation holds no number");
    if (!claim.page_read) {
      if (!reads(claim, &Unreadable::page)) return;
      claim.page_read = true;
      if (options.bug != Bug::read_before_claim) read_state(claim);
    }
    if (!reads(claim, &Unreadable::records)) return;
  }
  mend_records(claim);
  if (deposed) return;
  revoke_publishers();
  if (claim.from) claim.from = as_read(*claim.from);
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
  const uint64_t said = replica && claim.from->recorded ? claim.from->recorded_step : 0;
  const RecordsEnd records = end_of_steps(recorded_steps(), true, BatchSchedule(rows), said);
  auto made = std::make_unique<Supervisor>();
  Supervisor& supervisor = *made;
  preparing_ = {};
  supervisor.term = claim.term;
  supervisor.host = host;
  supervisor.beat = supervisor.seen = now;
  const uint64_t given = std::max(disk.generation, replica ? claim.from->job.generation : 0);
  const uint64_t known = std::max(given, records.newest_generation);
  disk.claimed_above = job::claimed_generation_floor(claim.term, disk.claimed_above, given);
  const uint64_t above = job::generation_floor_of(claim.term, disk.claimed_above, known);
  supervisor.job = replica ? job::resumed(claim.from->job, above, now / ms) : make_job(options);
  if (!replica) {
    supervisor.job.generation = known;
    supervisor.job.generation_floor = above;
    supervisor.job.waiting_since_ms = now / ms;
  }
  if (supervisor.job.instructions == InstructionSet::automatic)  // as take_over()
    supervisor.job.instructions = disk.instructions;
  if (options.bug == Bug::instructions_forgotten)
    supervisor.job.instructions = InstructionSet::automatic;
  if (options.bug == Bug::number_adopted)
    supervisor.job.generation = std::max(supervisor.job.generation, known);
  if (options.bug == Bug::generation_reused) {
    supervisor.job.generation_floor = 0;
    if (replica && supervisor.job.generation > 1) --supervisor.job.generation;
  }
  supervisor.elected = disk.resigned_term > 0 && claim.term == disk.resigned_term + 1;
  supervisor.sequence = replica ? claim.from->sequence : 0;
  if (logging())
    log_line("supervisor " + std::to_string(supervisor.term) + " on " + nodes[host].name +
             (replica ? ", with the last state" : ", without the last state") + ", generation " +
             std::to_string(supervisor.job.generation));
  if (replica)
    for (const auto& [name, node] : supervisor.job.nodes)
      if (node.state != job::NodeState::absent && node.state != job::NodeState::lost)
        supervisor.expected.insert(node_index.at(name));
  supervisor.shadow = supervisor.job;
  const bool missed = replica && disk.state && is_newer(*disk.state, *claim.from);
  supervisors.push_back(std::move(made));
  invariants->supervisor_started(supervisor, claim.from.get(), claim.claimed, missed);
  Supervisor* raw = supervisors.back().get();
  if (replica) take_over(*raw, *claim.from, records);
  // The last decision may not have been acted on.
  if (replica && job::over(claim.from->job.phase))
    ended = job::Shutdown{code_of(claim.from->end_exit), claim.from->end_reason};
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
  std::optional<StateVersion> last;
  if (records.any) last = StateVersion{records.step, records.generation};
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
  if (options.bug == Bug::disk_not_read) return;
  const std::vector<uint64_t> on_disk = find_checkpoints(&from.job);
  if (!disk.ever_published) return;
  by.job.had_checkpoint = by.shadow.had_checkpoint = true;
  if (!on_disk.empty() && (!by.job.has_checkpoint || on_disk.back() > by.job.checkpoint_step))
    handle(by, job::CheckpointSaved{on_disk.back()});
  if (options.bug != Bug::gone_checkpoints_kept) handle(by, job::CheckpointsLeft{on_disk});
}

}  // namespace simplescale::simulation
