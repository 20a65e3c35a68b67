// Generations in the simulated cluster: joining, steps with their votes, leaving.
#include <algorithm>

#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

/// The agent of the node passes an order to join on to its trainers.
void Cluster::join_members(int node, const std::shared_ptr<Generation>& g) {
  if (const auto agent = g->agents.find(node); agent != g->agents.end())
    agent->second.ordered = agent->second.pid == nodes[node].pid;
  for (Generation::Member& m : g->members) {
    if (node_of(m.trainer) != node) continue;
    if (options.bug != Bug::weights_lost || node == 0) m.weights = g->weights;
    Trainer& t = trainers[m.trainer];
    t.told_generation = m.helper ? 0 : g->number;
    t.idle.reset();
    if (!t.up || t.pid != m.pid) continue;  // the supervisor will learn it
    to_trainer(m.trainer, random.between(50, 3000), [this, g, index = m.trainer] {
      Trainer& t = trainers[index];
      if (g->number < t.fenced || g->number <= t.generation) return;  // GEN-1
      t.generation = g->number;
      t.writing = false;
      if (g->over)
        leave(index, g->number, job::Fault::failed, "", g->begun_at);
      else if (++g->joined == g->members.size())
        after(random.between(5, 100) * ms, [this, g] { transfer(g); });
    });
  }
}

/// True if all members are up and in the generation. hung: some of them cannot answer now, but may
/// later.
bool Cluster::all_members_up(const Generation& g, bool& hung) const {
  hung = false;
  std::vector<int> hosts;
  for (const Generation::Member& m : g.members) {
    const Trainer& t = trainers[m.trainer];
    if (!t.up || (t.generation != g.number && !(m.helper && g.received))) return false;
    hung = hung || t.hung_until > now;
    if (hosts.empty() || hosts.back() != node_of(m.trainer)) hosts.push_back(node_of(m.trainer));
  }
  for (const auto& [node, agent] : g.agents) {
    if (g.received) break;
    if (!nodes[node].up || nodes[node].pid != agent.pid) return false;
    hung = hung || !agent.ordered || nodes[node].hung_until > now;
    hosts.push_back(node);
  }
  if (blocks_ > 0)
    for (int a : hosts)
      for (int b : hosts) hung = hung || !reachable(a, b);
  return true;
}

/// True if all members answer. Otherwise aborts the generation, or calls `again` later.
bool Cluster::all_answer(const std::shared_ptr<Generation>& g,
                         void (Cluster::*again)(std::shared_ptr<Generation>)) {
  if (g->over) return false;
  bool hung;
  if (!all_members_up(*g, hung)) {
    abort_generation(*g, job::Fault::failed, "");
    return false;
  }
  if (!hung || (g->restored && options.bug == Bug::applied_before_vote)) {
    g->stalled_since = -1;
    return true;
  }
  if (g->stalled_since < 0) g->stalled_since = now;
  if (now - g->stalled_since > collective_timeout)
    abort_generation(*g, job::Fault::failed, "");
  else
    after(50 * ms, [this, g, again] { (this->*again)(g); });
  return false;
}

void Cluster::begin_step(std::shared_ptr<Generation> g) {
  if (g->over) return;
  if (g->stop || g->stops_now || g->step >= options.steps) return finish(g);
  after(static_cast<Time>(static_cast<double>(step_time) * slowness(*g)) * random.between(90, 110) /
            100,
        [this, g] { vote(g); });
}

/// How many times as long a step takes as with even shares on fast nodes.
double Cluster::slowness(const Generation& g) const {
  std::vector<int> slow(g.groups, 1);
  for (const Generation::Member& m : g.members)
    if (!m.helper) slow[m.group] = std::max(slow[m.group], nodes[node_of(m.trainer)].slow);
  if (g.weights.empty()) return *std::ranges::max_element(slow);
  const uint64_t leaves = leaves_of(options);
  const Shares shares = Shares::by_weight(leaves, g.weights, g.groups, g.cut);
  uint64_t most = 0;
  for (uint32_t group = 0; group < g.groups; ++group)
    most = std::max(most, static_cast<uint64_t>(slow[group]) * shares.count(group, 0));
  return static_cast<double>(most) /
         static_cast<double>(Shares::even(leaves, g.groups, g.cut).count(0, 0));
}

/// All ranks agree on the step and on whether to leave or stop after it; then each applies it.
void Cluster::vote(std::shared_ptr<Generation> g) {
  if (!all_answer(g, &Cluster::vote)) return;
  if (compare_replicas(*g)) return abort_generation(*g, job::Fault::mismatch, "");
  g->applied = 0;
  g->leaves_now = g->leave;
  g->stops_now = g->stop;
  for (const Generation::Member& m : g->members) {
    if (m.helper) continue;
    Trainer& t = trainers[m.trainer];
    t.writing = true;
    if (t.copies.size() > 1) t.copies.erase(t.copies.begin());
  }
  if (std::exchange(cut_off_due, false))
    cut_off_during_step(node_of(
        g->members[static_cast<size_t>(random.pick(static_cast<int>(g->trainers)))].trainer));
  // In a large cluster all trainers of a node apply a step in one event.
  const size_t batch = options.large() ? static_cast<size_t>(options.trainers) : 1;
  for (size_t first = 0; first < g->trainers; first += batch)
    after(random.between(100, 20'000),
          [this, g, first, batch] { apply(g, first, std::min(batch, g->trainers - first)); });
}

/// Replicas compare their states of the last step. Returns true if they differ. Ends the history if
/// a state is wrong in all replicas, since no comparison can detect it.
bool Cluster::compare_replicas(Generation& g) {
  if (wrong_made == 0) return false;
  std::map<Shard, uint64_t> known;
  bool bad = false, same = true;
  std::set<uint64_t> wrong;
  for (const Generation::Member& m : g.members) {
    if (m.helper || trainers[m.trainer].copies.empty()) continue;
    const StoredCopy& copy = trainers[m.trainer].copies.back();
    bad = bad || !copy.good();
    if (!copy.good()) wrong.insert(copy.content);
    same = known.try_emplace(copy.of, copy.content).first->second == copy.content && same;
  }
  if (bad && same) {
    ended = job::Shutdown{Code::mismatch, "undetectable"};
    return false;
  }
  if (!same) invariants->step_distrusted(wrong);
  return !same;
}

/// A rank applies the next step. Returns true if it was the last rank to do so.
bool Cluster::write_step(Trainer& t, Generation& g) {
  const uint64_t content = content_of(t.place, g.step + 1, g.number);
  t.copies.push_back({t.place, g.step + 1, content, content, g.number, g.number});
  if (mismatch_due && g.groups > 1) {
    mismatch_due = false;
    ++wrong_made;
    ++faults["mismatch"];
    StoredCopy& copy = t.copies.back();
    copy.content = copy.checksum = copy.content ^ (wrong_made << 8);
    if (logging()) log_line(t.name + ": computes step " + std::to_string(copy.step) + " wrongly");
  }
  t.writing = false;
  if (t.copies.size() > 2) t.copies.erase(t.copies.begin());
  invariants->step_written(g, g.step + 1);
  const size_t all = g.trainers - (options.bug == Bug::applied_before_vote && g.trainers > 1);
  if (++g.applied != all) return false;
  ++g.step;
  invariants->step_committed(g, g.step);
  return true;
}

void Cluster::apply(std::shared_ptr<Generation> g, size_t first, size_t count) {
  StepReport report{g->number, g->step + 1, {}};
  int node = -1;
  bool all = false;
  for (size_t i = first; i < first + count; ++i) {
    const Generation::Member& m = g->members[i];
    Trainer& t = trainers[m.trainer];
    if (!t.up || t.generation != g->number || !t.writing) continue;
    if (t.hung_until > now) {
      after(t.hung_until - now, [this, g, i] { apply(g, i, 1); });
      continue;
    }
    all = write_step(t, *g);
    node = node_of(m.trainer);
    report.trainers.push_back(m.trainer);
    store_copies(*g, m, report.step);
  }
  if (logging() && node >= 0)
    log_line(trainers[report.trainers[0]].name + ": applied step " + std::to_string(report.step) +
             " of generation " + std::to_string(g->number));
  if (node >= 0) report_step(node, std::move(report));
  if (all) step_applied(g);
}

/// All ranks have applied the step.
void Cluster::step_applied(const std::shared_ptr<Generation>& g) {
  if (g->over) return;
  if (!g->leaves_now || g->step >= options.steps) return begin_step(g);
  g->over = true;
  for (const Generation::Member& m : g->members)
    if (!m.helper)
      to_trainer(m.trainer, random.between(100, 20'000), [this, g, index = m.trainer] {
        leave(index, g->number, job::Fault::none, "", g->step);
      });
}

/// Stages a step's state for peer nodes, and sends it to the disk, when that is due.
void Cluster::store_copies(Generation& g, const Generation::Member& m, uint64_t step) {
  const StoredCopy copy = trainers[m.trainer].copies.back();
  const int home = node_of(m.trainer);
  if (step % peer_every == 0) stage_copy(m.trainer);
  const bool last = step >= options.steps || g.stops_now;
  if (!last && step % disk_every == 0 && m.shard % g.groups == m.group) save_shard(copy, home);
}

void Cluster::finish(const std::shared_ptr<Generation>& g) {
  if (compare_replicas(*g)) return abort_generation(*g, job::Fault::mismatch, "");
  g->over = true;
  g->stops_now = true;
  for (const Generation::Member& m : g->members) {
    if (m.helper) continue;
    to_trainer(m.trainer, random.between(100, 20'000), [this, g, m] {
      Trainer& t = trainers[m.trainer];
      if (t.generation != g->number) return;
      if (m.shard % g->groups == m.group && !t.copies.empty())
        save_shard(t.copies.back(), node_of(m.trainer));
      to_supervisor(node_of(m.trainer), job::TrainerFinished{t.name, g->number, g->step});
    });
  }
}

/// A member died, does not answer, or reports a fault: all members leave by themselves.
void Cluster::abort_generation(Generation& g, job::Fault fault, const std::string& suspect) {
  if (g.over) return;
  g.over = true;
  for (const Generation::Member& m : g.members)
    if (trainers[m.trainer].generation == g.number)
      to_trainer(m.trainer, random.between(1, 50) * ms,
                 [this, fault, suspect, index = m.trainer, number = g.number,
                  step = fault == job::Fault::bad_copy ? g.begun_at : g.step] {
                   leave(index, number, fault, suspect, step);
                 });
}

void Cluster::leave(int index, uint64_t generation, job::Fault fault, const std::string& suspect,
                    uint64_t step) {
  Trainer& t = trainers[index];
  if (t.generation != generation) return;
  if (t.writing && random.chance(50))
    if (auto g = generations.find(generation); g != generations.end()) write_step(t, *g->second);
  t.writing = false;
  t.generation = 0;
  report_idle(index, {.generation = generation,
                      .fault = fault,
                      .step = step,
                      .suspect = suspect,
                      .reason = {fault == job::Fault::none ? "asked to leave" : "a fault"}});
}

void Cluster::fence(int index, uint64_t generation) {
  Trainer& t = trainers[index];
  if (generation <= t.fenced) return;
  t.fenced = generation;
  if (t.generation != 0 && t.generation < generation) {
    auto g = generations.find(t.generation);
    const bool writes = t.writing && random.chance(50);
    t.writing = false;
    t.generation = 0;
    if (g != generations.end()) {
      if (writes) write_step(t, *g->second);
      abort_generation(*g->second, job::Fault::failed, "");
    }
  }
  if (t.generation == 0) report_idle(index, {.generation = generation - 1, .reason = {"fenced"}});
}

}  // namespace simplescale::simulation
