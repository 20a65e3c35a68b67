// The invariants of copies: what memory and the disk hold when a round of copies ends, when a node
// leaves, and when a supervisor steps down.
#include <algorithm>

#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

void Invariants::round_ordered(const Supervisor& by, const CopyToPeers& order) {
  round_ = {&by, order, {}};
  for (const CopyTask& task : order.copies) {
    const int keeper = cluster_.node_index.at(task.node);
    round_.links[keeper] = cluster_.nodes[keeper].link.id;
  }
}

void Invariants::round_failed(const CopyToPeers& order) {
  for (Round* round : {&round_, &whole_})
    if (round->order.step == order.step && round->order.generation == order.generation) *round = {};
}

/// The supervisor still leads this generation, and has not lost or removed a keeper since.
bool Invariants::counts(const Round& round) const {
  return round.by && round.by->up && round.by->term == cluster_.disk.newest_term &&
         round.by->job.generation == round.order.generation &&
         std::ranges::all_of(round.links, [&](const auto& link) {
           const Node& keeper = cluster_.nodes[link.first];
           return keeper.up && round.by->job.nodes.contains(keeper.name) &&
                  cluster_.connected(*round.by, link.first) && keeper.link.id == link.second;
         });
}

bool Invariants::held_whole(const Round& round) const {
  std::map<uint64_t, size_t> held;  // how many of the round's copies have this step
  for (const CopyTask& task : round.order.copies) {
    const auto& peer = cluster_.nodes[cluster_.node_index.at(task.node)].peer;
    if (const auto found = peer.find({task.shard, task.shards}); found != peer.end())
      for (const StoredCopy& copy : found->second)
        if (copy.generation == round.order.generation && copy.content == copy.checksum)
          ++held[copy.step];
  }
  return std::ranges::any_of(held, [&](const auto& step) {
    return step.first >= round.order.step && step.second == round.order.copies.size();
  });
}

void Invariants::copies_damaged() {
  round_ = whole_ = {};
}

void Invariants::copies_changed() {
  if (round_.by && held_whole(round_)) whole_ = round_;
  if (counts(whole_))
    require(held_whole(whole_), "PEER-2",
            "no node is lost, but the copies of step " + number(whole_.order.step) +
                " are overwritten before those of a newer one are there");
}

void Invariants::each_copy(int without, const std::function<void(const StoredCopy&)>& f) const {
  for (int n = 0; n < cluster_.options.nodes; ++n) {
    if (n == without || !cluster_.nodes[n].up) continue;
    for (int slot = 0; slot < cluster_.options.trainers; ++slot)
      std::ranges::for_each(cluster_.trainers[n * cluster_.options.trainers + slot].copies, f);
    for (const auto& [shard, copies] : cluster_.nodes[n].peer) std::ranges::for_each(copies, f);
  }
  for (const auto* list : {&cluster_.disk.steps, &cluster_.disk.replaced})
    for (const auto& [step, checkpoint] : *list)
      if (checkpoint.readable)
        for (const auto& [shard, copy] : checkpoint.shards) f(copy);
}

uint64_t Invariants::newest_held(int without) const {
  std::map<std::pair<uint64_t, uint32_t>, std::set<uint32_t>> have;  // (step, cut) -> shards
  each_copy(without, [&](const StoredCopy& copy) {
    const auto made = made_.find(copy.step);
    if (copy.step <= committed_ && made != made_.end() && made->second == copy.made &&
        copy.good() && copy.content == copy.checksum)
      have[{copy.step, copy.of.shards}].insert(copy.of.shard);
  });
  for (auto step = have.rbegin(); step != have.rend(); ++step)
    if (step->second.size() == step->first.second) return step->first.first;
  return 0;
}

std::optional<uint64_t> Invariants::held_of(uint64_t step) const {
  std::map<std::pair<uint64_t, uint32_t>, std::set<uint32_t>> have;  // (generation, cut) -> shards
  each_copy(-1, [&](const StoredCopy& copy) {
    if (copy.step == step && copy.content == copy.checksum)
      have[{copy.made, copy.of.shards}].insert(copy.of.shard);
  });
  for (auto made = have.rbegin(); made != have.rend(); ++made)
    if (made->second.size() == made->first.second) return made->first.first;
  return std::nullopt;
}

void Invariants::memory_changes(const Generation& g) {
  held_before_.reset();
  // After the loss of a node the other trainers still free what they held.
  const bool all_there = std::ranges::all_of(g.members, [&](const Generation::Member& m) {
    const Node& node = cluster_.nodes[cluster_.node_of(m.trainer)];
    return node.up && node.pid == m.agent;
  });
  const bool counts = g.number == joined_ && g.source != job::Source::initialize;
  if (all_there && counts && !cluster_.options.large()) held_before_ = held_of(g.begun_at);
}

void Invariants::memory_changed(const Generation& g, const char* what) {
  if (!held_before_) return;
  const auto left = held_of(g.begun_at);
  require(left >= held_before_, "RESTORE-1",
          std::string("a trainer of generation ") + number(g.number) + " " + what +
              " and discards a shard of step " + number(g.begun_at) + " that is nowhere else");
}

void Invariants::no_room(const Generation& g, const Generation::Member& m,
                         const std::set<Shard>& sent) const {
  for (const Shard& shard : sent) {
    size_t copies = 0;
    each_copy(-1, [&](const StoredCopy& copy) {
      copies += copy.of == shard && copy.step == g.begun_at && copy.content == copy.checksum;
    });
    require(copies < 2, "JOB-4",
            cluster_.trainers[m.trainer].name + " is to send two shards and gets a third one in " +
                number(g.number) + ", although others hold shard " + number(shard.shard) + " of " +
                number(shard.shards));
  }
}

void Invariants::shard_made(const Generation& g, const Generation::Member& m,
                            const StoredCopy& like) const {
  const Shard own{m.shard, g.cut};
  std::map<Shard, int> needed;
  for (uint32_t shard = 0; shard < like.of.shards; ++shard)
    if (const Shard old{shard, like.of.shards}; overlap(old, own, cluster_.options.blocks))
      needed[old] = 0;
  const std::string who = cluster_.trainers[m.trainer].name + " makes its shard " +
                          number(m.shard) + " of " + number(g.cut) + " in generation " +
                          number(g.number);
  for (const StoredCopy& part : m.taken) {
    require(part.step == g.begun_at && part.made == like.made, "JOB-3",
            who + " of copies of two versions");
    const auto found = needed.find(part.of);
    require(found != needed.end() && ++found->second == 1, "JOB-3",
            who + " of shard " + number(part.of.shard) + " of " + number(part.of.shards) +
                ", which it has taken already or does not need");
  }
  for (const auto& [old, count] : needed)
    require(count == 1, "JOB-3",
            who + " without shard " + number(old.shard) + " of " + number(old.shards));
}

void Invariants::node_leaves(int node) {
  const uint64_t held = newest_held(-1), left = newest_held(node);
  require(left >= held, "JOB-1",
          cluster_.nodes[node].name + " leaves with shards of committed step " + number(held) +
              " that are nowhere else; without them step " + number(left) + " is the newest");
}

void Invariants::stepped_down(uint64_t term, const SupervisorState& state) {
  const auto& left = cluster_.disk.state;
  require(left && !is_newer(state, *left), "JOB-1",
          "supervisor " + number(term) + " steps down and leaves decisions up to " +
              number(left ? left->sequence : 0) + ", and was to leave those up to " +
              number(state.sequence));
}

/// JOB-1: no newer generation has made a step, so what this one made counts, also if it was undone, as
/// soon as the supervisor knows copies of every shard.
void Invariants::check_regained(const Supervisor& supervisor, const job::Join& join) {
  const job::State& s = supervisor.job;
  std::map<std::pair<uint64_t, uint32_t>, std::set<uint32_t>> shards;  // by step and cut
  const auto add = [&](const StateCopy& copy) {
    if (copy.generation == newest_maker_ && copy.step > join.step &&
        !job::is_suspect(s, copy.step, copy.generation))
      shards[{copy.step, copy.shards}].insert(copy.shard);
  };
  for (const auto& [name, node] : s.nodes) {
    if (node.state == job::NodeState::lost || node.state == job::NodeState::absent) continue;
    if (!node.address.empty()) std::ranges::for_each(node.peer, add);
    for (int slot = 0; slot < s.rules.trainers_per_node; ++slot) {
      const job::Trainer& trainer = s.trainers.at(trainer_name(name, slot));
      if (trainer.state == job::TrainerState::down) continue;  // the others were idle
      std::ranges::for_each(trainer.held, add);
    }
  }
  for (const auto& [step, have] : shards)
    require(have.size() < step.second, "JOB-1",
            "generation " + number(join.generation) + " begins at step " + number(join.step) +
                " although step " + number(step.first) + " of generation " + number(newest_maker_) +
                " can be regained");
}

}  // namespace simplescale::simulation
