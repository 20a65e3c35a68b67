#include "actors/supervisor/decision/layout.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "runtime/training/group_shape.hpp"

namespace simplescale::job {

bool Layout::contains(const std::string& node) const {
  return std::ranges::any_of(
      domains, [&](const auto& domain) { return std::ranges::find(domain, node) != domain.end(); });
}

std::vector<Place> places(const LayoutRules& rules, const Layout& layout) {
  std::vector<Place> all;
  uint32_t rank = 0;
  const uint32_t shards = rules.cut_of(layout);
  for (const auto& domain : layout.domains)
    for (const std::string& node : domain)
      for (int slot = 0; slot < rules.trainers_per_node; ++slot, ++rank)
        all.push_back({trainer_name(node, slot), rank / shards, rank % shards});
  return all;
}

namespace {

/// The usable nodes, those of the layout first, in its order.
std::vector<std::string> in_order_of(const Layout& layout, const std::vector<std::string>& usable) {
  const std::set<std::string> good(usable.begin(), usable.end());
  std::vector<std::string> names;
  for (const auto& domain : layout.domains)
    for (const std::string& node : domain)
      if (good.contains(node)) names.push_back(node);
  for (const std::string& node : usable)
    if (!layout.contains(node)) names.push_back(node);
  return names;
}

}  // namespace

Layout assign(const LayoutRules& rules, int domain_size, const Layout& current,
              const std::vector<std::string>& usable) {
  if (!current.domains.empty() && rules.size_of(current) != domain_size)
    return assign(rules, domain_size, {}, in_order_of(current, usable));
  const auto size = static_cast<size_t>(domain_size);
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
  const auto wanted = static_cast<size_t>(rules.domains_of(usable.size(), domain_size));
  while (layout.domains.size() < wanted && spares.size() >= size) {
    const auto end = spares.begin() + static_cast<std::ptrdiff_t>(size);
    layout.domains.emplace_back(spares.begin(), end);
    spares.erase(spares.begin(), end);
  }
  return layout;
}

Layout choose_layout(const LayoutRules& rules, const std::vector<int>& sizes, size_t least_domains,
                     const Layout& current, const std::vector<std::string>& usable) {
  const size_t nodes =
      std::min(static_cast<size_t>(rules.domains_of(usable.size(), 1)), usable.size());
  CurrentGroups now;
  if (!current.domains.empty()) {
    now.size = rules.size_of(current);
    now.groups = assign(rules, now.size, current, usable).domains.size();
  }
  const auto chosen =
      choose_shape({sizes, rules.domain_nodes, least_domains, rules.rate_first}, nodes, now);
  return assign(rules, chosen ? chosen->size : rules.domain_nodes, current, usable);
}

std::optional<CompleteStep> newest_complete(const std::vector<AvailableCopy>& copies,
                                            uint32_t preferred) {
  std::map<uint64_t, std::map<uint32_t, std::set<uint32_t>>> found;  // shards, by step and cut
  for (const AvailableCopy& copy : copies)
    if (copy.shard < copy.shards) found[copy.step][copy.shards].insert(copy.shard);
  for (auto step = found.rbegin(); step != found.rend(); ++step) {
    std::optional<CompleteStep> complete;
    for (const auto& [shards, those] : step->second)
      if (those.size() == shards && (!complete || shards == preferred))
        complete = {step->first, shards};
    if (complete) return complete;
  }
  return std::nullopt;
}

namespace {

/// The best copy of each shard. rank: of a copy, the lowest is taken. receivers: trainers that get a
/// shard. One that holds two shards has no room for a third, so it sends one of them, if another
/// source has the other; shards with few copies choose first.
template <class Rank>
std::map<uint32_t, const AvailableCopy*> best_copies(const std::vector<AvailableCopy>& copies,
                                                     const CompleteStep& complete,
                                                     const std::set<std::string>& receivers,
                                                     Rank rank) {
  std::map<uint32_t, std::vector<const AvailableCopy*>> of_shard;
  for (const AvailableCopy& copy : copies)
    if (copy.step == complete.step && copy.shards == complete.shards)
      of_shard[copy.shard].push_back(&copy);
  std::vector<uint32_t> order;
  for (const auto& [shard, list] : of_shard) order.push_back(shard);
  std::ranges::stable_sort(order, {}, [&](uint32_t shard) { return of_shard[shard].size(); });
  std::map<uint32_t, const AvailableCopy*> best;
  std::set<std::string> send;
  for (const uint32_t shard : order) {
    const auto cost = [&](const AvailableCopy* copy) {
      const bool full =
          !copy->peer && receivers.contains(copy->source) && send.contains(copy->source);
      return std::pair(full, rank(*copy));
    };
    const AvailableCopy* copy = *std::ranges::min_element(of_shard[shard], {}, cost);
    if (!copy->peer) send.insert(copy->source);
    best[shard] = copy;
  }
  return best;
}

/// Moves to places of another cut.
std::vector<Move> moves_to_other_cut(const std::vector<Place>& places,
                                     const std::vector<AvailableCopy>& copies,
                                     const CompleteStep& complete) {
  std::set<std::string> have_places;
  for (const Place& place : places) have_places.insert(place.trainer);
  const auto best = best_copies(copies, complete, have_places, [&](const AvailableCopy& copy) {
    return copy.peer ? 2 : have_places.contains(copy.source) ? 0 : 1;
  });
  std::map<std::string, uint32_t> kept;  // the shard that stays in a trainer's own memory
  for (const auto& [shard, copy] : best)
    if (!copy->peer) kept.emplace(copy->source, shard);
  for (const AvailableCopy& copy : copies)
    if (copy.step == complete.step && copy.shards == complete.shards && !copy.peer)
      kept.emplace(copy.source, copy.shard);
  std::vector<Move> moves;
  for (const auto& [shard, copy] : best) {
    Move sent{shard, complete.step, copy->source, copy->peer, {}, complete.shards};
    std::vector<Move> own;
    for (const Place& place : places)
      if (const auto own_shard = kept.find(place.trainer);
          place.trainer == copy->source || own_shard == kept.end() || own_shard->second != shard)
        sent.targets.push_back(place.trainer);
      else
        own.push_back(
            {shard, complete.step, place.trainer, false, {place.trainer}, complete.shards});
    moves.push_back(std::move(sent));
    std::ranges::move(own, std::back_inserter(moves));
  }
  return moves;
}

}  // namespace

std::vector<Move> moves_for(const std::vector<Place>& places, uint32_t place_shards,
                            const std::vector<AvailableCopy>& copies,
                            const CompleteStep& complete) {
  if (place_shards != complete.shards) return moves_to_other_cut(places, copies, complete);
  std::map<std::string, uint32_t> place_of;
  for (const Place& place : places) place_of[place.trainer] = place.shard;
  const auto rank = [&](const AvailableCopy& copy) {
    if (copy.peer) return 2;
    auto found = place_of.find(copy.source);
    return found != place_of.end() && found->second == copy.shard ? 0 : 1;
  };
  std::set<std::string> keep, receivers;  // trainers that hold the shard of their place; the others
  for (const AvailableCopy& copy : copies)
    if (copy.step == complete.step && copy.shards == complete.shards && rank(copy) == 0)
      keep.insert(copy.source);
  for (const Place& place : places)
    if (!keep.contains(place.trainer)) receivers.insert(place.trainer);
  const auto best = best_copies(copies, complete, receivers, rank);
  std::map<uint32_t, Move> moves;
  for (const Place& place : places) {
    const auto source = best.find(place.shard);
    if (source == best.end() || keep.contains(place.trainer)) continue;
    Move& move = moves[place.shard];
    move = {place.shard,          complete.step,           source->second->source,
            source->second->peer, std::move(move.targets), complete.shards};
    move.targets.push_back(place.trainer);
  }
  std::vector<Move> list;
  for (auto& [shard, move] : moves) list.push_back(std::move(move));
  return list;
}

}  // namespace simplescale::job
