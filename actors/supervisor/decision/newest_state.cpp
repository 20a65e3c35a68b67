#include "actors/supervisor/decision/newest_state.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "actors/supervisor/decision/queries.hpp"

namespace simplescale::job {

namespace {

/// Trusted copies of a branch in the memory of idle trainers and in the peer stores of their nodes.
/// An idle trainer can also send from the memory of a trainer of its node that is down.
std::vector<AvailableCopy> copies_of_branch(const State& s, uint64_t branch) {
  std::vector<AvailableCopy> list;
  for (const std::string& name : s.node_order) {
    const Node& node = s.nodes.at(name);
    if (!is_here(node)) continue;
    std::string sender;  // the first idle trainer, or else the agent
    std::vector<StateCopy> of_node = node.peer;
    for (int slot = 0; slot < s.rules.trainers_per_node; ++slot) {
      const std::string who = trainer_name(name, slot);
      const Trainer& trainer = s.trainers.at(who);
      const bool idle = trainer.state == TrainerState::idle;
      if (idle && sender.empty()) sender = who;
      if (!idle && (trainer.state != TrainerState::down || trainer.generation != 0)) continue;
      for (const StateCopy& copy : trainer.held)
        if (!idle)
          of_node.push_back(copy);
        else if (trusted(s, copy.step, copy.generation, branch))
          list.push_back({who, copy.shard, copy.step, false, copy.shards});
    }
    if (sender.empty() && !node.address.empty()) sender = name;
    if (sender.empty()) continue;
    for (const StateCopy& copy : of_node)
      if (trusted(s, copy.step, copy.generation, branch))
        list.push_back({sender, copy.shard, copy.step, true, copy.shards});
  }
  return list;
}

/// The newest step that can have been committed. A step is committed only if all ranks made it, and
/// a trainer's memory holds the last step that the trainer made.
uint64_t newest_possible(const State& s) {
  if (s.generation == 0) return 0;
  const uint64_t last = newest_joined(s);
  uint64_t newest = UINT64_MAX;
  for (const auto& [name, trainer] : s.trainers) {
    if (trainer.state != TrainerState::idle || trainer.generation != last) continue;
    uint64_t made = 0;
    for (const StateCopy& copy : trainer.held)
      if (trusted(s, copy.step, copy.generation)) made = std::max(made, copy.step);
    newest = std::min(newest, made);
  }
  return std::max(newest, s.committed_step);  // a copy of it may have been discarded
}
}  // namespace

Beginning newest_state(const State& s, uint32_t preferred) {
  Beginning b{.copies = copies_of_branch(s, newest_branch)};
  if (s.has_checkpoint) b.source = Source::checkpoint, b.step = s.checkpoint_step;
  const auto newest = newest_complete(b.copies, preferred);
  if (newest && newest->step >= b.step)
    b.source = Source::memory, b.step = newest->step, b.shards = newest->shards;
  for (const uint64_t branch : left_branches(s)) {
    std::vector<AvailableCopy> older = copies_of_branch(s, branch);
    if (const auto newer = newest_complete(older, preferred); newer && newer->step > b.step)
      b = {Source::memory, newer->step, newer->shards, std::move(older), branch};
  }
  return b;
}

uint64_t newest_made(const State& s) {
  const uint64_t last = newest_joined(s);
  std::optional<uint64_t> newest;
  for (const auto& [name, trainer] : s.trainers) {
    std::optional<uint64_t> made;
    for (const StateCopy& copy : trainer.held)
      if (copy.generation == last && trainer.state == TrainerState::idle)
        made = std::max(made.value_or(0), copy.step);
    if (made) newest = std::min(newest.value_or(*made), *made);
  }
  return std::max(newest.value_or(0), s.committed_step);
}

bool answers_missing(const State& s, const Beginning& beginning) {
  uint64_t last = newest_joined(s);
  // A predecessor may have begun a generation, and died before it replicated the decision: then
  // only agents know of it.
  const bool of_predecessor = last > 0 && last <= s.generation_floor;
  if (beginning.step >= newest_possible(s)) {
    if (!of_predecessor) return false;
    // An agent reports what its memory holds with its answer to the newest fence.
    last = s.generation - 1;
  }
  return std::ranges::any_of(s.nodes, [&](const auto& node) {
    return is_here(node.second) && node.second.answered <= last;
  });
}

bool memory_may_be_newer(const State& s, const Beginning& beginning) {
  std::vector<AvailableCopy> copies =
      beginning.branch == newest_branch ? beginning.copies : copies_of_branch(s, newest_branch);
  std::set<uint64_t> steps = {s.committed_step};
  for (const AvailableCopy& copy : copies) steps.insert(copy.step);
  const uint64_t newest = newest_joined(s);
  const uint32_t cut = s.rules.cut_of(s.layout);
  for (const Place& place : places(s.rules, s.layout)) {
    const Trainer& trainer = s.trainers.at(place.trainer);
    if (trainer.state != TrainerState::idle && trainer.generation == newest &&
        is_here(s.nodes.at(node_of(place.trainer))))
      for (const uint64_t step : steps)
        copies.push_back({place.trainer, place.shard, step, false, cut});
  }
  const auto newer = [&](uint64_t branch) {
    for (const auto& [name, node] : s.nodes) {
      if (!is_here(node)) continue;
      for (const StateCopy& copy : node.peer)
        if (trusted(s, copy.step, copy.generation, branch))
          copies.push_back({name, copy.shard, copy.step, true, copy.shards});
      for (int slot = 0; slot < s.rules.trainers_per_node; ++slot) {
        const Trainer& trainer = s.trainers.at(trainer_name(name, slot));
        for (const StateCopy& copy : trainer.held)
          if (trusted(s, copy.step, copy.generation, branch))
            copies.push_back({name, copy.shard, copy.step, false, copy.shards});
      }
    }
    const auto complete = newest_complete(std::exchange(copies, {}));
    return complete && complete->step > beginning.step;
  };
  return newer(newest_branch) || std::ranges::any_of(left_branches(s), newer);
}

}  // namespace simplescale::job
