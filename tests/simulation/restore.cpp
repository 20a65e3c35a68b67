// The state that a generation begins with, in the simulated cluster: transfers, and their commit.
// As actors/trainer/restore.cpp:
//
//   transfer   each rank writes what it gets to its other side; the copy there is gone
//   barrier    all ranks have all of it
//   commit     each rank in its own time; the copy that it held stays in the other side
//   barrier    only if the cut has changed; then each rank frees the side of the old cut
#include <algorithm>

#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

namespace {

/// As TrainState::pin(): of two, the committed one.
const StoredCopy* find_copy(const Trainer& t, const Shard& of, uint64_t step) {
  for (auto copy = t.copies.rbegin(); copy != t.copies.rend(); ++copy)
    if (copy->of == of && copy->step == step) return &*copy;
  return nullptr;
}

Shard part_of(const job::Move& move) {
  return {move.shard, move.shards};
}

}  // namespace

/// As segment_of_copy() of actors/node/join.hpp: a copy in the node's peer store, or in the memory
/// of a trainer that takes no part; of the newest generation, since the others were undone.
const StoredCopy* Cluster::copy_of_node(int node, const job::Move& move,
                                        const Generation& g) const {
  const auto& peer = nodes[node].peer;
  const StoredCopy* copy = nullptr;
  if (const auto found = peer.find(part_of(move)); found != peer.end())
    for (const StoredCopy& held : found->second)
      if (held.step == move.step) copy = &held;
  if (copy && options.bug == Bug::undone_copy_sent) return copy;
  for (int slot = 0; slot < options.trainers; ++slot) {
    const int index = node * options.trainers + slot;
    const Trainer& t = trainers[index];
    const auto member = g.index.find(index);
    const bool takes_part = member != g.index.end() && t.up &&
                            g.members[static_cast<size_t>(member->second)].pid == t.pid;
    const bool skipped = options.bug == Bug::restarted_memory_skipped ? t.up : takes_part;
    const StoredCopy* held = skipped ? nullptr : find_copy(t, part_of(move), move.step);
    if (held && (!copy || held->generation >= copy->generation)) copy = held;
  }
  return copy;
}

/// The node that sends a copy: that of a trainer, or the one whose agent sends.
int Cluster::sender_of(const job::Move& move) const {
  const auto node = node_index.find(move.source);
  return node != node_index.end() ? node->second : node_of(trainer_index.at(move.source));
}

/// As Restore::room(): the side for what a member gets is that without the copy which it sends. False:
/// it has to send both.
bool Cluster::take_room(const Generation& g, Generation::Member& m) {
  if (std::exchange(m.has_room, true)) return true;
  Trainer& t = trainers[m.trainer];
  if (t.copies.empty()) return true;
  StoredCopy kept = t.copies.back();
  for (const StoredCopy& copy : t.copies)
    if (copy.step == g.begun_at && copy.of.shards == g.moves.front().shards) kept = copy;
  std::set<Shard> sent;
  for (const job::Move& move : g.moves)
    if (!move.peer && move.source == t.name)
      if (const StoredCopy* copy = find_copy(t, part_of(move), move.step)) {
        kept = *copy;
        sent.insert(copy->of);
      }
  if (sent.size() > 1) {
    ++faults["no_room"];
    invariants->no_room(g, m, sent);
    return false;
  }
  invariants->memory_changes(g);
  t.copies = {kept};
  invariants->memory_changed(g, "makes room for what it is sent");
  return true;
}

/// Carries out the moves; false if a copy is missing or damaged, or has no room: the generation is
/// aborted. A trainer takes nothing from a shard without elements of its own, as join_order() of
/// actors/supervisor/carry_out.cpp.
bool Cluster::send_copies(Generation& g) {
  for (const job::Move& move : g.moves) {
    const int node = sender_of(move);
    const auto source = trainer_index.find(move.source);
    const StoredCopy* copy = move.peer
                                 ? copy_of_node(node, move, g)
                                 : find_copy(trainers[source->second], part_of(move), move.step);
    StoredCopy sent = copy ? *copy : StoredCopy{};
    if (copy && !move.local() && transit_damage_due > 0) {
      --transit_damage_due;
      sent.content ^= 2;
    }
    const bool checked = options.bug != Bug::unverified_copy;
    if (!copy || (checked && sent.content != sent.checksum)) {
      rejected.insert({nodes[node].name, move.step});
      forget_damaged(node, move);
      abort_generation(g, job::Fault::bad_copy, move.source);
      return false;
    }
    const auto older = [&](const StoredCopy& other) {
      return other.of == sent.of && other.step != sent.step;
    };
    std::optional<StoredCopy> twice;
    if (options.bug == Bug::range_moved_twice && !move.peer && move.shards != g.cut)
      if (const auto& held = trainers[source->second].copies; std::ranges::any_of(held, older))
        twice = *std::ranges::find_if(held, older);
    for (const std::string& target : move.targets) {
      Generation::Member& m = g.members[static_cast<size_t>(g.index.at(trainer_index.at(target)))];
      if (!overlap(part_of(move), {m.shard, g.cut}, options.blocks)) continue;
      if (!take_room(g, m)) {
        abort_generation(g, job::Fault::failed, "");
        return false;
      }
      m.taken.push_back(sent);
      if (twice) m.taken.push_back(*twice);
    }
  }
  return true;
}

/// The shard of a member, made of shards of another cut, of which `like` is one; nothing if one is
/// missing or came twice.
std::optional<StoredCopy> Cluster::shard_of(const Generation& g, const Generation::Member& m,
                                            const StoredCopy& like) {
  const Shard own{m.shard, g.cut};
  const uint32_t cut = like.of.shards;
  const std::vector<StoredCopy>& parts = m.taken;
  const bool checked = options.bug != Bug::range_moved_twice && options.bug != Bug::range_not_sent;
  std::set<Shard> taken;
  for (const StoredCopy& part : parts)
    if ((!taken.insert(part.of).second || part.of.shards != cut) && checked) return std::nullopt;
  for (uint32_t shard = 0; shard < cut; ++shard)
    if (overlap({shard, cut}, own, options.blocks) && !taken.contains({shard, cut}) && checked)
      return std::nullopt;
  invariants->shard_made(g, m, like);
  StoredCopy made = like;
  made.of = own;
  made.content = content_of(own, made.step, made.made);
  for (const StoredCopy& part : parts)
    if (!part.good() && made.good()) made.content ^= part.difference();
  made.checksum = made.content;
  return made;
}

/// Gives each member its shard, if it does not hold it; false if it has none: the generation is
/// aborted.
bool Cluster::load_states(Generation& g) {
  const Checkpoint* checkpoint =
      g.source == job::Source::checkpoint ? checkpoint_of(g.begun_at) : nullptr;
  if (g.source == job::Source::checkpoint && (!checkpoint || !checkpoint->readable)) {
    abort_generation(g, job::Fault::bad_checkpoint, "");
    return false;
  }
  std::optional<StoredCopy> sent;  // one of the copies of the old cut, if the cut changes
  for (const Generation::Member& m : g.members)
    if (g.reshapes() && !m.taken.empty()) sent = m.taken.front();
  for (Generation::Member& m : g.members) {
    if (m.helper) continue;
    Trainer& t = trainers[m.trainer];
    const Shard own{m.shard, g.cut};
    if (g.source == job::Source::initialize) {
      const uint64_t content = content_of(own, 0, 0);
      m.incoming = {own, 0, content, content, 0, 0};
      continue;
    }
    if (checkpoint) {
      m.taken.clear();
      for (const auto& [shard, copy] : checkpoint->shards)
        if (overlap(copy.of, own, options.blocks)) m.taken.push_back(copy);
      if (checkpoint->shards.begin()->second.of.shards != g.cut && m.shard + m.group == 0)
        ++faults["reshaped_from_disk"];
      if (t.copies.size() > 1) t.copies.erase(t.copies.begin());
    }
    if (m.taken.size() == 1 && m.taken.front().of == own)
      m.incoming = m.taken.front();
    else if (checkpoint)
      m.incoming = shard_of(g, m, checkpoint->shards.begin()->second);
    else if (sent && (!m.taken.empty() || options.bug != Bug::padding_awaited)) {
      if (!take_room(g, m)) {
        abort_generation(g, job::Fault::failed, "");
        return false;
      }
      m.incoming = shard_of(g, m, *sent);
      faults["shard_all_padding"] += m.taken.empty();
    }
    if (options.bug == Bug::old_cut_joined && g.reshapes() &&
        std::ranges::any_of(t.copies, [&](const StoredCopy& copy) {
          return copy.of.shard == m.shard && copy.step == g.begun_at;
        })) {
      m.incoming.reset();
      continue;
    }
    if (m.incoming || find_copy(t, own, g.begun_at)) continue;
    const bool none = m.taken.empty();
    abort_generation(g, none ? job::Fault::bad_copy : job::Fault::failed, none ? t.name : "");
    return false;
  }
  return true;
}

/// Members wait for each other, then exchange the copies that the generation begins with.
void Cluster::transfer(std::shared_ptr<Generation> g) {
  if (!all_answer(g, &Cluster::transfer)) return;
  if (g->source == job::Source::checkpoint) {
    if (disk.hung_until > now) {
      after(disk.hung_until - now, [this, g] { transfer(g); });
      return;
    }
    if (disk.failing_until > now) return abort_generation(*g, job::Fault::failed, "");
  }
  if (!send_copies(*g) || !load_states(*g)) return;
  interrupt_restore(*g);
  after(random.between(1, 20) * ms, [this, g] { end_transfer(g); });
}

/// A trainer or a node dies while the members of a generation get their shards, or before the first
/// step.
void Cluster::interrupt_restore(const Generation& g) {
  if (!interrupt_due || g.moves.empty()) return;
  interrupt_due = false;
  const int victim =
      g.members[static_cast<size_t>(random.pick(static_cast<int>(g.trainers)))].trainer;
  const bool all = random.chance(40);
  after(random.between(0, random.chance(60) ? 60 : 300) * ms, [this, victim, all] {
    ++faults["restore_interrupted"];
    if (all)
      kill_node(node_of(victim), random.between(200, 15'000) * ms);
    else
      kill_trainer(victim, random.chance(50) ? 0 : random.between(3, 20) * second);
  });
}

/// The barrier after the transfers: all members have what they were sent.
void Cluster::end_transfer(std::shared_ptr<Generation> g) {
  if (!all_answer(g, &Cluster::end_transfer)) return;
  g->received = true;
  for (const Generation::Member& m : g->members)
    if (m.helper) {
      trainers[m.trainer].generation = 0;
      report_idle(m.trainer, {.generation = g->number});
    }
  each_rank(g, &Cluster::commit_rank);
}

/// Each rank does this in its own time, if it is still in the generation then. In a large cluster
/// all trainers of a node do it in one event.
void Cluster::each_rank(const std::shared_ptr<Generation>& g, RankAct act) {
  const size_t batch = options.large() ? static_cast<size_t>(options.trainers) : 1;
  for (size_t first = 0; first < g->trainers; first += batch)
    after(random.between(100, 20'000), [this, g, first, batch, act] {
      for (size_t rank = first; rank < std::min(first + batch, g->trainers); ++rank)
        at_rank(g, rank, act);
    });
}

void Cluster::at_rank(const std::shared_ptr<Generation>& g, size_t rank, RankAct act) {
  Generation::Member& m = g->members[rank];
  const Trainer& t = trainers[m.trainer];
  if (!t.up || t.generation != g->number) return;
  if (t.hung_until > now)
    after(t.hung_until - now, [this, g, rank, act] { at_rank(g, rank, act); });
  else
    (this->*act)(g, m);
}

/// Makes its shard the state that a member's memory holds, and forgets what is newer. A side of
/// another size is freed, but that of the cut that was moved only after the second barrier.
void Cluster::commit_rank(const std::shared_ptr<Generation>& g, Generation::Member& m) {
  Trainer& t = trainers[m.trainer];
  invariants->memory_changes(*g);
  if (g->source == job::Source::initialize) t.copies.clear();
  if (m.incoming) {
    t.copies.push_back(*m.incoming);
  } else {
    const bool old_cut = options.bug == Bug::old_cut_joined;
    std::ranges::stable_partition(t.copies, [&](const StoredCopy& copy) {
      return copy.step != g->begun_at || copy.of.shard != m.shard ||
             (copy.of.shards != g->cut && !old_cut);
    });
  }
  t.copies.back().generation = g->number;
  t.copies.back().begun = g->source == job::Source::memory;
  const StoredCopy own = t.copies.back();
  const bool frees = !g->reshapes() || options.bug == Bug::old_side_freed;
  std::erase_if(t.copies, [&](const StoredCopy& copy) {
    return copy.step > g->begun_at || (frees && copy.of.shards != own.of.shards);
  });
  t.place = {m.shard, g->cut};
  invariants->memory_changed(*g, "commits its shard");
  if (!g->reshapes()) return rank_ready(g, m);
  if (++g->committed == g->trainers)
    after(random.between(1, 20) * ms, [this, g] { end_commit(g); });
}

/// The barrier after a commit of another cut.
void Cluster::end_commit(std::shared_ptr<Generation> g) {
  if (all_answer(g, &Cluster::end_commit)) each_rank(g, &Cluster::free_rank);
}

void Cluster::free_rank(const std::shared_ptr<Generation>& g, Generation::Member& m) {
  Trainer& t = trainers[m.trainer];
  invariants->memory_changes(*g);
  std::erase_if(t.copies, [&](const StoredCopy& copy) { return copy.of.shards != g->cut; });
  invariants->memory_changed(*g, "frees the side of the old cut");
  rank_ready(g, m);
}

void Cluster::rank_ready(const std::shared_ptr<Generation>& g, Generation::Member& m) {
  m.ready = true;
  to_supervisor(node_of(m.trainer), job::TrainerReady{trainers[m.trainer].name, g->number});
  if (++g->ready < g->trainers || g->over) return;
  g->restored = true;
  if (g->reshapes()) ++faults["reshaped"];
  invariants->state_restored(*g);
  if (g->cut == static_cast<uint32_t>(options.trainers * options.useless_size)) {
    ++faults["size_fails"];
    return abort_generation(*g, job::Fault::failed, "");
  }
  begin_step(g);
}

}  // namespace simplescale::simulation
