// Copies on peer nodes. The supervisor orders rounds with the real CopyRounds; agents stage, send
// and keep copies with the protocol of actors/peer/peer_copies.cpp.
#include <algorithm>

#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

namespace {
constexpr size_t steps_staged = 2;

/// The older of two steps is overwritten, but never the one to keep.
void make_room(std::vector<StoredCopy>& copies, uint64_t keep) {
  const bool kept = std::ranges::find(copies, keep, &StoredCopy::step) != copies.end();
  if (kept)
    std::erase_if(copies, [&](const StoredCopy& old) { return old.step != keep; });
  else if (copies.size() > 1)
    copies.erase(copies.begin());
}

/// As PeerTier::is_current().
bool is_current(const Node& node, const CopyToPeers& order) {
  return order.generation >= node.generation &&
         std::pair(order.generation, order.step) >= node.ordered;
}

/// As PeerTier::ordered().
void hear_of(Node& node, const CopyToPeers& order) {
  node.ordered = std::max(node.ordered, std::pair(order.generation, order.step));
}

}  // namespace

/// The agent keeps the state that a trainer has just written, for an order that may come.
void Cluster::stage_copy(int trainer) {
  Trainer& t = trainers[trainer];
  const StoredCopy copy = t.copies.back();
  std::erase_if(t.staged, [&](const StoredCopy& old) { return old.generation != copy.generation; });
  t.staged.push_back(copy);
  if (t.staged.size() > steps_staged) t.staged.erase(t.staged.begin());
}

/// As in actors/supervisor/supervisor.cpp: `step` is committed.
void Cluster::copy_to_peers(Supervisor& by, uint64_t step) {
  hear_copies(by);
  const auto g = generations.find(by.job.generation);
  if (g == generations.end()) return;
  const auto order = by.rounds.committed(now / ms, by.job, step, g->second->begun_at);
  if (!order) return;
  by.tasks_left = order->copies.size();
  invariants->round_ordered(by, *order);
  if (logging())
    log_line("supervisor " + std::to_string(by.term) + ": orders copies of step " +
             std::to_string(order->step));
  for (int n = 0; n < options.nodes; ++n)
    command(by, n, "copy", [this, n, order = *order] { take_order(n, order); });
}

/// The supervisor looks whether the keepers have told that they hold all copies of the round.
void Cluster::hear_copies(Supervisor& by) {
  if (by.rounds.completed(by.job)) ++faults["copied"];
}

void Cluster::take_order(int n, const CopyToPeers& order) {
  Node& node = nodes[n];
  hear_of(node, order);
  std::set<Shard> assigned;
  for (const CopyTask& task : order.copies)
    if (task.node == node.name) assigned.insert({task.shard, task.shards});
  const size_t dropped = std::erase_if(node.peer, [&](const auto& entry) {
    return is_current(node, order) && !assigned.contains(entry.first) &&
           std::ranges::find(entry.second, order.keep, &StoredCopy::step) == entry.second.end();
  });
  if (dropped > 0) report_peer_copies(n);
  for (const CopyTask& task : order.copies) {
    if (node_of(trainer_index.at(task.source)) != n) continue;
    const auto& staged = trainers[trainer_index.at(task.source)].staged;
    const auto found = std::ranges::find_if(staged, [&](const StoredCopy& copy) {
      return copy.label() == StateCopy{task.shard, order.step, order.generation, task.shards};
    });
    if (found == staged.end()) {
      copy_sent(n, order, task, "not staged");
      continue;
    }
    after(random.between(1, 100) * ms, [this, n, order, task, copy = *found, pid = node.pid] {
      if (nodes[n].up && nodes[n].pid == pid) send_copy(n, order, task, copy);
    });
  }
}

void Cluster::send_copy(int n, const CopyToPeers& order, const CopyTask& task, StoredCopy copy) {
  const int k = node_index.at(task.node);
  const Time both_free =
      std::max({nodes[n].hung_until, nodes[k].hung_until, nodes[k].receives_until});
  if (both_free > now) {
    after(both_free - now + 1, [this, n, order, task, copy, pid = nodes[n].pid] {
      if (nodes[n].up && nodes[n].pid == pid) send_copy(n, order, task, copy);
    });
    return;
  }
  if (!is_current(nodes[n], order) || !nodes[k].up || !is_current(nodes[k], order) ||
      !reachable(n, k) || !reachable(k, n))  // GEN-1
    return copy_sent(n, order, task, "its keeper does not take it");
  hear_of(nodes[k], order);
  if (options.bug == Bug::stale_snapshot)
    if (const auto& held = trainers[trainer_index.at(task.source)].copies; !held.empty())
      copy.step = held.back().step;
  std::vector<StoredCopy>& held = nodes[k].peer[copy.of];
  const auto same = std::ranges::find(held, copy.label(), &StoredCopy::label);
  if (same != held.end() && same->content == same->checksum) {
    report_peer_copies(k);
    return copy_sent(n, order, task, "");
  }
  if (logging())
    log_line(nodes[k].name + ": takes shard " + std::to_string(task.shard) + " of step " +
             std::to_string(copy.step) + ", keeps step " + std::to_string(order.keep));
  make_room(held, order.keep);
  invariants->copies_changed();
  const Time takes = random.between(1, 600) * ms;
  nodes[k].receives_until = now + takes;
  after(takes, [this, n, k, order, task, copy, pid = nodes[k].pid] {
    Node& keeper = nodes[k];
    if (!keeper.up || keeper.pid != pid) return;
    if (copy.generation < keeper.generation && options.bug != Bug::copies_after_answer)  // GEN-1
      return copy_sent(k, order, task, "a new generation begins");
    std::vector<StoredCopy>& copies = keeper.peer[copy.of];
    std::erase_if(copies, [&](const StoredCopy& old) { return old.step == copy.step; });
    make_room(copies, order.keep);
    copies.push_back(copy);
    invariants->copies_changed();
    report_peer_copies(k);
    if (n == k) copy_sent(n, order, task, "");
  });
  if (n != k)  // it has been sent; its keeper may still verify it
    after(random.between(1, 400) * ms, [this, n, order, task, pid = nodes[n].pid] {
      if (nodes[n].up && nodes[n].pid == pid) copy_sent(n, order, task, "");
    });
}

/// An agent reports that a task of a round is over.
void Cluster::copy_sent(int n, const CopyToPeers& order, const CopyTask& task,
                        const std::string& error) {
  if (logging() && !error.empty())
    log_line(nodes[n].name + ": shard " + std::to_string(task.shard) + " of step " +
             std::to_string(order.step) + " is not copied: " + error);
  if (!error.empty()) invariants->round_failed(order);
  if (!nodes[n].link.up) return;
  send(n, 0,
       [this, by = nodes[n].link.supervisor,
        sent = CopySent{order.generation, order.step, task.shard, error, 0}] {
         if (!by->up) return;
         by->rounds.ended(sent);
         hear_copies(*by);
         if (options.bug == Bug::round_ends_when_sent && sent.error.empty() && by->tasks_left > 0 &&
             --by->tasks_left == 0)
           by->rounds.reset();
       });
}

}  // namespace simplescale::simulation
