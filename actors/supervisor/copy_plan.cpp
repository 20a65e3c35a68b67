#include "actors/supervisor/copy_plan.hpp"

#include <algorithm>
#include <tuple>

#include "actors/supervisor/decision/queries.hpp"
#include "actors/supervisor/decision/rollback.hpp"

namespace simplescale::job {
namespace {

constexpr int64_t kRoundTimeoutMs = 120'000;

size_t domain_of(const Layout& layout, const std::string& node) {
  size_t domain = 0;
  for (const auto& nodes : layout.domains) {
    if (std::ranges::find(nodes, node) != nodes.end()) break;
    ++domain;
  }
  return domain;
}

}  // namespace

std::vector<CopyTask> plan_copies(const State& state) {
  const std::vector<Place> members = places(state.rules, state.layout);
  if (members.empty()) return {};
  const uint32_t groups = members.back().group + 1;
  const uint32_t shards = state.rules.cut_of(state.layout);
  std::map<std::string, size_t> load;
  std::vector<CopyTask> tasks;
  for (const Place& place : members) {
    if (place.shard % groups != place.group) continue;
    const std::string home = node_of(place.trainer);
    const size_t domain = domain_of(state.layout, home);  // PEER-1
    const auto& order = state.node_order;
    const auto first = static_cast<size_t>(std::ranges::find(order, home) - order.begin());
    const std::string* best = nullptr;
    bool inside = false;  // the best node so far is in the shard's own failure domain
    auto cost = [&](const std::string& node) {
      return std::tuple(domain_of(state.layout, node) == domain, load[node],
                        state.layout.contains(node));
    };
    for (size_t i = 1; i < order.size(); ++i) {
      const std::string& node = order[(first + i) % order.size()];
      if (state.nodes.at(node).state != NodeState::up) continue;
      if (best && cost(node) >= cost(*best)) continue;
      best = &node;
      inside = domain_of(state.layout, node) == domain;
    }
    if (!best) continue;
    ++load[*best];
    tasks.push_back({place.shard, place.trainer, *best, "", shards});
    if (inside) tasks.push_back({place.shard, place.trainer, home, "", shards});
  }
  std::ranges::stable_sort(tasks, {}, &CopyTask::shard);
  return tasks;
}

std::optional<uint64_t> newest_kept(const State& state) {
  const uint32_t cut = state.rules.cut_of(state.layout);
  const bool one_domain = state.layout.domains.size() == 1;
  std::map<uint32_t, std::string> home;  // node of each shard, if there is only one failure domain
  if (one_domain)
    for (const Place& place : places(state.rules, state.layout))
      home[place.shard] = node_of(place.trainer);
  struct Copy {
    uint32_t shards, shard;
    uint64_t step;
    auto operator<=>(const Copy&) const = default;
  };
  std::map<Copy, std::vector<std::string>> keepers;
  for (const auto& [name, node] : state.nodes)
    if (is_here(node))
      for (const StateCopy& copy : node.peer)
        if (trusted(state, copy.step, copy.generation))
          keepers[{copy.shards, copy.shard, copy.step}].push_back(name);
  std::vector<AvailableCopy> copies;
  for (const auto& [copy, nodes] : keepers) {
    const auto inside = [&](const std::string& node) { return state.layout.contains(node); };
    // No node is the own one of a shard of another cut.
    const auto own = copy.shards == cut ? home.find(copy.shard) : home.end();
    const bool at_home =
        copy.shards != cut ||
        (own != home.end() && std::ranges::find(nodes, own->second) != nodes.end());
    if (!one_domain || !std::ranges::all_of(nodes, inside) || (at_home && nodes.size() > 1))
      copies.push_back({nodes.front(), copy.shard, copy.step, true, copy.shards});
  }
  const auto newest = newest_complete(copies);
  return newest ? std::optional(newest->step) : std::nullopt;
}

std::optional<CopyToPeers> CopyRounds::committed(int64_t now_ms, const State& state, uint64_t step,
                                                 uint64_t begun_at) {
  const uint64_t due = step - 1;  // PEER-3
  if (every_ == 0 || step == 0 || due % every_ != 0 || due <= begun_at) return std::nullopt;
  if (open_ && now_ms - since_ms_ < kRoundTimeoutMs) return std::nullopt;
  const std::optional<uint64_t> kept = newest_kept(state);
  if (kept && *kept >= due) return std::nullopt;  // a predecessor ordered that copy
  CopyToPeers order{state.generation, due, kept.value_or(UINT64_MAX),  // PEER-2
                    plan_copies(state)};
  std::set<uint32_t> shards;
  for (const CopyTask& task : order.copies) shards.insert(task.shard);
  lacking_ = shards.size() < state.rules.cut_of(state.layout);
  if (lacking_) return std::nullopt;
  generation_ = order.generation;
  step_ = due;
  since_ms_ = now_ms;
  failed_ = false;
  open_ = true;
  tasks_ = order.copies;
  waiting_.clear();
  for (const CopyTask& task : order.copies) waiting_.insert(task.shard);
  return order;
}

void CopyRounds::ended(const CopySent& sent) {
  if (!open_ || sent.generation != generation_ || sent.step != step_) return;
  failed_ = failed_ || !sent.error.empty();
  if (const auto task = waiting_.find(sent.shard); task != waiting_.end()) waiting_.erase(task);
  if (failed_ && waiting_.empty()) open_ = false;
}

std::optional<uint64_t> CopyRounds::completed(const State& state) {
  if (!open_ || !waiting_.empty()) return std::nullopt;
  for (const CopyTask& task : tasks_) {
    const auto keeper = state.nodes.find(task.node);
    const bool lost = keeper == state.nodes.end() || !is_here(keeper->second);
    if (lost) open_ = false;
    const StateCopy copy{task.shard, step_, generation_, task.shards};
    if (lost || std::ranges::count(keeper->second.peer, copy) == 0) return std::nullopt;
  }
  open_ = false;
  return step_;
}

}  // namespace simplescale::job
