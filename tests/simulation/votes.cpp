// Votes of nodes against a supervisor that lives but cannot be reached from there, and how it
// resigns. As in actors/node/supervisor_link.cpp and actors/supervisor/leadership.cpp, with the real
// lost_majority().
#include <algorithm>

#include "actors/supervisor/lost_majority.hpp"
#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

namespace {
constexpr Time vote_time = 1500 * ms;      // for which a supervisor cannot be reached
constexpr Time late_time = 3 * second;     // until the supervisor sees a new vote, at most
constexpr Time vote_timeout = 2 * second;  // for which a vote counts that is not renewed
constexpr Time joining_time = 2 * second;  // after a node has joined, more may follow
}  // namespace

void Cluster::vote(Node& node, const Supervisor& against) {
  if (std::exchange(node.unreachable, against.term) != against.term) node.unreachable_since = now;
  if (now - std::max(node.unreachable_since, node.alone_since) < vote_time) return;
  if (std::exchange(node.voted, against.term) == against.term) return;
  node.vote_read = against.term;
  node.read_from = now + random.between(0, late_time);
  node.read_until = INT64_MAX;
}

void Cluster::withdraw_vote(Node& node) {
  if (std::exchange(node.voted, 0) > 0) node.read_until = now + vote_timeout;
  node.unreachable = 0;
}

bool Cluster::votes(const Node& node, uint64_t term) const {
  return node.up && !hung(node) && node.voted == term && node.folder_hung_until <= now;
}

/// The last supervisor has resigned because of other nodes than this: one of them leads next.
bool Cluster::others_vote(const Node& node) const {
  return disk.newest_term > 0 && disk.resigned_term == disk.newest_term &&
         !votes(node, disk.newest_term) && std::ranges::any_of(nodes, [&](const Node& other) {
           return votes(other, disk.newest_term);
         });
}

bool Cluster::resigns(const Supervisor& supervisor) const {
  if (supervisor.elected || supervisor.joined_at + joining_time > now ||
      !supervisor.pending_actions.empty() || disk.hung_until > now ||
      nodes[supervisor.host].folder_hung_until > now)
    return false;
  std::set<std::string> against, reporting;
  for (int n = 0; n < options.nodes; ++n) {
    const Node& node = nodes[n];
    if (node.vote_read == supervisor.term && node.read_from <= now && now <= node.read_until &&
        folder_works_at(n) <= now && !hung(node))
      against.insert(node.name);
    if (supervisor.links.contains(n)) reporting.insert(nodes[n].name);
  }
  if (options.bug == Bug::reserved_vote) {
    job::State job = supervisor.job;
    for (const Node& node : nodes) job.nodes[node.name];
    return !against.empty() && job::lost_majority(job, against, reporting);
  }
  return !against.empty() && job::lost_majority(supervisor.job, against, reporting);
}

void Cluster::resign(Supervisor& supervisor) {
  ++faults["resigned"];
  invariants->resigns(supervisor);
  if (logging()) log_line("supervisor " + std::to_string(supervisor.term) + ": resigns");
  supervisor.up = false;
  supervisor.standby = -1;
  disk.resigned_term = supervisor.term;
  for (Node& node : nodes)
    if (node.voted == supervisor.term) node.alone_since = now;
  notice_supervisor_loss(supervisor, false);
}

}  // namespace simplescale::simulation
