// How the nodes are and were: the newest of each for the status, a line a minute in the run's
// health.jsonl, and the last two minutes by the second in memory, which are written when something
// happens to the node. Owned by the supervisor actor.
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
  static constexpr size_t kKept = 120;  // reports of a node in memory

  /// now_ms: of a clock that does not jump.
  void add(const NodeHealth& report, int64_t now_ms, double time, Journal& journal);
  /// Writes what is in memory and not in the file yet. In the file the lines of a node are then not
  /// in order of time.
  void write(const std::string& node, Journal& journal);
  /// JSON, "null" before the first report: as a line, but of its trainers only the one that is
  /// busiest. A status with thousands of trainers has to stay short.
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
