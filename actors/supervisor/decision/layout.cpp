#include "actors/supervisor/decision/layout.hpp"

#include <algorithm>
#include <deque>
#include <set>

namespace simplescale::job {

bool Layout::contains(const std::string& node) const {
  return std::ranges::any_of(
      domains, [&](const auto& domain) { return std::ranges::find(domain, node) != domain.end(); });
}

std::vector<Place> places(const LayoutRules& rules, const Layout& layout) {
  std::vector<Place> all;
  uint32_t rank = 0;
  for (const auto& domain : layout.domains)
    for (const std::string& node : domain)
      for (int slot = 0; slot < rules.trainers_per_node; ++slot, ++rank)
        all.push_back({trainer_name(node, slot), rank / static_cast<uint32_t>(rules.shards),
                       rank % static_cast<uint32_t>(rules.shards)});
  return all;
}

Layout assign(const LayoutRules& rules, const Layout& current,
              const std::vector<std::string>& usable) {
  const auto size = static_cast<size_t>(rules.domain_nodes);
  const std::set<std::string> good(usable.begin(), usable.end());
  struct Draft {
    std::vector<std::string> nodes;  // "" is a gap
    size_t gaps = 0;
  };
  std::vector<Draft> drafts;
  std::set<std::string> placed;
  for (const auto& domain : current.domains) {
    Draft draft{domain, 0};
    draft.nodes.resize(size);
    for (std::string& node : draft.nodes) {
      if (good.contains(node) && placed.insert(node).second) continue;
      node.clear();
      ++draft.gaps;
    }
    drafts.push_back(std::move(draft));
  }
  std::deque<std::string> spares;
  for (const std::string& node : usable)
    if (!placed.contains(node)) spares.push_back(node);

  // Fill the failure domains with the fewest gaps first. To have spares for them, dissolve the
  // domains with the most gaps.
  std::vector<size_t> order(drafts.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](size_t i) { return drafts[i].gaps; });
  for (size_t first = 0, last = order.size(); first < last;) {
    Draft& draft = drafts[order[first]];
    if (draft.gaps <= spares.size()) {
      for (std::string& node : draft.nodes) {
        if (!node.empty()) continue;
        node = std::move(spares.front());
        spares.pop_front();
      }
      draft.gaps = 0;
      ++first;
    } else {
      Draft& given_up = drafts[order[--last]];
      for (std::string& node : given_up.nodes)
        if (!node.empty()) spares.push_back(node);
      given_up.nodes.clear();
    }
  }
  Layout layout;
  for (Draft& draft : drafts)
    if (!draft.nodes.empty()) layout.domains.push_back(std::move(draft.nodes));
  const auto wanted = static_cast<size_t>(rules.domains_of(usable.size()));
  while (layout.domains.size() < wanted && spares.size() >= size) {
    const auto end = spares.begin() + static_cast<std::ptrdiff_t>(size);
    layout.domains.emplace_back(spares.begin(), end);
    spares.erase(spares.begin(), end);
  }
  return layout;
}

std::optional<uint64_t> newest_complete(const std::vector<AvailableCopy>& copies, int shards) {
  std::map<uint64_t, std::set<uint32_t>> by_step;
  for (const AvailableCopy& copy : copies)
    if (copy.shard < static_cast<uint32_t>(shards)) by_step[copy.step].insert(copy.shard);
  for (auto it = by_step.rbegin(); it != by_step.rend(); ++it)
    if (it->second.size() == static_cast<size_t>(shards)) return it->first;
  return std::nullopt;
}

std::vector<Move> moves_for(const std::vector<Place>& places,
                            const std::vector<AvailableCopy>& copies, uint64_t step) {
  std::map<std::string, uint32_t> keeps;  // trainers that hold the shard of their place
  std::map<uint32_t, const AvailableCopy*> best;
  std::map<std::string, uint32_t> place_of;
  for (const Place& place : places) place_of[place.trainer] = place.shard;
  auto rank = [&](const AvailableCopy& copy) {
    if (copy.peer) return 2;
    auto found = place_of.find(copy.source);
    return found != place_of.end() && found->second == copy.shard ? 0 : 1;
  };
  for (const AvailableCopy& copy : copies) {
    if (copy.step != step) continue;
    if (!copy.peer && rank(copy) == 0) keeps[copy.source] = copy.shard;
    const AvailableCopy*& known = best[copy.shard];
    if (!known || rank(copy) < rank(*known)) known = &copy;
  }
  std::map<uint32_t, Move> moves;
  for (const Place& place : places) {
    if (keeps.contains(place.trainer)) continue;
    const AvailableCopy* source = best[place.shard];
    if (!source) continue;
    Move& move = moves[place.shard];
    move.shard = place.shard;
    move.step = step;
    move.source = source->source;
    move.peer = source->peer;
    move.targets.push_back(place.trainer);
  }
  std::vector<Move> list;
  for (auto& [shard, move] : moves) list.push_back(std::move(move));
  return list;
}

}  // namespace simplescale::job
