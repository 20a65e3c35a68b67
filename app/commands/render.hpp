// Renders the run folder's JSON documents as text for the terminal. Pure functions. A field that is
// missing or has the wrong type is left out; control characters in texts become blanks, and other
// contents are not trusted either.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace simplescale {

struct RenderOptions {
  bool color = false;
  size_t columns = 0;  // longer lines are cut; 0: not cut
  double now_s = 0;    // seconds since the epoch, for ages; 0: no ages
};

/// Two lines: state, step, loss and rate of the run; its supervisor and standby. While it trains,
/// between them: time of a step, age of the newest one, time that is left. document: status.json,
/// here and below.
std::string render_status(const nlohmann::json& document, const RenderOptions& options);
/// render_status(), then a tree of groups, nodes and trainers; nodes in no group last.
std::string render_tree(const nlohmann::json& document, const RenderOptions& options);
/// At most `rows` lines of what matters now: state; a stall; the tree if it fits, else the nodes
/// that differ and a line for each group; the newest incidents; the newest events.
std::string render_watch(const nlohmann::json& document, const std::vector<nlohmann::json>& events,
                         size_t rows, const RenderOptions& options);
/// A table with a line for each node.
std::string render_nodes(const nlohmann::json& document, const RenderOptions& options);
/// A line for each event. events: of events.jsonl, here and below.
std::string render_events(const std::vector<nlohmann::json>& events, const RenderOptions& options);
/// A line for each event of one incident, and its summary last.
std::string render_incident(const std::vector<nlohmann::json>& events,
                            const RenderOptions& options);

/// A table with a line for each node that was checked, and the verdict. event: of kind "diagnosed".
std::string render_diagnosis(const nlohmann::json& event, const RenderOptions& options);

}  // namespace simplescale
