// Jobs for the tests of the decisions, and what trainers and nodes report.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/decision/rollback.hpp"

namespace simplescale::job::test {

/// Two trainers on each node; groups of domain_nodes nodes.
inline State job_of(int domains, int spares = 0, int domain_nodes = 1) {
  LayoutRules rules{.trainers_per_node = 2,
                    .shards = 2 * domain_nodes,
                    .domain_nodes = domain_nodes,
                    .domains = domains,
                    .min_domains = 1};
  std::vector<std::string> nodes;
  for (int i = 0; i < domains * domain_nodes + spares; ++i) nodes.push_back(node_name(i));
  State s = make_state(rules, nodes);
  s.max_steps = 10;
  return s;
}

template <class A>
std::vector<A> all(const Decision& d) {
  std::vector<A> found;
  for (const Action& action : d.actions)
    if (const A* a = std::get_if<A>(&action)) found.push_back(*a);
  return found;
}

template <class A>
A only(const Decision& d) {
  const auto found = all<A>(d);
  REQUIRE(found.size() == 1);
  return found[0];
}

using Steps = std::vector<uint64_t>;

/// Copies of these steps, made by `generation`.
inline std::vector<StateVersion> made(uint64_t generation, const Steps& steps) {
  std::vector<StateVersion> copies;
  for (const uint64_t step : steps) copies.push_back({step, generation});
  return copies;
}

/// The same, as copies of a shard; by default of a group of one node.
inline std::vector<StateCopy> of(uint32_t shard, const std::vector<StateVersion>& versions,
                                 uint32_t shards = 2) {
  std::vector<StateCopy> copies;
  for (const StateVersion& v : versions) copies.push_back({shard, v.step, v.generation, shards});
  return copies;
}

inline Decision up(State& s, const std::string& node, const std::vector<StateVersion>& held = {},
                   int64_t now = 0, int32_t pid = 1) {
  decide(now, s, NodeUp{node, pid});
  Decision last;
  for (int slot = 0; slot < 2; ++slot)
    last = decide(now, s,
                  TrainerUp{trainer_name(node, slot), 1, {1}, of(0, held, s.rules.cut_of({})), 0});
  return last;
}

inline Decision all_up(State& s) {
  Decision joined;
  for (const auto& node : s.node_order)
    if (Decision d = up(s, node); !all<Join>(d).empty()) joined = d;
  return joined;
}

/// The agents of all nodes answer the last fence.
inline Decision all_answer(State& s, int64_t now = 0) {
  Decision joined;
  for (const auto& [name, node] : State(s).nodes)
    if (Decision d = decide(now, s, PeerCopies{name, node.peer, s.generation});
        !all<Join>(d).empty())
      joined = d;
  return joined;
}

/// All agents answer; all draining trainers report idle; each holds its own shard at `held`.
inline Decision all_idle(State& s, const std::vector<StateVersion>& held, int64_t now = 0) {
  all_answer(s, now);
  Decision last;
  std::map<std::string, uint32_t> shard;
  for (const Place& p : places(s.rules, s.layout)) shard[p.trainer] = p.shard;
  for (const auto& [name, trainer] : State(s).trainers)
    if (trainer.state == TrainerState::draining)
      last = decide(
          now, s,
          TrainerIdle{name, s.generation - 1, of(shard[name], held, s.rules.cut_of(s.layout))});
  return last;
}

/// The same, with copies made by the generation that they leave.
inline Decision all_idle(State& s, const Steps& steps, int64_t now = 0) {
  return all_idle(s, made(newest_joined(s), steps), now);
}

/// A job that trains and has committed `step`.
inline State training(int domains, int spares = 0, int domain_nodes = 1, uint64_t step = 3) {
  State s = job_of(domains, spares, domain_nodes);
  REQUIRE(all<Join>(all_up(s)).size() == 1);
  decide(0, s, StepCommitted{s.generation, step});
  REQUIRE(s.phase == Phase::training);
  return s;
}

inline Decision back(State& s, const std::string& trainer, uint32_t shard,
                     const std::vector<StateVersion>& held) {
  return decide(0, s, TrainerUp{trainer, 2, {2}, of(shard, held, s.rules.cut_of(s.layout)), 0});
}

inline Decision back(State& s, const std::string& trainer, uint32_t shard, const Steps& steps) {
  return back(s, trainer, shard, made(newest_joined(s), steps));
}

/// n0 and n2 train. n1 was lost and is back; its first trainer is still in generation 1.
inline State with_one_back_in_an_older_generation() {
  State s = training(3);
  decide(0, s, NodeLost{"n1", "gone"});
  all_idle(s, Steps{3});
  decide(0, s, StepCommitted{s.generation, 4});
  decide(0, s, NodeUp{"n1", 1});
  decide(0, s, TrainerUp{"n1.0", 1, {1}, of(0, made(1, {3})), 1});
  return s;
}

inline std::vector<std::string> nodes_of(const State& s) {
  std::vector<std::string> list;
  for (const auto& domain : s.layout.domains) list.insert(list.end(), domain.begin(), domain.end());
  return list;
}

inline std::vector<std::string> names(const State& s) {
  std::vector<std::string> list;
  for (const auto& [name, trainer] : s.trainers) list.push_back(name);
  return list;
}

}  // namespace simplescale::job::test
