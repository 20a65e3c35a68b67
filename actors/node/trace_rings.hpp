// The rings of events (runtime/observe/trace.hpp) of a node's processes: of the agent itself, of its
// trainers' processes, and of those that ended lately. The node actor's; nothing here blocks but
// what it says.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/exports/trace_parts.hpp"

namespace simplescale {

class TraceRings {
 public:
  /// A process ("n1/p2") is up, and keeps its events in this segment, if it keeps any.
  void up(const std::string& process, int64_t pid, const std::string& segment);
  /// It is dead, or about to be; name: who it was, "n1.0" or its own.
  void ended(const std::string& process, const std::string& name);
  /// For write_trace_part(). node: "n1"; name_of: who a process is now.
  std::vector<TraceSource> sources(
      const std::string& node,
      const std::function<std::string(const std::string& process)>& name_of) const;

 private:
  static constexpr size_t kEndedKept = 16;
  std::map<std::string, TraceSource> living_;
  std::deque<TraceSource> ended_;  // the newest last
};

}  // namespace simplescale
