// Describes an incident in English: what went wrong, what was done, what it cost, and how to avoid
// the cost. Turns facts into text; pure functions, any thread. The summary of an incident, the
// console's `why` and `plan`, the terminal and the page show these sentences;
// tests/actors/supervisor/sentences.txt has one of each sort.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

/// An incident as far as it is known.
struct IncidentFacts {
  // What went wrong: the fields of the most informative record.
  std::string kind, subject;
  Reason reason;
  std::vector<std::string> also;  // further trainers and nodes that failed in the same incident
  std::string cause;              // root cause that was found in a log; or ""
  // What was done. groups: how many trained before and after, of so many nodes (0: not known).
  int joins = 0;  // generations that have begun; if more than 1, some of them committed no step
  Layout before, after;
  int groups_before = 0, groups_after = 0;
  int nodes_before = 0, nodes_after = 0;
  std::string origin;                 // where the state came from, in the words of origin_of()
  std::vector<std::string> returned;  // lost nodes that came back
  std::vector<std::string> skipped;   // checkpoints that could not be used
  std::string successor;              // the node of the next supervisor
  bool stood_by = false;              // that supervisor was the standby
  // What it cost.
  uint64_t begins_at = 0;  // the step whose state the next generation began with
  uint64_t undone = 0;     // committed steps that were rolled back and have to be made again
  int64_t ms = -1;         // until the next committed step; -1: the incident is not over
  std::string avoid;       // settings with which a lost node costs less; "" if there are none
};

/// Adds the facts of one record of the incident. state: after the decision that made the record.
void add(IncidentFacts& facts, const State& state, const Record& record);

/// "Trainer n1.0 was killed (signal 9). It was replaced, and training went on with step 51: no step
/// was lost. Stopped for 0.3 s."
std::string sentence(const IncidentFacts& facts);

/// What would follow, for `plan`: "it is replaced, and training goes on with step 51: no step is
/// lost." Without what went wrong and how long it takes.
std::string forecast(const IncidentFacts& facts);

/// "Trainer n1.0 was killed (signal 9)", from the fields of a record that begins an incident.
std::string what_failed(const std::string& kind, const std::string& subject, const Reason& reason);

/// Makes the reason of NodeLost from the transport's reason; nothing: the agent has ended.
/// Example: "its agent was silent for 5003 ms". Users can so tell a cut network from a crash.
Reason why_node_lost(const std::optional<Reason>& why);

}  // namespace simplescale::job
