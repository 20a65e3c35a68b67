// The orders of the simulated supervisor: what its decisions make nodes and trainers do, and what the
// records say of it. As actors/supervisor/carry_out.cpp.
#include <algorithm>
#include <utility>

#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

/// Sends an order to the agent of a node. The agent refuses orders of older terms.
void Cluster::command(Supervisor& supervisor, int node, const char* what,
                      std::function<void()> effect) {
  if (!connected(supervisor, node) && options.bug != Bug::two_supervisors) return;
  if (behind(supervisor, node) && options.bug != Bug::orders_overtake) return;
  auto arrive = [this, node, what, term = supervisor.term, effect = std::move(effect)] {
    Node& n = nodes[node];
    if (!n.up) return;
    if (term < n.term && options.bug != Bug::two_supervisors) return;  // LEAD-1
    invariants->command_obeyed(node, term, what);
    n.term = std::max(n.term, term);
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
  uint64_t count = order.step;
  if (order.regained && by.recorded) {
    const auto of = [&](const StateVersion& last) {
      return options.bug == Bug::undone_lines_regained
                 ? last.step
                 : job::committed_of(by.job, last.step, last.generation);
    };
    const uint64_t lines = of({*by.recorded, by.recorded_generation});
    count = std::min(count, by.undone ? std::max(lines, of(*by.undone)) : lines);
    if (count > *by.recorded) set_mark(by, *(by.recorded = count));
  }
  if (!by.recorded || *by.recorded > count) {
    if (!by.undone && by.recorded) by.undone = StateVersion{*by.recorded, by.recorded_generation};
    by.recorded = count;
    if (!by.first_after) by.first_after = count;
    set_mark(by, count);
  }
  uint64_t reported = by.recorded.value_or(0);
  while (by.step_reports.contains(reported + 1)) ++reported;
  record_up_to(by, std::min(order.step, reported));
  by.ledger_generation = order.generation;
  record_up_to(by, order.step);
  by.step_reports.clear();
}

void Cluster::use_generation(Supervisor& by, uint64_t generation) {
  if (std::max(disk.failing_until, folder_works_at(by.host)) <= now) {
    disk.generation = std::max(disk.generation, generation);
    disk.number_damaged = false;
  }
  by.journal.generation = generation;
}

void Cluster::begin_generation(Supervisor& supervisor, const job::Join& order) {
  use_generation(supervisor, order.generation);
  auto g = std::make_shared<Generation>();
  g->number = order.generation;
  g->term = supervisor.term;
  g->source = order.source;
  g->begun_at = g->step = order.step;
  g->stop = order.save_only;
  g->by_agents = order.by_agents;
  g->instructions = supervisor.job.instructions;
  g->weights = supervisor.job.weights;
  if (std::max(disk.failing_until, folder_works_at(supervisor.host)) <= now &&
      g->instructions != InstructionSet::automatic)
    disk.instructions = g->instructions;
  g->moves = order.moves;
  auto add = [&](const std::string& name, uint32_t group, uint32_t shard, bool helper) {
    const int index = trainer_index.at(name);
    if (!g->index.emplace(index, static_cast<int>(g->members.size())).second) return;
    g->members.push_back({index, supervisor.job.trainers.at(name).pid, group, shard, {}, helper});
    g->members.back().agent = supervisor.job.nodes.at(nodes[node_of(index)].name).pid;
  };
  g->over = g->by_agents;  // no trainer joins it
  if (!g->by_agents) {
    g->cut = supervisor.job.rules.cut_of(supervisor.job.layout);
    for (const job::Place& place : job::places(supervisor.job.rules, supervisor.job.layout)) {
      add(place.trainer, place.group, place.shard, false);
      g->groups = std::max(g->groups, place.group + 1);
    }
    g->trainers = g->members.size();
    for (const job::Move& move : order.moves)
      if (const auto node = node_index.find(move.source); node != node_index.end())
        g->agents[node->second].pid = supervisor.job.nodes.at(move.source).pid;
      else
        add(move.source, 0, move.shard, true);
  }
  record_committed(supervisor, order);
  supervisor.publisher.jobs.push_back(
      {.saved = {order.step, order.generation}, .error = "", .kind = PublisherJob::Kind::undo});
  run_publisher(supervisor);
  generations[g->number] = g;
  supervisor.rounds.reset();
  supervisor.anomalies.reset();
  while (generations.size() > 8) generations.erase(generations.begin());
  for (int n = 0; n < options.nodes; ++n)
    command(supervisor, n, "join", [this, n, g] {
      nodes[n].generation = nodes[n].ended = g->number;
      if (g->instructions != InstructionSet::automatic) nodes[n].run_instructions = g->instructions;
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
    if (std::exchange(stop_due, false))
      after(random.between(1, 3000), [this] { stop_all(random.between(60, 3600) * second); });
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
  } else if (const auto* admitted = std::get_if<job::AdmitNode>(&action)) {
    tell_decided(supervisor, node_index.at(admitted->node));
  } else if (const auto* end = std::get_if<job::EndNode>(&action)) {
    const int n = node_index.at(end->node);
    if (behind(supervisor, n)) return;
    command(supervisor, n, "end", [this, n] { end_agent(n); });
    supervisor.links.erase(n);
  } else if (const auto* prune = std::get_if<job::PruneCheckpoints>(&action)) {
    supervisor.publisher.jobs.push_back(
        {.saved = {prune->step, 0}, .error = "", .kind = PublisherJob::Kind::prune});
    run_publisher(supervisor);
  } else if (const auto* end = std::get_if<job::Shutdown>(&action)) {
    ended = *end;
  }
}

}  // namespace simplescale::simulation
