// Functions of the state: names of its values, the initial state, predicates.
#include <algorithm>
#include <charconv>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

const char* to_string(NodeState state) {
  switch (state) {
    case NodeState::absent:
      return "absent";
    case NodeState::up:
      return "up";
    case NodeState::suspect:
      return "suspect";
    case NodeState::drained:
      return "drained";
    case NodeState::lost:
      return "lost";
  }
  return "?";
}

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::starting:
      return "starting";
    case Phase::training:
      return "training";
    case Phase::recovering:
      return "recovering";
    case Phase::stopping:
      return "stopping";
    case Phase::finished:
      return "finished";
    case Phase::stopped:
      return "stopped";
    case Phase::failed:
      return "failed";
  }
  return "?";
}

const char* to_string(Source source) {
  switch (source) {
    case Source::initialize:
      return "initialize";
    case Source::checkpoint:
      return "checkpoint";
    case Source::memory:
      return "memory";
  }
  return "?";
}

State make_state(const LayoutRules& rules, const std::vector<std::string>& nodes) {
  State state;
  state.rules = rules;
  state.node_order = nodes;
  for (const std::string& node : nodes) {
    state.nodes[node];
    for (int slot = 0; slot < rules.trainers_per_node; ++slot)
      state.trainers[trainer_name(node, slot)];
  }
  return state;
}

std::string shortest(double value) {
  char text[32];
  const auto format = value > 0 && value < 1e-5 ? std::chars_format::scientific  // 2e-07
                                                : std::chars_format::fixed;
  const auto end = std::to_chars(text, text + sizeof text, value, format);
  return {text, end.ptr};
}

std::string rate_refused(const State& s, double rate) {
  const double least = std::max(0.0, s.min_learning_rate);
  if (!(rate >= least && rate <= 1))
    return "train.learning_rate must be at least " + shortest(least) +
           (least > 0 ? " (train.min_learning_rate)" : "") + " and at most 1";
  if (s.stop_requested) return "the run is being stopped";
  if (s.rates.changes.size() >= rate_changes_max)
    return "train.learning_rate was changed " + std::to_string(rate_changes_max) +
           " times, which is the most";
  return "";
}

std::vector<std::pair<std::string, std::string>> settings(const State& s) {
  const double rate = s.rates.requested >= 0    ? s.rates.requested
                      : s.rates.changes.empty() ? s.learning_rate
                                                : s.rates.changes.back().peak;
  return {{"cluster.join_timeout_ms", std::to_string(s.join_timeout_ms)},
          {"cluster.min_groups", std::to_string(s.rules.min_domains * s.rules.groups_per_domain())},
          {"supervision.give_up_after_cycles", std::to_string(s.give_up_after_cycles)},
          {"supervision.max_restarts", std::to_string(s.max_restarts)},
          {"supervision.within_s", std::to_string(s.within_ms / 1000)},
          {"train.learning_rate", shortest(rate)}};
}

bool diagnosing(const State& state) {
  return !state.to_examine.empty() || !state.examined.empty();
}

bool is_suspect(const State& state, uint64_t step, uint64_t generation) {
  return std::ranges::any_of(state.suspect_steps, [&](const SuspectStep& d) {
    return d.step == step && d.generation >= generation;
  });
}

bool undoes(const Rollback& u, uint64_t generation) {
  return generation >= u.since && generation < u.generation;
}

bool reverted(const Rollback& u, uint64_t branch) {
  return u.tentative && undoes(u, branch);
}

bool undone(const State& state, uint64_t step, uint64_t generation, uint64_t branch) {
  return std::ranges::any_of(state.rollbacks, [&](const Rollback& u) {
    return step >= u.step && undoes(u, generation) != reverted(u, branch);
  });
}

bool set_aside(const State& state, uint64_t step, uint64_t generation) {
  return std::ranges::any_of(state.rollbacks, [&](const Rollback& u) {
    return step >= u.step && generation < (u.since > 0 ? u.since : u.generation);
  });
}

bool trusted(const State& state, uint64_t step, uint64_t generation, uint64_t branch) {
  return !undone(state, step, generation, branch) && !is_suspect(state, step, generation);
}

void settle_rollbacks(State& state) {
  std::vector<Rollback> kept;
  for (Rollback& rollback : state.rollbacks) {
    rollback.tentative = false;
    std::erase_if(kept, [&](const Rollback& older) {  // the newer rollback covers it
      return older.generation <= rollback.generation && older.step >= rollback.step &&
             older.since >= rollback.since;
    });
    kept.push_back(rollback);
  }
  state.rollbacks = std::move(kept);
}

uint64_t newest_joined(const State& state) {
  // Trainers of a lost node are missing in the list, so also look at the newest rollback.
  uint64_t newest = state.rollbacks.empty() ? 0 : state.rollbacks.back().generation;
  for (const auto& [name, trainer] : state.trainers) newest = std::max(newest, trainer.generation);
  return newest;
}

uint64_t claimed_generation_floor(uint64_t term, uint64_t before, uint64_t known) {
  return term == 1 ? known : generation_floor_of(term, before + unknown_generations, known);
}

uint64_t generation_floor_of(uint64_t term, uint64_t claimed, uint64_t known) {
  return std::max(claimed, known + (term - 1) * unknown_generations);
}

State resumed(State predecessor, uint64_t generation_floor, int64_t now_ms) {
  predecessor.generation_floor = generation_floor;
  predecessor.waiting_since_ms = now_ms;
  return predecessor;
}

bool waits_for_folder(const std::vector<Action>& actions, bool stored) {
  return std::ranges::any_of(actions, [stored](const Action& action) {
    const bool uses_number =
        std::holds_alternative<Fence>(action) || std::holds_alternative<Join>(action);
    return std::holds_alternative<Shutdown>(action) || (uses_number && !stored);
  });
}

uint64_t committed_of(const State& state, uint64_t step, uint64_t generation) {
  for (const Rollback& u : state.rollbacks) {
    if (generation >= u.generation) continue;
    // JOB-2: no step is recorded of the generation that began with this rollback. The newest
    // rollback began with joined_step. An older one began with u.step or the step before; which one
    // is unknown.
    const bool newest = &u == &state.rollbacks.back();
    if (newest || generation >= u.since)
      step = std::min(step, newest ? state.joined_step : u.step - std::min<uint64_t>(u.step, 1));
  }
  const bool gone = std::ranges::any_of(state.suspect_steps, [&](const SuspectStep& d) {
    return d.step <= step && d.generation >= generation;
  });
  return gone ? std::min(step, state.committed_step) : step;
}

std::optional<uint64_t> recorded_of(const State& state, const std::optional<StateVersion>& last,
                                    std::optional<uint64_t> said) {
  if (last) return committed_of(state, last->step, last->generation);
  if (newest_joined(state) == 0) return std::nullopt;
  // The files have no whole step. Trainers report again the steps that they made in this
  // generation.
  return std::min(said.value_or(state.joined_step), state.joined_step);
}

}  // namespace simplescale::job
