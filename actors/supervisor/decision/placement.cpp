#include "actors/supervisor/decision/placement.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "actors/supervisor/decision/queries.hpp"
#include "runtime/base/words.hpp"

namespace simplescale::job {

namespace {
// Time for nodes that cannot reach this supervisor to vote against it (leadership.hpp).
constexpr int64_t vote_ms = 4'000;
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

bool can_spare(const State& s, const std::string& name) {
  std::vector<std::string> others = usable_nodes(s, true);
  std::erase(others, name);
  return assign(s.rules, s.layout, others).domains.size() >=
         static_cast<size_t>(s.rules.min_domains);
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
  if (!taken.empty() && !given.empty())
    text = taken + (one(taken) ? " takes" : " take") + " the place of " + given;
  else if (!taken.empty())
    text = taken + (one(taken) ? " joins" : " join");
  else
    text = given.empty() ? "the same nodes in another order" : "without " + given;
  if (next.domains.size() != before.domains.size())
    text += ": " + counted(static_cast<int64_t>(next.domains.size()) * per_domain, "group") +
            " instead of " +
            std::to_string(before.domains.size() * static_cast<size_t>(per_domain));
  return text;
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
