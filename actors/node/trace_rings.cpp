#include "actors/node/trace_rings.hpp"

#include <unistd.h>

#include "runtime/base/log.hpp"

namespace simplescale {

void TraceRings::process_up(const std::string& process, int64_t pid, const std::string& segment) {
  if (!trace::on()) return;
  auto reader = trace::Reader::open(segment);
  if (!reader.ok()) return log::warn("no traces of {}: {}", process, reader.status().message());
  living_[process] = {process, pid, reader.take()};
}

void TraceRings::process_ended(const std::string& process, const std::string& name) {
  auto entry = living_.extract(process);
  if (entry.empty()) return;
  entry.mapped().process = name;
  entry.mapped().ended_ns = trace::now_ns();
  ended_.push_back(std::move(entry.mapped()));
  if (ended_.size() > kEndedKept) ended_.pop_front();
}

std::vector<TraceSource> TraceRings::sources(
    const std::string& node,
    const std::function<std::string(const std::string& process)>& name_of) const {
  std::vector<TraceSource> sources;
  if (auto own = trace::Reader::own(); own.ok())
    sources.push_back({node + " agent", getpid(), own.take()});
  for (const auto& [process, source] : living_) {
    sources.push_back(source);
    sources.back().process = name_of(process);
  }
  sources.insert(sources.end(), ended_.begin(), ended_.end());
  return sources;
}

}  // namespace simplescale
