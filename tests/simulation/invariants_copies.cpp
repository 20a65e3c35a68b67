// The invariants of copies: what memory and the disk hold when a round of copies ends, when a node
// leaves, and when a supervisor steps down.
#include <algorithm>

#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

namespace {

void require(bool holds, const char* invariant, const std::string& text) {
  if (!holds) throw Violation{invariant, text};
}
std::string number(uint64_t n) {
  return std::to_string(n);
}

}  // namespace

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
    if (const auto found = peer.find(task.shard); found != peer.end())
      for (const StateCopy& copy : found->second)
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

uint64_t Invariants::newest_held(int without) const {
  std::map<uint64_t, std::set<uint32_t>> have;  // step -> shards
  auto add = [&](const StateCopy& copy) {
    const auto made = made_.find(copy.step);
    if (copy.step <= committed_ && made != made_.end() && made->second == copy.made &&
        copy.good() && copy.content == copy.checksum)
      have[copy.step].insert(copy.shard);
  };
  for (int n = 0; n < cluster_.options.nodes; ++n) {
    if (n == without || !cluster_.nodes[n].up) continue;
    for (int slot = 0; slot < cluster_.options.trainers; ++slot)
      std::ranges::for_each(cluster_.trainers[n * cluster_.options.trainers + slot].copies, add);
    for (const auto& [shard, copies] : cluster_.nodes[n].peer) std::ranges::for_each(copies, add);
  }
  for (const auto* list : {&cluster_.disk.steps, &cluster_.disk.replaced})
    for (const auto& [step, checkpoint] : *list)
      if (checkpoint.readable)
        for (const auto& [shard, copy] : checkpoint.shards) add(copy);
  const size_t shards =
      static_cast<size_t>(cluster_.options.trainers * cluster_.options.domain_nodes);
  for (auto step = have.rbegin(); step != have.rend(); ++step)
    if (step->second.size() == shards) return step->first;
  return 0;
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
  std::map<uint64_t, std::set<uint32_t>> shards;  // by step
  const auto add = [&](uint32_t shard, uint64_t step, uint64_t generation) {
    if (generation == newest_maker_ && step > join.step && !job::is_suspect(s, step, generation))
      shards[step].insert(shard);
  };
  for (const auto& [name, node] : s.nodes) {
    if (node.state == job::NodeState::lost || node.state == job::NodeState::absent) continue;
    if (!node.address.empty())
      for (const PeerCopy& copy : node.peer) add(copy.shard, copy.step, copy.generation);
    for (int slot = 0; slot < s.rules.trainers_per_node; ++slot) {
      const job::Trainer& trainer = s.trainers.at(trainer_name(name, slot));
      if (trainer.state == job::TrainerState::down) continue;  // the others were idle
      for (const StateVersion& copy : trainer.held) add(trainer.shard, copy.step, copy.generation);
    }
  }
  for (const auto& [step, have] : shards)
    require(have.size() < static_cast<size_t>(s.rules.shards), "JOB-1",
            "generation " + number(join.generation) + " begins at step " + number(join.step) +
                " although step " + number(step) + " of generation " + number(newest_maker_) +
                " can be regained");
}

}  // namespace simplescale::simulation
