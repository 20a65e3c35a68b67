#include "actors/supervisor/decision/placement.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "actors/supervisor/decision/newest_state.hpp"
#include "actors/supervisor/decision/queries.hpp"
#include "runtime/base/words.hpp"

namespace simplescale::job {

namespace {
// Time for nodes that cannot reach this supervisor to vote against it (leadership.hpp).
constexpr int64_t vote_ms = 4'000;
// So many generations of a size that fail before the first step tell that the size cannot work, as
// if its trainers lack memory.
constexpr int size_tries = 2;

bool is_tried(const State& s, int size) {
  if (size == s.rules.domain_nodes) return true;
  if (s.giving_up) return size == s.rules.size_of(s.layout);
  if (s.cycles >= 2) return size == s.proven_size;
  const auto failed = s.failed_sizes.find(size);
  return failed == s.failed_sizes.end() || failed->second < size_tries;
}
}  // namespace

std::vector<std::string> usable_nodes(const State& s, bool with_training) {
  std::vector<std::string> list;
  std::set<std::string_view> training;
  if (with_training)
    for (const auto& domain : s.layout.domains) training.insert(domain.begin(), domain.end());
  for (const std::string& name : s.node_order) {
    const Node& node = s.nodes.at(name);
    const bool saves = s.giving_up && node.state == NodeState::drained;
    if (node.leaves && !saves) continue;
    if ((node.state != NodeState::up && !saves) || lacks_instructions(s, node)) continue;
    if (node_is_idle(s, name) || training.contains(name)) list.push_back(name);
  }
  std::ranges::stable_sort(
      list, {}, [&](const std::string& name) { return s.nodes.at(name).failures_ms.size(); });
  return list;
}

bool lacks_instructions(const State& s, const Node& node) {
  return !can_use(node.instructions, s.instructions);
}

std::string why_unfit(const State& s, const Node& node) {
  return std::string("this run computes with ") + to_string(s.instructions) +
         " instructions, and the best of its host are " + to_string(node.instructions) +
         "; use a host that has them, or train the run's weights in a new run (train --from)";
}

Code too_few_nodes(const State& s) {
  bool away = false, unfit = false;
  for (const auto& [name, node] : s.nodes) {
    const bool drained = node.state == NodeState::drained, lacks = lacks_instructions(s, node);
    if (drained && !lacks) return Code::gave_up;
    away = away || !is_here(node);
    unfit = unfit || drained;
  }
  return unfit && !away ? Code::bad_config : Code::requeue;
}

Layout next_layout(const State& s, const std::vector<std::string>& usable) {
  std::vector<int> sizes = {s.rules.domain_nodes};
  std::ranges::copy_if(s.rules.domain_sizes, std::back_inserter(sizes),
                       [&](int size) { return is_tried(s, size); });
  return choose_layout(s.rules, sizes, domains_needed(s), s.layout, usable);
}

bool can_spare(const State& s, const std::string& name) {
  std::vector<std::string> others = usable_nodes(s, true);
  std::erase(others, name);
  return next_layout(s, others).domains.size() >= static_cast<size_t>(s.rules.min_domains);
}

bool size_waits(const State& s, const Layout& next, bool waited) {
  if (s.giving_up || next.domains.empty() || s.rules.size_of(next) == s.rules.domain_nodes)
    return false;
  const Beginning beginning = newest_state(s, s.rules.cut_of(next));
  if (beginning.source == Source::initialize) return true;
  if (waited || beginning.step >= newest_made(s)) return false;
  return std::ranges::any_of(s.nodes, [&](const auto& n) {
    // It may hold one more step than was committed when it was lost, or the newest of which this
    // supervisor has not heard.
    const bool may_hold_newer =
        n.second.failed_at_step >= std::min(s.committed_step, beginning.step);
    return n.second.state == NodeState::lost && !n.second.ended && may_hold_newer;
  });
}

std::string missing_nodes(const State& s) {
  std::string text;
  for (const std::string& name : s.node_order) {
    const Node& node = s.nodes.at(name);
    if (node.state == NodeState::up && node_is_idle(s, name)) continue;
    text += (text.empty() ? "" : ", ") + name + " (" +
            (node.state == NodeState::up ? "its trainers are not up" : to_string(node.state)) +
            (node.reason.empty() ? "" : ": " + node.reason) + ")";
  }
  return text;
}

std::string describe_change(const State& s, const Layout& before, const Layout& next) {
  if (before.domains.empty()) return "enough nodes are up";
  if (next == before) return "the same nodes";
  auto one = [](const std::string& list) { return list.find(',') == std::string::npos; };
  std::string taken, given;
  for (const auto& domain : next.domains)
    for (const std::string& node : domain)
      if (!before.contains(node)) taken += (taken.empty() ? "" : ", ") + node;
  for (const auto& domain : before.domains)
    for (const std::string& node : domain)
      if (!next.contains(node)) given += (given.empty() ? "" : ", ") + node;
  const int per_domain = s.rules.groups_per_domain();
  std::string text;
  const bool other_size = s.rules.size_of(before) != s.rules.size_of(next);
  if (!taken.empty() && !given.empty())
    text = taken + (one(taken) ? " takes" : " take") + " the place of " + given;
  else if (!taken.empty())
    text = taken + (one(taken) ? " joins" : " join");
  else
    text = !given.empty() ? "without " + given
           : other_size   ? "the same nodes"
                          : "the same nodes in another order";
  const int64_t groups = std::ssize(next.domains) * per_domain;
  const int64_t were = std::ssize(before.domains) * per_domain;
  if (groups != were || other_size)
    text += ": " + groups_instead(groups, s.rules.size_of(next), were, s.rules.size_of(before));
  return text;
}

std::string groups_instead(int64_t groups, int nodes, int64_t were, int had) {
  const std::string size = nodes == had ? "" : " of " + counted(nodes, "node");
  return counted(groups, "group") + size + " instead of " + std::to_string(were) +
         (nodes == had ? "" : " of " + std::to_string(had));
}

std::string other_shape(const State& s) {
  const int size = s.rules.size_of(s.layout), per_domain = s.rules.groups_per_domain();
  const int64_t groups = std::ssize(s.layout.domains) * per_domain;
  const int64_t configured = int64_t{s.rules.domains} * per_domain;
  if (groups == 0 || (groups == configured && size == s.rules.domain_nodes)) return "";
  // With several groups on a node, no group has a number of nodes.
  const bool of_nodes = per_domain == 1;
  return counted(groups, "group") + (of_nodes ? " of " + counted(size, "node") : "") +
         " (configured: " + std::to_string(configured) +
         (of_nodes ? " of " + std::to_string(s.rules.domain_nodes) : "") + ")";
}

std::vector<std::string> nodes_without_checkpoint(const State& s) {
  std::vector<std::string> names;
  for (const auto& domain : s.layout.domains)
    for (const std::string& name : domain)
      if (!all_of_node(s, name, [](const Trainer& t) { return !t.unreadable; }))
        names.push_back(name);
  return names;
}

bool may_be_cut_off(const State& s, int64_t now_ms) {
  size_t nodes = 0, lost = 0;
  for (const auto& domain : s.layout.domains)
    for (const std::string& name : domain) {
      const Node& node = s.nodes.at(name);
      ++nodes;
      lost += node.state == NodeState::lost && now_ms - node.since_ms <= vote_ms;
    }
  return nodes > 1 && 2 * lost > nodes;
}

std::string groups_needed(const State& s) {
  return counted(s.rules.min_domains * s.rules.groups_per_domain(), "group");
}

size_t domains_needed(const State& s) {
  return static_cast<size_t>(s.giving_up ? 1 : s.rules.min_domains);
}

}  // namespace simplescale::job
