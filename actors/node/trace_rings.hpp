// The trace rings (runtime/observe/trace.hpp) of a node's processes: of the agent, of the trainer
// processes, and of the processes that ended last, whose rings stay readable. Used only by the node
// actor.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/observe/trace_parts.hpp"

namespace simplescale {

class TraceRings {
 public:
  /// Opens the ring of a process ("n1/p2") that is up; does nothing if tracing is off.
  void process_up(const std::string& process, int64_t pid, const std::string& segment);
  /// Keeps the ring of an ended process under `name`: the trainer that it was ("n1.0"), or its own
  /// id.
  void process_ended(const std::string& process, const std::string& name);
  /// All rings, for write_trace_part(). node: "n1"; name_of: returns the trainer that a process is
  /// now.
  std::vector<TraceSource> sources(
      const std::string& node,
      const std::function<std::string(const std::string& process)>& name_of) const;

 private:
  static constexpr size_t kEndedKept = 16;
  std::map<std::string, TraceSource> living_;
  std::deque<TraceSource> ended_;  // the newest last
};

}  // namespace simplescale
