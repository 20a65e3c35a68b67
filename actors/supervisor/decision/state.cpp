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
    const bool ends_nodes =
        std::holds_alternative<Shutdown>(action) || std::holds_alternative<EndNode>(action);
    return ends_nodes || (uses_number && !stored);
  });
}

}  // namespace simplescale::job
