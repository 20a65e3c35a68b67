// Bugs that are planted in the decisions (options.hpp).
#include "tests/simulation/cluster.hpp"

namespace simplescale::simulation {

/// Changes the state or the decision as a bug in decide() would.
void Cluster::plant_bug(Supervisor& supervisor, const job::Event& event, job::Decision& decision) {
  job::State& s = supervisor.job;
  switch (options.bug) {
    case Bug::budget_by_uptime:
      for (auto& [name, node] : s.nodes)
        std::erase_if(node.failures_ms, [&](int64_t t) { return now / ms - t > 3000; });
      break;
    case Bug::shares_flap:
      s.balance_after_ms = 0;
      break;
    case Bug::effects_counted:
      for (auto& [name, node] : s.nodes) node.failed.clear();
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
      if (s.layout.domains.size() > 1 && !s.layout.domains[1].empty())
        s.layout.domains[1][0] = s.layout.domains[0][0];
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
    case Bug::stop_forgotten:
      if (std::holds_alternative<job::TrainerFinished>(event) && !s.giving_up &&
          s.exit_reason.ends_with("earlier supervisor"))
        s.stop_requested = false;
      break;
    case Bug::ceiling_dropped:
      s.suspect_steps.clear();
      break;
    case Bug::undone_copies:
      s.rollbacks.clear();
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
    case Bug::removed_return:
      s.removed.clear();
      break;
    case Bug::range_not_sent:
      for (job::Action& action : decision.actions)
        if (auto* join = std::get_if<job::Join>(&action);
            join && !join->by_agents && !join->moves.empty() &&
            join->moves.front().shards != s.rules.cut_of(s.layout))
          join->moves.pop_back();
      break;
    case Bug::cuts_mixed: {
      const uint32_t cut = s.rules.cut_of(s.layout);
      for (auto& [name, trainer] : s.trainers)
        for (StateCopy& copy : trainer.held) copy.shards = cut;
      for (auto& [name, node] : s.nodes)
        for (StateCopy& copy : node.peer) copy.shards = cut;
      break;
    }
    case Bug::shape_by_rate:
      s.rules.rate_first = !options.rate_first;
      break;
    case Bug::away_is_ended:
      for (auto& [name, node] : s.nodes) node.ended = node.state == job::NodeState::lost;
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
