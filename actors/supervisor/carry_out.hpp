// What the supervisor actor does: it has events decided, carries out decisions, and does what
// Leadership returns. Functions on the supervisor actor's state, run by that actor.
#pragma once

#include <caf/all.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "actors/supervisor/supervisor.hpp"

namespace simplescale::supervisor {

using Self = caf::stateful_actor<JobSupervisorState>;

/// Sends to a node's agent. False: the agent is not connected, or the node is behind
/// (Leadership::behind).
template <class Message>
bool to_node(Self* self, const std::string& node, const Message& message) {
  const auto found = self->state.handles.find(node);
  if (found == self->state.handles.end() || self->state.lead.behind(node)) return false;
  self->send(found->second, message);
  return true;
}

/// Sends to all connected agents whose nodes are not behind. They share one message, so the
/// transport encodes it once.
template <class Message>
void to_nodes(Self* self, Message message) {
  const caf::message content = caf::make_message(std::move(message));
  for (const auto& [node, agent] : self->state.handles)
    if (!self->state.lead.behind(node)) self->send(agent, content);
}

/// JOB-4: finds out whether this process was stopped, as by `scontrol suspend`, and excludes that
/// time from all waits, because the nodes may have been stopped, too. Call it at each tick and
/// before each decision.
void notice_stop(Self* self);
/// Lets decide() decide `event`, and returns the decision's reason, or "" if the event waits for an
/// earlier decision. Its actions are carried out as soon as leadership.hpp allows it.
std::string handle(Self* self, const job::Event& event);
/// Does what Leadership returns.
void perform(Self* self, const Leadership::Actions& actions);
/// Tells all nodes which process leads, and which step is recorded. Nodes that are behind get this,
/// too: if the supervisor is lost, a node gives the standby that it knows of time to take over.
void announce(Self* self);

/// Orders a node to examine itself and its links.
void examine(Self* self, const job::CheckNode& check);
/// Records an event in events.jsonl, in the log and in the current incident.
void record(Self* self, const job::Record& record);
void append_event(Self* self, const nlohmann::json& line);
/// Appends a committed step's lines to the records.
void record_step(Self* self, const ReportedStep& step);
/// Appends the lines of all steps up to `step` that the records lack. A generation begins with
/// `step`, so all these steps are committed.
void record_up_to(Self* self, uint64_t step);
/// Orders nodes and this process to write the traces of these windows of time.
void write_traces(Self* self, const std::vector<TraceWindow>& windows);
/// Writes the status document, less often the more trainers the run has. last: in any case.
void publish_status(Self* self, bool last = false);

/// Writes control/end.json: how this start of the run ended.
void record_end(Self* self, int exit_code, const std::string& reason);

/// Injects a fault now and records it. Returns why the fault cannot be injected, or "".
/// "kill_supervisor" is only recorded; the caller ends the process.
std::string inject(Self* self, const InjectFault& fault);
/// Injects the planned faults of the step after `committed`.
void inject_due(Self* self, uint64_t committed);

/// Nanoseconds since the epoch, by the clock of traces.
int64_t wall_ns();

}  // namespace simplescale::supervisor
