#include "actors/supervisor/decision/balance.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/training/sharding.hpp"

namespace simplescale::job {
namespace {

constexpr double worth_it = 1.1;  // even shares take this many times as long as shares by speed
// After a straggler has become fast again: shares by speed take this many times as long as even ones.
constexpr double worth_even = 1.02;

/// How long each group takes for a micro-batch, in microseconds; empty: no node was measured.
std::vector<uint64_t> times_of_groups(const State& s) {
  std::vector<uint64_t> known;
  for (const auto& domain : s.layout.domains)
    for (const std::string& name : domain)
      if (const uint32_t us = s.nodes.at(name).micro_batch_us; us > 0) known.push_back(us);
  if (known.empty()) return {};
  const auto middle = known.begin() + (std::ssize(known) - 1) / 2;
  std::ranges::nth_element(known, middle);
  std::vector<uint64_t> times;
  for (const auto& domain : s.layout.domains) {
    uint64_t slowest = 1;
    for (const std::string& name : domain) {
      const uint32_t us = s.nodes.at(name).micro_batch_us;
      slowest = std::max<uint64_t>(slowest, us > 0 ? us : *middle);
    }
    times.insert(times.end(), static_cast<size_t>(s.rules.groups_per_domain()), slowest);
  }
  return times;
}

Shares shares_of(const State& s, const std::vector<uint32_t>& weights) {
  const size_t groups = s.layout.domains.size() * static_cast<size_t>(s.rules.groups_per_domain());
  return Shares::by_weight(s.leaves, weights, groups, s.rules.cut_of(s.layout));
}

/// The time of a step in which all groups compute, in microseconds.
double time_of_step(const State& s, const std::vector<uint64_t>& times,
                    const std::vector<uint32_t>& weights) {
  const Shares shares = shares_of(s, weights);
  uint64_t most = 0;
  for (size_t group = 0; group < times.size(); ++group)  // shard 0 has a leaf in each turn
    most = std::max(most, times[group] * shares.count(group, 0));
  return static_cast<double>(most);
}

}  // namespace

std::vector<uint32_t> weights_by_speed(const State& s) {
  const std::vector<uint64_t> times = s.balance ? times_of_groups(s) : std::vector<uint64_t>{};
  if (times.empty()) return {};
  const uint64_t fastest = std::ranges::min(times);
  std::vector<uint32_t> weights;
  for (const uint64_t time : times)
    weights.push_back(static_cast<uint32_t>(std::max<uint64_t>(1, 1000 * fastest / time)));
  const bool worth = time_of_step(s, times, {}) >= worth_it * time_of_step(s, times, weights);
  return worth ? weights : std::vector<uint32_t>{};
}

std::string why_share_anew(const State& s, const std::set<std::string>& stragglers) {
  const std::vector<uint64_t> times = times_of_groups(s);
  const std::vector<uint32_t> weights = weights_by_speed(s);
  if (times.empty() || weights == s.weights) return "";
  const double gain = time_of_step(s, times, s.weights) / time_of_step(s, times, weights);
  if (stragglers.empty() && weights.empty() && gain >= worth_even)
    return "no node is slow any more: the shares are even again";
  const std::string* slowest = nullptr;
  for (const auto& domain : s.layout.domains)
    for (const std::string& name : domain)
      if (!slowest || s.nodes.at(name).micro_batch_us > s.nodes.at(*slowest).micro_batch_us)
        slowest = &name;
  if (!stragglers.contains(*slowest) || gain < worth_it) return "";
  return fmt::format("{} is slow: with other shares a step takes {:.0f} % less time", *slowest,
                     100 * (1 - 1 / gain));
}

std::string why_shares(const State& s) {
  if (s.weights.empty()) return "even again: shares by speed would not gain enough";
  const Shares shares = shares_of(s, s.weights);
  const auto slowest = static_cast<size_t>(std::ranges::min_element(s.weights) - s.weights.begin());
  const auto per_domain = static_cast<size_t>(s.rules.groups_per_domain());
  return fmt::format(
      "{} at {:.2f} of the fastest speed: of {} micro-batches of a step group g{} "
      "has {}, others have up to {}",
      fmt::join(s.layout.domains[slowest / per_domain], ", "), s.weights[slowest] / 1000.0,
      shares.leaves(), slowest, shares.count(slowest), shares.most_leaves());
}

}  // namespace simplescale::job
