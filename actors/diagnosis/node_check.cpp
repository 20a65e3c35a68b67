#include "actors/diagnosis/node_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <caf/all.hpp>
#include <chrono>

#include "runtime/base/limits.hpp"

namespace simplescale {

namespace {

constexpr int kSmallPings = 50, kLargePings = 8;
constexpr size_t kLargeBytes = size_t{4} << 20;
constexpr auto kPingTimeout = std::chrono::seconds(5);

/// Seconds of the fastest of `times` round trips; -1 if an answer is late or wrong.
double fastest_round_trip_s(caf::scoped_actor& self, const caf::actor& peer, size_t bytes,
                            int times) {
  using Clock = std::chrono::steady_clock;
  double best = -1;
  for (int i = 0; i < times; ++i) {
    const Ping ping{static_cast<uint64_t>(i), std::string(bytes, static_cast<char>('a' + i % 26))};
    bool answered = false;
    const auto begin = Clock::now();
    self->request(peer, kPingTimeout, ping)
        .receive(
            [&](const Pong& pong) {
              answered = pong.id == ping.id && pong.payload == ping.payload;
            },
            [](const caf::error&) {});
    if (!answered) return -1;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (best < 0 || seconds < best) best = seconds;
  }
  return best;
}

}  // namespace

std::vector<std::string> link_peers(const std::vector<std::string>& order, const std::string& node,
                                    const std::function<bool(const std::string&)>& is_up) {
  constexpr size_t enough = 2;
  const auto self = std::ranges::find(order, node);
  std::vector<std::string> peers;
  for (size_t i = 1; self != order.end() && i < order.size() && peers.size() < enough; ++i) {
    const auto at = (static_cast<size_t>(self - order.begin()) + i) % order.size();
    if (is_up(order[at])) peers.push_back(order[at]);
  }
  return peers;
}

std::vector<CheckResult> check_links(caf::actor_system& system, const FindNode& find,
                                     const std::vector<LinkEnd>& links) {
  if (links.empty()) return {};
  caf::scoped_actor self{system};
  CheckResult rtt{"link_rtt", false, 0, "us", ""}, bandwidth{"link", false, 0, "GB/s", ""};
  for (const LinkEnd& link : links) {
    const Result<caf::actor> peer = find(link.address);
    const double small = peer.ok() ? fastest_round_trip_s(self, *peer, 64, kSmallPings) : -1;
    const double large =
        small > 0 ? fastest_round_trip_s(self, *peer, kLargeBytes, kLargePings) : -1;
    const char* gap = rtt.detail.empty() ? "" : ", ";
    if (large <= 0) {
      const std::string why =
          gap + link.node + (peer.ok() ? " does not answer" : ": " + peer.status().message());
      rtt.detail += why;
      bandwidth.detail += why;
      continue;
    }
    const double us = small * 1e6, gb_per_s = 2 * static_cast<double>(kLargeBytes) / large / 1e9;
    rtt.value = rtt.ok ? std::min(rtt.value, us) : us;
    bandwidth.value = std::max(bandwidth.value, gb_per_s);
    rtt.ok = bandwidth.ok = true;
    rtt.detail += fmt::format("{}{} {:.0f}", gap, link.node, us);
    bandwidth.detail += fmt::format("{}{} {:.2f}", gap, link.node, gb_per_s);
  }
  return {rtt, bandwidth};
}

void spawn_node_check(caf::actor_system& system, const caf::actor& node, const std::string& name,
                      const std::string& folder, FindNode find, std::vector<LinkEnd> links) {
  system.spawn<caf::detached>([node, name, folder, find = std::move(find),
                               links = std::move(links)](caf::event_based_actor* self) {
    std::vector<CheckResult> results;
    try {
      results = check_machine(folder);
      for (CheckResult& result : check_links(self->system(), find, links))
        results.push_back(std::move(result));
    } catch (const std::exception& error) {  // without memory, for one; an answer is waited for
      results.push_back({"diagnosis", false, 0, "", exception_status(error).message()});
    }
    self->send(node,
               NodeChecked{name, all_ok(results), complaints(results), to_json(results).dump()});
  });
}

}  // namespace simplescale
