// The run folder's documents and lines as text for people: pure functions of JSON. What a document lacks is
// left out; nothing in it is trusted.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace simplescale {

struct Look {
  bool color = false;
  size_t columns = 0;  // longer lines are cut; 0: never
};

/// The first lines of the others: state, step, loss, rate; who supervises. document: status.json.
std::string render_status(const nlohmann::json& document, const Look& look);
/// Groups, their nodes and trainers; spares and others last.
std::string render_tree(const nlohmann::json& document, const Look& look);
/// A line for each node.
std::string render_nodes(const nlohmann::json& document, const Look& look);
/// A line for each event (of events.jsonl).
std::string render_events(const std::vector<nlohmann::json>& events, const Look& look);
/// The lines of one incident: phase by phase, and its summary.
std::string render_incident(const std::vector<nlohmann::json>& events, const Look& look);

/// A diagnosis (an event "diagnosed"): a line for each node, and what is wrong.
std::string render_diagnosis(const nlohmann::json& event, const Look& look);

}  // namespace simplescale
