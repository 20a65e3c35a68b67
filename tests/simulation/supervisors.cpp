// The simulated supervisor: what the real actor does around decide(), in a few lines, and the bugs
// that can be planted there.
#include <algorithm>

#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

namespace {

constexpr Time tick_time = 100 * ms;
constexpr Time patience = 200 * ms;  // for the standby to keep a decision
constexpr Time return_time = 1500 * ms;

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
  for (int n = 0; n < o.nodes; ++n) names.push_back("n" + std::to_string(n));
  job::State state = job::make_state(rules, names);
  state.max_steps = o.steps;
  state.join_timeout_ms = 20'000;
  state.restart_timeout_ms = 5'000;
  state.save_timeout_ms = 30'000;
  return state;
}

}  // namespace

/// A supervisor of the next epoch. from: what the standby kept of the one before.
void Cluster::claim(int host, std::optional<job::State> from, uint64_t sequence) {
  // The run's folder knows more, if the last one decided without a standby.
  if (disk.state && (!from || disk.sequence > sequence)) {
    from = *disk.state;
    sequence = disk.sequence;
  }
  auto made = std::make_unique<Boss>();
  Boss& boss = *made;
  boss.epoch = ++disk.newest_epoch;
  boss.host = host;
  const bool replica = from.has_value();
  boss.job = replica ? std::move(*from) : make_job(options);
  if (!replica) boss.job.waiting_since_ms = now / ms;
  const uint64_t written = options.bug == Bug::generation_reused ? 0 : disk.generation;
  boss.job.generation = std::max(boss.job.generation, written);
  if (options.bug == Bug::generation_reused && replica && boss.job.generation > 1)
    --boss.job.generation;
  if (!disk.published.empty()) {
    boss.job.has_checkpoint = true;
    boss.job.checkpoint_step = *disk.published.rbegin();
  }
  boss.sequence = boss.acted = sequence;
  boss.recorded = boss.job.committed_step;
  if (noting())
    note("supervisor " + std::to_string(boss.epoch) + " on " + nodes[host].name +
         (replica ? ", which knows the last state" : ", which knows nothing") + ", generation " +
         std::to_string(boss.job.generation));
  if (replica)
    for (const auto& [name, node] : boss.job.nodes)
      if (node.state != job::NodeState::absent && node.state != job::NodeState::lost)
        boss.expected.insert(node_index.at(name));
  boss.shadow = boss.job;
  // What was decided last may not have been acted on.
  if (boss.job.phase == job::Phase::finished || boss.job.phase == job::Phase::failed)
    ended = job::Shutdown{boss.job.phase == job::Phase::finished ? Code::ok : Code::gave_up,
                          "decided by the supervisor before"};
  bosses.push_back(std::move(made));
  invariants->claimed(boss, replica, sequence);
  Boss* raw = bosses.back().get();
  at(tick_time, [this, raw] { tick(*raw); });
  at(return_time + silence, [this, raw] {
    while (!raw->expected.empty()) {
      const int node = *raw->expected.begin();
      handle(*raw, job::NodeLost{nodes[node].name, "its agent has not come to its new supervisor"});
      raw->expected.erase(node);
    }
  });
}

void Cluster::kill_boss() {
  Boss* boss = leader();
  if (!boss) return;
  if (noting()) note("supervisor " + std::to_string(boss->epoch) + ": killed");
  boss->up = false;
  boss_lost(*boss, false);
}

void Cluster::hang_boss(Time how_long) {
  Boss* boss = leader();
  if (!boss) return;
  if (noting()) note("supervisor " + std::to_string(boss->epoch) + ": hangs");
  boss->hung_until = std::max(boss->hung_until, now + how_long);
  at(silence + random.between(0, 500) * ms, [this, boss] {
    check_links();
    if (boss->hung_until > now && boss->up) boss_lost(*boss, true);
  });
}

/// Its nodes and its standby notice. silent: it may wake up again.
void Cluster::boss_lost(Boss& boss, bool silent) {
  for (int n = 0; n < options.nodes; ++n)
    if (nodes[n].link.up && nodes[n].link.boss == &boss) break_link(n, false);
  const int host = boss.standby;
  boss.standby = -1;
  if (host < 0 || !boss.replica) return;
  at(silent ? random.between(1, 300) * ms : random.between(1, 100) * ms,
     [this, &boss, silent, host, pid = nodes[host].pid] {
       if (!nodes[host].up || nodes[host].pid != pid || hung(nodes[host])) return;
       if (boss.epoch != disk.newest_epoch) return;
       if (silent && boss.hung_until <= now) return;  // its heartbeat goes on
       claim(host, boss.replica, boss.replica_sequence);
     });
}

void Cluster::tick(Boss& boss) {
  if (!boss.up || ended) return;
  if (boss.hung_until > now || hung(nodes[boss.host])) {
    at(std::max(boss.hung_until, nodes[boss.host].hung_until) - now, [this, &boss] { tick(boss); });
    return;
  }
  if (boss.epoch != disk.newest_epoch && options.bug != Bug::two_supervisors) {
    boss.up = false;  // deposed
    boss_lost(boss, false);
    return;
  }
  at(tick_time, [this, &boss] { tick(boss); });
  handle(boss, job::Tick{});
  if (boss.standby < 0 && !boss.asked) {
    for (const auto& [node, link] : boss.links) {
      if (node == boss.host) continue;
      boss.asked = true;
      at(random.between(50, 600) * ms, [this, &boss, node = node] {
        boss.asked = false;
        if (!boss.up || !nodes[node].up || hung(nodes[node]) || !hears(boss, node)) return;
        if (!boss.waiting.empty()) return;  // with the next tick
        boss.standby = node;
        boss.replica = boss.job;
        boss.replica_sequence = boss.sequence;
      });
      break;
    }
  }
}

void Cluster::node_came(Boss& boss, int node, uint64_t link, int32_t pid) {
  boss.expected.erase(node);
  boss.links[node] = link;
  const uint64_t generation = boss.job.generation;
  handle(boss, job::NodeUp{nodes[node].name, pid});
  if (generation == 0) return;
  command(boss, node, "fence", [this, node, generation] {
    nodes[node].generation = std::max(nodes[node].generation, generation);
    for (int slot = 0; slot < options.trainers; ++slot) {
      const int t = node * options.trainers + slot;
      to_trainer(t, random.between(50, 2000), [this, t, generation] { fence(t, generation); });
    }
  });
  if (boss.job.leaving) carry_out(boss, job::Leave{boss.job.generation, "to be left"});
  if (boss.job.stop_requested) carry_out(boss, job::StopAtStep{boss.job.exit_reason});
}

void Cluster::step_done(Boss& boss, const StepReport& report) {
  if (!boss.up) return;
  if (report.generation != boss.job.generation && options.bug != Bug::no_fencing) return;  // S4
  std::set<int>& who = boss.pending[report.step];
  who.insert(report.trainers.begin(), report.trainers.end());
  size_t members = 0;
  for (const auto& cell : boss.job.layout.cells) members += cell.size();
  members *= static_cast<size_t>(options.trainers);
  if (members == 0) return;
  if (options.bug == Bug::early_commit && members > 1) --members;
  while (!boss.pending.empty() && boss.pending.begin()->second.size() >= members) {
    const uint64_t step = boss.pending.begin()->first;
    boss.pending.erase(boss.pending.begin());
    boss.recorded = std::max(boss.recorded, step);
    invariants->reported(boss, boss.job.generation, step);
    handle(boss, job::StepCommitted{boss.job.generation, step});
  }
}

void Cluster::published(uint64_t step) {
  if (disk.shards[step].size() < static_cast<size_t>(options.trainers * options.cell_nodes)) return;
  if (!disk.published.insert(step).second) return;
  if (Boss* boss = leader()) handle(*boss, job::CheckpointSaved{step});
}

/// Decides, and lets the standby have the decision before it is acted on.
void Cluster::handle(Boss& boss, const job::Event& event) {
  if (!boss.up || ended) return;
  if (!boss.waiting.empty()) {
    if (!std::holds_alternative<job::Tick>(event)) boss.later.push_back(event);
    return;
  }
  invariants->before(boss, event);
  job::Decision decision = job::decide(now / ms, boss.job, event);
  if (!options.large() && options.bug == Bug::none) {
    const job::Decision again = job::decide(now / ms, boss.shadow, event);
    invariants->same(decision, again);
  }
  if (options.bug != Bug::none) plant(boss, event, decision);
  if (noting() && !decision.actions.empty() && !std::holds_alternative<job::Tick>(event))
    note("supervisor " + std::to_string(boss.epoch) + " decides on " + text_of(event));
  invariants->decided(boss, event, decision);
  if (!decision.actions.empty()) submit(boss, std::move(decision.actions));
}

void Cluster::submit(Boss& boss, std::vector<job::Action> actions) {
  boss.waiting = std::move(actions);
  const uint64_t sequence = ++boss.sequence;
  const bool light = options.large() && only_records(boss.waiting);
  const bool late = options.bug == Bug::acts_unreplicated;
  const auto kept = light ? nullptr : std::make_shared<job::State>(boss.job);
  if (!light && !late && boss.epoch == disk.newest_epoch) {
    disk.state = kept;
    disk.sequence = sequence;
  }
  if (boss.standby < 0 || light) return act(boss, sequence);
  const int standby = boss.standby;
  at(late ? random.between(10, 100) * ms : random.between(100, 1500),
     [this, &boss, sequence, standby, late, kept] {
       if (!boss.up || boss.standby != standby) return;
       if (!nodes[standby].up || hung(nodes[standby]) || !reachable(boss.host, standby)) return;
       boss.replica = *kept;
       boss.replica_sequence = sequence;
       if (!late && reachable(standby, boss.host))
         at(random.between(100, 1500), [this, &boss, sequence] { act(boss, sequence); });
     });
  if (late) return act(boss, sequence);
  at(patience, [this, &boss, sequence] {
    if (boss.waiting.empty() || boss.sequence != sequence) return;
    boss.standby = -1;  // of no use
    act(boss, sequence);
  });
}

void Cluster::act(Boss& boss, uint64_t sequence) {
  if (!boss.up || boss.sequence != sequence || boss.waiting.empty()) return;
  if (boss.hung_until > now || hung(nodes[boss.host])) {
    at(std::max(boss.hung_until, nodes[boss.host].hung_until) - now + 1,
       [this, &boss, sequence] { act(boss, sequence); });
    return;
  }
  if (!only_records(boss.waiting) && boss.epoch != disk.newest_epoch &&
      options.bug != Bug::two_supervisors) {
    boss.up = false;  // deposed
    boss_lost(boss, false);
    return;
  }
  boss.acted = sequence;
  const std::vector<job::Action> actions = std::move(boss.waiting);
  boss.waiting.clear();
  for (const job::Action& action : actions) {
    if (noting()) note("supervisor " + std::to_string(boss.epoch) + ": " + text_of(action));
    invariants->acts(boss, action);
    carry_out(boss, action);
  }
  while (!boss.later.empty() && boss.waiting.empty()) {
    const job::Event event = std::move(boss.later.front());
    boss.later.pop_front();
    handle(boss, event);
  }
}

/// To one node's agent, who refuses what an older epoch says.
void Cluster::command(Boss& boss, int node, const char* what, std::function<void()> effect) {
  if (!hears(boss, node) && options.bug != Bug::two_supervisors) return;
  auto arrive = [this, node, what, epoch = boss.epoch, effect = std::move(effect)] {
    Node& n = nodes[node];
    if (!n.up) return;
    if (epoch < n.epoch && options.bug != Bug::two_supervisors) return;  // S4
    invariants->obeyed(node, epoch, what);
    n.epoch = std::max(n.epoch, epoch);
    effect();
  };
  if (hears(boss, node))
    send(node, 1, std::move(arrive));
  else
    at(random.between(100, 2000), std::move(arrive));
}

void Cluster::carry_out(Boss& boss, const job::Action& action) {
  auto to_all_trainers = [&](const char* what, std::function<void(int)> effect) {
    for (int n = 0; n < options.nodes; ++n)
      command(boss, n, what, [this, n, effect] {
        for (int slot = 0; slot < options.trainers; ++slot) {
          const int t = n * options.trainers + slot;
          to_trainer(t, random.between(50, 2000), [effect, t] { effect(t); });
        }
      });
  };
  if (const auto* fence = std::get_if<job::Fence>(&action)) {
    disk.generation = std::max(disk.generation, fence->generation);
    for (int n = 0; n < options.nodes; ++n)
      command(boss, n, "fence", [this, n, number = fence->generation] {
        nodes[n].generation = std::max(nodes[n].generation, number);
        for (int slot = 0; slot < options.trainers; ++slot) {
          const int t = n * options.trainers + slot;
          to_trainer(t, random.between(50, 2000), [this, t, number] { this->fence(t, number); });
        }
      });
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
    disk.generation = std::max(disk.generation, order->generation);
    auto g = std::make_shared<Generation>();
    g->number = order->generation;
    g->epoch = boss.epoch;
    g->source = order->source;
    g->begun_at = g->step = order->step;
    g->moves = order->moves;
    auto add = [&](const std::string& name, uint32_t group, uint32_t shard, bool helper) {
      const int index = trainer_index.at(name);
      if (!g->index.emplace(index, static_cast<int>(g->members.size())).second) return;
      g->members.push_back({index, boss.job.trainers.at(name).pid, group, shard, helper});
    };
    for (const job::Place& place : job::places(boss.job.rules, boss.job.layout)) {
      add(place.trainer, place.group, place.shard, false);
      g->groups = std::max(g->groups, place.group + 1);
    }
    g->trainers = g->members.size();
    for (const job::Move& move : order->moves) add(move.source, 0, move.shard, true);
    boss.pending.clear();
    boss.recorded = order->step;
    generations[g->number] = g;
    while (generations.size() > 8) generations.erase(generations.begin());
    for (int n = 0; n < options.nodes; ++n)
      command(boss, n, "join", [this, n, g] {
        nodes[n].generation = g->number;
        join(n, g);
      });
    at(2 * collective_timeout, [this, g] {
      if (!g->settled && !g->over) break_off(*g, job::Fault::failed, "");
    });
  } else if (const auto* kill = std::get_if<job::KillTrainer>(&action)) {
    const int t = trainer_index.at(kill->trainer);
    command(boss, node_of(t), "kill", [this, t] { kill_trainer(t, 0); });
  } else if (const auto* check = std::get_if<job::CheckNode>(&action)) {
    const int n = node_index.at(check->node);
    command(boss, n, "check", [this, n] {
      nodes[n].checked.reset();
      at(random.between(500, 2500) * ms, [this, n, pid = nodes[n].pid] {
        Node& node = nodes[n];
        if (!node.up || node.pid != pid) return;
        node.checked =
            job::NodeChecked{node.name, !node.sick, node.sick ? "core 1 adds wrongly" : ""};
        to_boss(n, *node.checked);
      });
    });
  } else if (const auto* end = std::get_if<job::Shutdown>(&action)) {
    ended = *end;
  }
}

/// What a bug in the decisions would do, done to them.
void Cluster::plant(Boss& boss, const job::Event& event, job::Decision& decision) {
  job::State& s = boss.job;
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
          s.trainers.at(job::trainer_name(lost->node, slot)).state = job::TrainerState::idle;
      }
      break;
    case Bug::two_shards:
      if (s.layout.cells.size() > 1 && !s.layout.cells[1].empty())
        s.layout.cells[1][0] = s.layout.cells[0][0];
      break;
    case Bug::waits_for_the_dead:
      if (s.phase == job::Phase::recovering) s.waiting_since_ms = now / ms;
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
      s.doubts.clear();
      break;
    case Bug::undone_copies:
      s.undoings.clear();
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
