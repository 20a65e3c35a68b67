// What the parts of decide() ask of a state: which trainers and nodes are in which condition. Pure
// functions, any thread.
#pragma once

#include <algorithm>
#include <string>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

inline std::string number(uint64_t n) {
  return std::to_string(n);
}

inline std::string milliseconds(int64_t n) {
  return n > 0 && n % 1000 == 0 ? std::to_string(n / 1000) + " s" : std::to_string(n) + " ms";
}

/// True if the agent of the node reports.
inline bool is_here(const Node& node) {
  return node.state != NodeState::absent && node.state != NodeState::lost;
}

inline bool in_generation(const Trainer& t) {
  return t.state == TrainerState::training || t.state == TrainerState::finished;
}

/// True if the trainer cannot be in a generation any more.
inline bool left_its_generation(const Trainer& t) {
  return t.state == TrainerState::down || t.state == TrainerState::idle;
}

/// True if no step has been committed since the last failure, or since the start.
inline bool awaiting_first_step(const State& s) {
  return s.phase == Phase::starting || s.phase == Phase::recovering;
}

/// Calls f(Trainer&) for each trainer of a node. They are neighbours in the map, because "." sorts
/// before every digit.
template <class F>
void for_each_trainer(State& s, const std::string& node, F&& f) {
  auto next = s.trainers.lower_bound(node + ".");
  for (int slot = 0; slot < s.rules.trainers_per_node; ++slot, ++next) f(next->second);
}

/// True if all trainers of a node satisfy the predicate.
template <class F>
bool all_of_node(const State& s, const std::string& node, F&& is_so) {
  auto next = s.trainers.lower_bound(node + ".");
  for (int slot = 0; slot < s.rules.trainers_per_node; ++slot, ++next)
    if (!is_so(next->second)) return false;
  return true;
}

inline bool node_is_idle(const State& s, const std::string& node) {
  return all_of_node(s, node, [](const Trainer& t) { return t.state == TrainerState::idle; });
}

/// True if all trainers of the layout satisfy the predicate; false for an empty layout.
template <class F>
bool all_members(const State& s, F&& are_so) {
  for (const auto& domain : s.layout.domains)
    for (const std::string& node : domain)
      if (!all_of_node(s, node, are_so)) return false;
  return !s.layout.domains.empty();
}

inline bool all_members_in(const State& s, TrainerState state) {
  return all_members(s, [&](const Trainer& t) { return t.state == state; });
}

inline bool all_in_generation(const State& s) {
  return all_members(s, in_generation);
}

inline bool any_in_generation(const State& s) {
  return std::ranges::any_of(s.trainers, [](const auto& t) { return in_generation(t.second); });
}

/// The last step that the trainers of the layout reported. The layout must not be empty.
inline uint64_t last_step(const State& s) {
  return s.trainers.at(trainer_name(s.layout.domains.front().front(), 0)).step;
}

/// The step of the newest valid checkpoint on disk; 0: none.
inline uint64_t saved_step(const State& s) {
  return s.has_checkpoint ? s.checkpoint_step : 0;
}

/// True if the current generation could not save this step.
inline bool save_failed(const State& s, uint64_t step) {
  return !s.failed_checkpoint_reason.empty() && s.failed_checkpoint == step;
}

/// True if all trainers have finished and their last save failed. JOB-1: they stay, with the state
/// in their memory, until the disk takes that step or a user ends the run.
inline bool last_save_failed(const State& s) {
  return save_failed(s, last_step(s)) && !(s.has_checkpoint && s.checkpoint_step == last_step(s));
}

}  // namespace simplescale::job
