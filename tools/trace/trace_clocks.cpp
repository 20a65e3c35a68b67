#include "tools/trace/trace_clocks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace simplescale {

using trace::Kind;

namespace {

struct Sent {
  const TracePart* part;
  const TraceEvent* event;
};
std::map<MessageKey, Sent> all_sent(const std::vector<TracePart>& parts) {
  std::map<MessageKey, Sent> sent;
  for (const TracePart& part : parts)
    for (const TraceProcess& process : part.processes)
      for (const TraceEvent& e : process.events)
        if (e.kind == Kind::sent && e.a != 0) sent[key_of(e)] = {&part, &e};
  return sent;
}

/// How far each host's clock is ahead of the first part's, in ns: half the difference of the
/// shortest transfer times in the two directions. Only hosts with messages in both directions.
std::map<std::string, int64_t> clock_errors(const std::vector<TracePart>& parts) {
  struct Shortest {
    std::optional<int64_t> there, back;
  };
  std::map<std::string, Shortest> hosts;
  const std::string& reference = parts.front().host;
  const auto sent = all_sent(parts);
  auto shorten = [](std::optional<int64_t>& best, int64_t ns) {
    best = best ? std::min(*best, ns) : ns;
  };
  for (const TracePart& part : parts)
    for (const TraceProcess& process : part.processes)
      for (const TraceEvent& e : process.events) {
        const auto from = e.kind == Kind::received ? sent.find(key_of(e)) : sent.end();
        if (from == sent.end() || from->second.part->host == part.host) continue;
        const int64_t ns = e.begin_ns - from->second.event->begin_ns;
        if (from->second.part->host == reference) shorten(hosts[part.host].there, ns);
        if (part.host == reference) shorten(hosts[from->second.part->host].back, ns);
      }
  std::map<std::string, int64_t> errors;
  for (const auto& [host, shortest] : hosts)
    if (shortest.there && shortest.back) errors[host] = (*shortest.there - *shortest.back) / 2;
  return errors;
}

}  // namespace

void align_clocks(std::vector<TracePart>& parts, std::vector<std::string>& notes) {
  const auto errors = clock_errors(parts);
  for (const auto& [host, ns] : errors)
    notes.push_back(fmt::format("the clock of {} is {:.3f} ms {} that of {}; corrected", host,
                                std::abs(static_cast<double>(ns)) / 1e6,
                                ns > 0 ? "ahead of" : "behind", parts.front().host));
  for (TracePart& part : parts)
    if (const auto error = errors.find(part.host); error != errors.end())
      for (TraceProcess& process : part.processes)
        for (TraceEvent& e : process.events) e.begin_ns -= error->second;
}

}  // namespace simplescale
