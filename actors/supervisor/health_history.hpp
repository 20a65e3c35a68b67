// Health reports of the nodes: the newest report of each node for the status document, one line a
// minute in the run's health.jsonl, and the last reports in memory. Those are also written when an
// incident begins at the node.
//
// Owned by the supervisor actor, called on its thread; the journal's thread writes the lines.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "actors/supervisor/journal.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// A line of health.jsonl. time: seconds since the epoch.
nlohmann::json health_line(const NodeHealth& report, double time);

class HealthHistory {
 public:
  static constexpr size_t kKept = 120;  // reports of a node in memory; two minutes at one a second

  /// now_ms: monotonic clock. time: seconds since the epoch.
  void add(const NodeHealth& report, int64_t now_ms, double time, Journal& journal);
  /// Writes the node's reports that are in memory. The file may already have newer lines of the
  /// node, so it is not in order of time.
  void write(const std::string& node, Journal& journal);
  /// The newest report of a node as JSON; "null" before the first. Like a line of health.jsonl, but
  /// with the busiest trainer only, because a status with thousands of trainers must stay short.
  const std::string& text(const std::string& node) const;

 private:
  struct Node {
    std::deque<std::pair<double, NodeHealth>> unwritten;  // the newest last
    std::string text;
    int64_t written_ms = 0;
    bool written = false;
  };
  std::map<std::string, Node> nodes_;
};

}  // namespace simplescale
