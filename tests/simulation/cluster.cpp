#include "tests/simulation/cluster.hpp"
#include "runtime/run/term.hpp"

#include <algorithm>
#include <cstdio>

#include "runtime/base/status.hpp"
#include "tests/simulation/faults.hpp"
#include "tests/simulation/invariants.hpp"
#include "transport/protocol/reason.hpp"

namespace simplescale::simulation {

namespace {
constexpr size_t events_shown = 50;
constexpr uint64_t events_max = 40'000'000;
constexpr Time retry_time = 100 * ms;    // until an agent without a supervisor looks for one again
constexpr Time alone_time = 5 * second;  // until it looks whether it may leave, if it cannot look
}  // namespace

uint64_t content_of(const Shard& of, uint64_t step, uint64_t made) {
  return splitmix64_at(made << 44 ^ step << 24 ^ uint64_t{of.shards} << 12 ^ of.shard, 0);
}

bool overlap(const Shard& a, const Shard& b, uint32_t blocks) {
  // As common_pieces() of one unit.
  const uint32_t of_a = (blocks + a.shards - 1) / a.shards,
                 of_b = (blocks + b.shards - 1) / b.shards;
  return a == b || std::max(a.shard * of_a, b.shard * of_b) <
                       std::min({(a.shard + 1) * of_a, (b.shard + 1) * of_b, blocks});
}

namespace {
std::vector<StateCopy> labels(const std::vector<StoredCopy>& copies) {
  std::vector<StateCopy> list;
  for (const StoredCopy& copy : copies) list.push_back(copy.label());
  return list;
}
}  // namespace

Cluster::Cluster(const Options& o)
    : options(o), random(o.seed), invariants(std::make_unique<Invariants>(*this)) {
  nodes.resize(static_cast<size_t>(o.nodes));
  trainers.resize(static_cast<size_t>(o.nodes * o.trainers));
  blocked_.resize(nodes.size() * nodes.size());
  for (int n = 0; n < o.nodes; ++n) {
    nodes[n].name = node_name(n);
    nodes[n].named = n < o.first();
    node_index[nodes[n].name] = n;
    for (int slot = 0; slot < o.trainers; ++slot) {
      Trainer& t = trainers[n * o.trainers + slot];
      t.name = trainer_name(nodes[n].name, slot);
      trainer_index[t.name] = n * o.trainers + slot;
    }
  }
  step_time = random.between(60, 300) * ms;
}

Cluster::~Cluster() = default;

void Cluster::after(Time delay, Message what) {
  uint32_t slot;
  if (free_.empty()) {
    slot = static_cast<uint32_t>(slots_.size());
    slots_.push_back(std::move(what));
  } else {
    slot = free_.back();
    free_.pop_back();
    slots_[slot] = std::move(what);
  }
  due_.push({now + std::max<Time>(delay, 1), order_++, slot});
}

void Cluster::log_line(const std::string& text) {
  char time[32];
  std::snprintf(time, sizeof time, "%10.4f  ", static_cast<double>(now) / second);
  log.push_back(time + text);
  if (log.size() > events_shown) log.pop_front();
  if (options.verbose) std::printf("%s\n", log.back().c_str());
}

void Cluster::run() {
  for (int n = 0; n < options.first(); ++n)
    after(random.between(1, 300) * ms, [this, n] { start_agent(n); });
  schedule_faults(*this);
  while (!ended && !due_.empty()) {
    const Due next = due_.top();
    due_.pop();
    now = next.time;
    Message what = std::move(slots_[next.slot]);
    free_.push_back(next.slot);
    what();
    ++events;
    invariants->after_event();
    if (events > events_max)
      throw Violation{"JOB-4", "more than " + std::to_string(events_max) + " events"};
  }
  invariants->at_end();
}

// --- Links ---

bool Cluster::reachable(int from, int to) const {
  return from == to || blocks_ == 0 ||
         !blocked_[static_cast<size_t>(from) * nodes.size() + static_cast<size_t>(to)];
}

void Cluster::block(int from, int to, bool blocked) {
  for (int other = 0; other < options.nodes; ++other) {
    if (from >= 0 && to >= 0 && other > 0) break;
    const int a = from < 0 ? other : from, b = to < 0 ? other : to;
    if (a == b) continue;
    uint8_t& domain = blocked_[static_cast<size_t>(a) * nodes.size() + static_cast<size_t>(b)];
    if (blocked == (domain != 0)) continue;
    domain = blocked;
    blocks_ += blocked ? 1 : -1;
  }
  if (blocked) after(silence + random.between(0, 500) * ms, [this] { check_links(); });
}

/// direction 0: to the supervisor; 1: to the agent. First in, first out.
void Cluster::send(int node, int direction, Message what) {
  Link& link = nodes[node].link;
  if (!link.up) return;
  Time delay = random.between(50, 2000);
  if (now < slow_links_until && random.chance(10)) delay += random.between(10, 800) * ms;
  link.last[direction] = std::max(link.last[direction] + 1, now + delay);
  link.queue[direction].push_back(std::move(what));
  after(link.last[direction] - now,
        [this, node, direction, id = link.id] { deliver_next(node, direction, id); });
}

void Cluster::deliver_next(int node, int direction, uint64_t id) {
  Node& n = nodes[node];
  if (n.link.id != id || !n.link.up) return;
  Supervisor& supervisor = *n.link.supervisor;
  const bool stuck = direction == 0
                         ? !reachable(node, supervisor.host) || supervisor.hung_until > now ||
                               hung(nodes[supervisor.host])
                         : !reachable(supervisor.host, node) || hung(n);
  if (stuck) {
    after(20 * ms, [this, node, direction, id] { deliver_next(node, direction, id); });
    return;
  }
  if (direction == 0 ? !supervisor.up : !n.up) return;
  Message what = std::move(n.link.queue[direction].front());
  n.link.queue[direction].pop_front();
  what();
}

/// The agent notices now, the supervisor after a short delay.
void Cluster::break_link(int node, bool supervisor_knows_at_once) {
  Link& link = nodes[node].link;
  if (!link.up) return;
  link.up = false;
  for (auto& queue : link.queue) queue.clear();
  nodes[node].alone_since = now;
  nodes[node].search.begin(now / ms);
  Supervisor* supervisor = link.supervisor;
  const uint64_t id = link.id;
  if (logging())
    log_line(nodes[node].name + ": its link to supervisor " + std::to_string(supervisor->term) +
             " breaks");
  after(supervisor_knows_at_once ? random.between(1, 20) * ms : random.between(1, 400) * ms,
        [this, node, supervisor, id] { notice_loss(node, supervisor, id); });
  after(random.between(1, 50) * ms, [this, node] { find_supervisor(node); });
}

/// The supervisor's end of a broken link.
void Cluster::notice_loss(int node, Supervisor* supervisor, uint64_t id) {
  if (!supervisor->up) return;
  if (supervisor->hung_until > now || hung(nodes[supervisor->host])) {
    after(20 * ms, [this, node, supervisor, id] { notice_loss(node, supervisor, id); });
    return;
  }
  auto found = supervisor->links.find(node);
  if (found == supervisor->links.end() || found->second != id) return;
  supervisor->links.erase(found);
  const auto known = supervisor->job.nodes.find(nodes[node].name);
  const int32_t pid = known == supervisor->job.nodes.end() ? 0 : known->second.pid;
  handle(*supervisor, job::NodeLost{nodes[node].name, "its agent does not answer any more"});
  if (!options.sizes.empty() && random.chance(50)) notice_end(node, supervisor, pid);
}

/// The supervisor sees the end of a lost agent's process, as ended_agents() does.
void Cluster::notice_end(int node, Supervisor* supervisor, int32_t pid) {
  if (!supervisor->up) return;
  const auto known = supervisor->job.nodes.find(nodes[node].name);
  if (known == supervisor->job.nodes.end() || known->second.pid != pid || known->second.ended ||
      known->second.state != job::NodeState::lost)
    return;
  if (supervisor->hung_until <= now && !hung(nodes[supervisor->host]) &&
      (!nodes[node].up || nodes[node].pid != pid))
    return handle(*supervisor, job::NodeLost{nodes[node].name, process_ended()});
  after(tick_time, [this, node, supervisor, pid] { notice_end(node, supervisor, pid); });
}

/// Breaks the links whose ends cannot hear each other.
void Cluster::check_links() {
  for (int n = 0; n < options.nodes; ++n) {
    Node& node = nodes[n];
    if (!node.up || !node.link.up) continue;
    const Supervisor& supervisor = *node.link.supervisor;
    if (!reachable(n, supervisor.host) || !reachable(supervisor.host, n) || hung(node) ||
        hung(nodes[supervisor.host]) || supervisor.hung_until > now || !supervisor.up)
      break_link(n, false);
  }
}

bool Cluster::connected(const Supervisor& supervisor, int node) const {
  auto found = supervisor.links.find(node);
  return found != supervisor.links.end() && nodes[node].link.up &&
         nodes[node].link.id == found->second;
}

Supervisor* Cluster::leader() {
  for (auto& supervisor : supervisors)
    if (supervisor->term == disk.newest_term && supervisor->up) return supervisor.get();
  return nullptr;
}

bool Cluster::kept_down(int node) const {
  const auto first = trainers.begin() + node * options.trainers;
  return std::any_of(first, first + options.trainers,
                     [this](const Trainer& t) { return !t.up && t.no_restart_until > now; });
}

// --- Agents ---

void Cluster::choose_host(int index) {
  Node& node = nodes[index];
  const uint64_t draw = splitmix64_at(options.seed << 20 ^ static_cast<uint64_t>(pids_), index);
  if (index >= options.first() - options.spares)
    node.instructions = draw % 3 == 0 ? InstructionSet::avx2 : InstructionSet::avx512;
}

void Cluster::start_agent(int index) {
  Node& node = nodes[index];
  if (node.up) return;
  choose_host(index);
  node.run_instructions = InstructionSet::automatic;
  node.up = true;
  node.pid = ++pids_;
  node.run_over = false;
  node.alone_since = now;
  node.search = {};
  node.search.begin(now / ms);
  withdraw_vote(node);
  node.hung_until = 0;
  if (logging()) log_line(node.name + ": its agent starts");
  for (int slot = 0; slot < options.trainers; ++slot)
    start_trainer(index * options.trainers + slot, random.between(20, 400) * ms);
  find_supervisor(index);
}

/// LEAD-1: an agent that has a supervisor reads the term files every second.
void Cluster::leave_deposed_leader(int index) {
  const Node& node = nodes[index];
  if (!node.up || !node.link.up || node.link.supervisor->term == disk.newest_term ||
      options.bug == Bug::agents_never_look || options.bug == Bug::two_supervisors)
    return;
  if (const Time works = std::max(node.hung_until, folder_works_at(index)); works > now)
    // A later fault may end sooner than this one.
    after(std::min(works - now, second) + random.between(1, 1000) * ms,
          [this, index] { leave_deposed_leader(index); });
  else
    break_link(index, false);
}

/// Reports to the supervisor of the newest term; starts one if there has been none for too long.
void Cluster::find_supervisor(int index) {
  Node& node = nodes[index];
  if (!node.up || node.link.up || node.run_over) return;
  if (const Time works = std::max(node.hung_until, folder_works_at(index)); works > now) {
    // It cannot look.
    after(std::min(works - now + 1, alone_time), [this, index] { find_supervisor(index); });
    return leave_if_alone(index);
  }
  Supervisor* supervisor = leader();
  const bool runs = supervisor && supervisor->hung_until <= now && !hung(nodes[supervisor->host]);
  const bool beats = prepares() || (runs && now - supervisor->beat < kHeartbeatTimeoutMs * ms);
  if (runs && supervisor->term >= node.term && reachable(index, supervisor->host) &&
      reachable(supervisor->host, index)) {
    node.term = supervisor->term;
    withdraw_vote(node);
    node.link = {supervisor, ++links_, true, {now, now}, {}};
    report_to_supervisor(index);
    return;
  }
  if (beats && supervisor) vote(node, *supervisor);
  node.search.seen(disk.newest_term, beats, now / ms);
  const bool first = disk.newest_term == 0 && index == 0;
  const bool elects = disk.resigned_term > 0 && votes(node, disk.newest_term);
  const Time patience = (elects ? 0 : silence + 500 * ms) + index * 200 * ms;
  if (!beats && (first || now - node.alone_since > patience) && !others_vote(node)) {
    claim(index, nullptr);
    node.alone_since = now;
  }
  after(retry_time, [this, index] { find_supervisor(index); });
  leave_if_alone(index);
}

/// Reports everything that a new supervisor has to know.
void Cluster::report_to_supervisor(int index) {
  Node& node = nodes[index];
  Supervisor* supervisor = node.link.supervisor;
  send(index, 0, [this, supervisor, index, id = node.link.id, pid = node.pid] {
    node_connected(*supervisor, index, id, pid);
  });
  report_peer_copies(index);
  for (int slot = 0; slot < options.trainers; ++slot) {
    const Trainer& t = trainers[index * options.trainers + slot];
    if (!t.known) continue;
    const bool news = t.idle && t.idle->generation + 1 >= node.generation;
    job::TrainerUp up{.trainer = t.name, .pid = t.pid, .held = labels(t.copies)};
    up.generation = t.idle && !news ? 0 : t.told_generation;
    if (t.up) to_supervisor(index, up);
    if (news) to_supervisor(index, *t.idle);
    if (!t.up) to_supervisor(index, job::TrainerDown{t.name, {"it has ended"}});
    auto g = generations.find(t.told_generation);
    if (g == generations.end() || t.told_generation == 0) continue;
    const auto member = g->second->index.find(index * options.trainers + slot);
    if (member == g->second->index.end() ||
        !g->second->members[static_cast<size_t>(member->second)].ready)
      continue;
    to_supervisor(index, job::TrainerReady{t.name, g->first});
    if (g->second->stops_now && t.generation == g->first)
      to_supervisor(index, job::TrainerFinished{t.name, g->first, g->second->step});
  }
  forget_reports(node, supervisor->journal.marked);
  for (const StepReport& report : node.reports)
    send(index, 0, [this, supervisor, report] { step_done(*supervisor, report); });
  for (const ShardSaved& saved : node.saved) shard_saved(index, saved);
  if (node.checked) to_supervisor(index, *node.checked);
}

void Cluster::to_supervisor(int node, const job::Event& event) {
  if (!nodes[node].link.up) return;
  send(node, 0, [this, supervisor = nodes[node].link.supervisor, event] {
    if (logging())
      log_line("supervisor " + std::to_string(supervisor->term) + " hears " + text_of(event));
    if (old_events_.size() > 40) old_events_.pop_front();
    if (!options.large()) old_events_.push_back(event);
    handle(*supervisor, event);
    if (std::holds_alternative<job::PeerCopies>(event)) hear_copies(*supervisor);
  });
}

void Cluster::report_idle(int index, job::TrainerIdle idle) {
  Trainer& t = trainers[index];
  const int node = node_of(index);
  if (!nodes[node].up) return;
  idle.trainer = t.name;
  idle.held = labels(t.copies);
  // An answer to a fence may arrive after the next order to join. It says less than a report of a
  // fault in the same generation, which is kept.
  const bool known =
      t.idle && t.idle->generation == idle.generation && idle.fault == job::Fault::none;
  if (idle.generation >= t.told_generation && !known) t.idle = idle;
  to_supervisor(node, idle);
}

void Cluster::report_step(int index, StepReport report) {
  Node& node = nodes[index];
  if (!node.up) return;
  node.reports.push_back(report);
  if (options.bug == Bug::reports_forgotten) node.reports.clear();
  if (!node.link.up) return;
  send(index, 0, [this, supervisor = node.link.supervisor, report = std::move(report)] {
    step_done(*supervisor, report);
  });
}

/// The agent reports what the memory of a trainer holds that is not up.
void Cluster::report_memory(int index) {
  report_idle(index, {.generation = nodes[node_of(index)].ended, .reason = {"its agent reports"}});
}

void Cluster::report_peer_copies(int index, uint64_t fence) {
  job::PeerCopies held{nodes[index].name, {}, fence};
  for (const auto& [shard, copies] : nodes[index].peer)
    for (const StoredCopy& copy : copies) held.copies.push_back(copy.label());
  to_supervisor(index, held);
}

void Cluster::start_trainer(int index, Time delay) {
  after(delay, [this, index, agent = nodes[node_of(index)].pid] {
    Trainer& t = trainers[index];
    Node& node = nodes[node_of(index)];
    if (!node.up || node.pid != agent || t.up) return;
    if (hung(node) || now < t.no_restart_until) {
      start_trainer(index, std::max(node.hung_until, t.no_restart_until) - now);
      return;
    }
    t.up = true;
    t.pid = ++pids_;
    t.hung_until = 0;
    t.generation = t.fenced = t.told_generation = 0;
    t.writing = false;
    t.known = true;
    t.idle.reset();
    job::TrainerUp up{.trainer = t.name, .pid = t.pid, .held = labels(t.copies)};
    to_supervisor(node_of(index), up);
  });
}

/// Sends a message to a trainer; `what` runs when its process handles the message.
void Cluster::to_trainer(int index, Time delay, Message what) {
  Time& last = trainers[index].last_message;  // messages arrive in the order sent
  last = std::max(last + 1, now + delay);
  after(last - now, [this, index, pid = trainers[index].pid, what = std::move(what)] {
    Trainer& t = trainers[index];
    if (!t.up || t.pid != pid) return;
    if (t.hung_until > now)
      after(t.hung_until - now + 1, [this, index, pid, what] {
        if (trainers[index].up && trainers[index].pid == pid) what();
      });
    else
      what();
  });
}

// --- Faults ---

void Cluster::kill_trainer(int index, Time no_restart_for) {
  Trainer& t = trainers[index];
  if (!t.up) return;
  if (logging()) log_line(t.name + ": killed");
  t.up = false;
  t.no_restart_until = std::max(t.no_restart_until, now + no_restart_for);
  if (t.writing && t.copies.size() > 1) t.copies.erase(t.copies.begin());
  t.writing = false;
  auto g = generations.find(t.generation);
  t.generation = 0;
  if (g != generations.end()) abort_generation(*g->second, job::Fault::failed, "");
  const int node = node_of(index);
  if (!nodes[node].up) return;
  after(random.between(1, 5) * ms,
        [this, index, pid = nodes[node].pid] { notice_death(index, pid); });
}

/// The agent reports the death of a trainer and restarts it.
void Cluster::notice_death(int index, int32_t agent) {
  const int node = node_of(index);
  if (!nodes[node].up || nodes[node].pid != agent || trainers[index].up) return;
  if (hung(nodes[node])) {
    after(nodes[node].hung_until - now, [this, index, agent] { notice_death(index, agent); });
    return;
  }
  trainers[index].told_generation = 0;
  trainers[index].idle.reset();
  to_supervisor(node, job::TrainerDown{trainers[index].name, {"signal 9"}});
  report_memory(index);
  start_trainer(index,
                random.chance(70) ? random.between(20, 200) * ms : random.between(1000, 4000) * ms);
}

void Cluster::stall_trainer(int index, Time how_long) {
  Trainer& t = trainers[index];
  if (t.up) t.hung_until = std::max(t.hung_until, now + how_long);
}

void Cluster::hang_trainer(int index, Time how_long) {
  if (!trainers[index].up) return;
  stall_trainer(index, how_long);
  after(silence + random.between(0, 300) * ms, [this, index, pid = trainers[index].pid] {
    const Node& node = nodes[node_of(index)];
    if (trainers[index].pid == pid && trainers[index].hung_until > now && node.up && !hung(node))
      kill_trainer(index, 0);
  });
}

void Cluster::kill_node(int index, Time back_after) {
  Node& node = nodes[index];
  if (!node.up) return;
  if (logging()) log_line(node.name + ": killed with all that is on it");
  node.up = false;
  withdraw_vote(node);
  node.peer.clear();
  node.ordered = {};
  node.receives_until = 0;
  for (int slot = 0; slot < options.trainers; ++slot)
    trainers[index * options.trainers + slot].staged.clear();
  node.reports.clear();
  node.saved.clear();
  node.checked.reset();
  node.generation = node.ended = 0;
  for (int slot = 0; slot < options.trainers; ++slot) {
    Trainer& t = trainers[index * options.trainers + slot];
    t.copies.clear();
    t.place = {};
    kill_trainer(index * options.trainers + slot, 0);
    t.known = false;
    t.no_restart_until = 0;
  }
  for (auto& supervisor : supervisors) {
    if (supervisor->up && supervisor->host == index) {
      supervisor->up = false;
      lose_unsynced(supervisor->term);
      notice_supervisor_loss(*supervisor, false);
    } else if (supervisor->standby == index) {
      supervisor->standby = -1;
    }
  }
  break_link(index, true);
  if (index >= options.first() && random.chance(30)) node.named = false;  // the host is gone
  after(back_after, [this, index, command = node.command] {
    if (nodes[index].named && nodes[index].command == command)
      start_agent(index);
    else
      join_host(0);  // another one comes
  });
}

/// Its supervisor has ordered it to end: its command ends, too.
void Cluster::end_agent(int index) {
  if (logging()) log_line(nodes[index].name + ": leaves the run for good");
  ++faults["removed"];
  kill_node(index, random.between(1, 60) * second);
  nodes[index].named = false;
}

/// LOCK-2: the command takes the first name that no living command has.
void Cluster::join_host(Time cut_off) {
  const auto free = std::ranges::find(nodes, false, &Node::named);
  if (free == nodes.end() || ended) return;
  const auto index = static_cast<int>(free - nodes.begin());
  free->named = options.bug != Bug::name_taken_twice;
  const uint64_t command = ++free->command;
  after(random.between(20, 400) * ms, [this, index, command, cut_off] {
    Node& node = nodes[index];
    invariants->name_taken(index, command);
    node.named = true;
    ++faults["joined"];
    if (cut_off > 0) {
      for (const bool blocked : {true, false})
        after(blocked ? 0 : cut_off, [this, index, blocked] {
          block(index, -1, blocked);
          block(-1, index, blocked);
        });
    }
    start_agent(index);
  });
}

void Cluster::hang_node(int index, Time how_long) {
  Node& node = nodes[index];
  if (!node.up) return;
  if (logging()) log_line(node.name + ": its agent hangs");
  node.hung_until = std::max(node.hung_until, now + how_long);
  after(silence + random.between(0, 500) * ms, [this] { check_links(); });
  for (auto& supervisor : supervisors)
    if (supervisor->up && supervisor->host == index) hang_supervisor(how_long);
}

void Cluster::kill_standby() {
  Supervisor* supervisor = leader();
  if (!supervisor || supervisor->standby < 0) return;
  supervisor->standby = -1;
  supervisor->replica.reset();
}

void Cluster::stop_all(Time how_long) {
  if (logging()) log_line("all processes are stopped");
  stopped_at = now;
  stopped_for = how_long;
  due_.delay(how_long);
  for (Time* at : {&now, &quiet_at, &disk.claimed_at}) *at += how_long;
  for (auto& supervisor : supervisors) supervisor->beat += how_long;
  for (Trainer& t : trainers) t.last_message += how_long;
  for (Node& node : nodes) {
    node.alone_since += how_long;
    node.search.stopped(how_long / ms, now / ms);
  }
  const Supervisor* first = leader();
  for (int n = 0; n < options.nodes; ++n)
    if (!first || first->host != n) hang_node(n, random.between(0, 800) * ms);
}

void Cluster::damage_peer_copy(int index) {
  auto& peer = nodes[index].peer;
  if (peer.empty()) return;
  auto chosen = peer.begin();
  std::advance(chosen, random.pick(static_cast<int>(peer.size())));
  if (!chosen->second.empty()) chosen->second.back().content ^= 1;
  invariants->copies_damaged();
}

void Cluster::cut_off_during_step(int index) {
  if (logging()) log_line(nodes[index].name + ": cut off during a step");
  const Time back = random.between(1000, 4000) * ms;
  for (Node& node : nodes) node.slow = 8;
  after(random.between(0, 20) * ms, [this, index] {
    block(index, -1, true);
    block(-1, index, true);
    kill_trainer(random.pick(static_cast<int>(trainers.size())), 0);
  });
  after(back, [this, index] {
    block(index, -1, false);
    block(-1, index, false);
  });
  for (int i = 0; i < 3; ++i)
    after(back + random.between(0, 4000) * ms,
          [this] { kill_trainer(random.pick(static_cast<int>(trainers.size())), 0); });
  after(back + 4 * second, [this] {
    for (Node& node : nodes) node.slow = 1;
  });
}

void Cluster::replay_stale() {
  Supervisor* supervisor = leader();
  if (!supervisor || supervisor->hung_until > now) return;
  std::vector<job::Event> stale;
  for (const job::Event& event : old_events_) {
    const auto* idle = std::get_if<job::TrainerIdle>(&event);
    const auto* ready = std::get_if<job::TrainerReady>(&event);
    const auto* finished = std::get_if<job::TrainerFinished>(&event);
    // An answer to the last fence carries the generation before it.
    if ((idle && idle->generation + 1 < supervisor->job.generation) ||
        (ready && ready->generation < supervisor->job.generation) ||
        (finished && finished->generation < supervisor->job.generation))
      stale.push_back(event);
  }
  if (stale.empty()) return;
  const job::Event event = stale[static_cast<size_t>(random.pick(static_cast<int>(stale.size())))];
  if (logging()) log_line("stale: " + text_of(event));
  handle(*supervisor, event);
}

void Cluster::request(const job::Event& event) {
  if (Supervisor* supervisor = leader(); supervisor && supervisor->hung_until <= now) {
    if (logging()) log_line("asked: " + text_of(event));
    handle(*supervisor, event);
  }
}

}  // namespace simplescale::simulation
