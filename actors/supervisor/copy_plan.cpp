#include "actors/supervisor/copy_plan.hpp"

#include <algorithm>

namespace simplescale::job {
namespace {

constexpr int64_t kRoundTimeoutMs = 120'000;

size_t cell_of(const Layout& layout, const std::string& node) {
  size_t cell = 0;
  for (const auto& nodes : layout.cells) {
    if (std::ranges::find(nodes, node) != nodes.end()) break;
    ++cell;
  }
  return cell;
}

}  // namespace

std::vector<CopyTask> plan_copies(const State& state) {
  const std::vector<Place> members = places(state.rules, state.layout);
  if (members.empty()) return {};
  const uint32_t groups = members.back().group + 1;
  std::map<std::string, size_t> load;
  std::vector<CopyTask> tasks;
  for (const Place& place : members) {
    if (place.shard % groups != place.group) continue;
    const std::string home = node_of(place.trainer);
    const size_t cell = cell_of(state.layout, home);  // PEER-1
    const auto& order = state.node_order;
    const auto first = static_cast<size_t>(std::ranges::find(order, home) - order.begin());
    const std::string* best = nullptr;
    auto cost = [&](const std::string& node) {
      return std::pair(load[node], state.layout.contains(node));
    };
    for (size_t i = 1; i < order.size(); ++i) {
      const std::string& node = order[(first + i) % order.size()];
      if (state.nodes.at(node).state != NodeState::up) continue;
      if (cell_of(state.layout, node) == cell) continue;
      if (!best || cost(node) < cost(*best)) best = &node;
    }
    if (!best) continue;
    ++load[*best];
    tasks.push_back({place.shard, place.trainer, *best, ""});
  }
  std::ranges::sort(tasks, {}, &CopyTask::shard);
  return tasks;
}

std::optional<uint64_t> newest_kept(const State& state) {
  std::vector<AvailableCopy> copies;
  for (const auto& [name, node] : state.nodes)
    if (node.state != NodeState::absent && node.state != NodeState::lost)
      for (const PeerCopy& copy : node.peer)
        if (trusted(state, copy.step, copy.generation))
          copies.push_back({name, copy.shard, copy.step, true});
  return newest_complete(copies, state.rules.shards);
}

std::optional<CopyToPeers> CopyRounds::committed(int64_t now_ms, const State& state, uint64_t step,
                                                 uint64_t begun_at) {
  const uint64_t due = step - 1;  // PEER-3
  if (every_ == 0 || step == 0 || due % every_ != 0 || due <= begun_at) return std::nullopt;
  if (!waiting_.empty() && now_ms - since_ms_ < kRoundTimeoutMs) return std::nullopt;
  CopyToPeers order{state.generation, due, newest_kept(state).value_or(UINT64_MAX),  // PEER-2
                    plan_copies(state)};
  lacking_ = order.copies.size() < static_cast<size_t>(state.rules.shards);
  if (lacking_) return std::nullopt;
  generation_ = order.generation;
  step_ = due;
  since_ms_ = now_ms;
  failed_ = false;
  waiting_.clear();
  for (const CopyTask& task : order.copies) waiting_.insert(task.shard);
  return order;
}

bool CopyRounds::ended(const CopySent& sent) {
  if (sent.generation != generation_ || sent.step != step_ || waiting_.erase(sent.shard) == 0)
    return false;
  failed_ = failed_ || !sent.error.empty();
  return waiting_.empty() && !failed_;
}

}  // namespace simplescale::job
