#include "actors/supervisor/console_commands.hpp"

#include <nlohmann/json.hpp>

#include "actors/supervisor/commands.hpp"
#include "actors/supervisor/status.hpp"
#include "runtime/observe/trace.hpp"

namespace simplescale::supervisor {

using namespace std::chrono_literals;

namespace {

bool is_later(const job::State& job, const InjectFault& fault) {
  return fault.step > job.committed_step + 1;
}

CommandReply execute_fault(Self* self, const InjectFault& fault) {
  JobSupervisorState& s = self->state;
  if (is_later(s.job, fault)) {
    s.planned.push_back(fault);
    perform(self, s.lead.replicate());
    return {true, "planned for step " + std::to_string(fault.step), ""};
  }
  if (const std::string why = inject(self, fault); !why.empty())
    return {false, "nothing was injected: " + why, ""};
  return {true, "injected " + fault.kind + (fault.target.empty() ? "" : " into " + fault.target),
          ""};
}

CommandReply execute_trace(Self* self, const Request::Trace& steps) {
  JobSupervisorState& s = self->state;
  if (!trace::on()) return {false, "metrics.trace_events is 0: nothing is recorded", ""};
  s.traces.choose(steps.first, steps.count);
  perform(self, s.lead.replicate());
  return {true, "`simplescale trace RUN` shows the steps once they are made", ""};
}

CommandReply execute(Self* self, const Request& request, const std::string& who) {
  if (request.fault) return execute_fault(self, *request.fault);
  if (request.trace) return execute_trace(self, *request.trace);
  for (const std::string& trainer : request.restart)
    to_node(self, node_of(trainer),
            KillTrainer{trainer, reason_of(ReasonKind::restarted, "restarted by " + who)});
  if (!request.save.empty()) to_node(self, node_of(request.save), SaveCheckpoint{request.save});
  if (!request.save.empty())
    return {true, "", nlohmann::json{{"after", self->state.job.committed_step}}.dump()};
  const std::string reason = request.event ? handle(self, *request.event) : "";
  return {true, reason.empty() ? "done" : reason, ""};
}

}  // namespace

void command(Self* self, const Command& command) {
  JobSupervisorState& s = self->state;
  auto promise = self->make_response_promise();
  const Request request = parse_command(s.job, command.words, command.who);
  if (!request.error.empty())
    return promise.deliver(
        CommandReply{false, request.error, request.early ? R"({"early":true})" : ""});
  if (!request.acts()) {
    auto reply = answer_question(s.job, s.incidents, s.lead.standby(), command.words);
    return promise.deliver(reply ? *reply : CommandReply{true, "", status_text(s, false)});
  }
  const bool dies =
      request.fault && request.fault->kind == "kill_supervisor" && !is_later(s.job, *request.fault);
  record(self, {"", "command", request.words, command.who});
  CommandReply reply = execute(self, request, command.who);
  const uint64_t number = ++s.commands;
  s.replies.emplace(number, JobSupervisorState::PendingReply{promise, std::move(reply), dies});
  s.options.journal->when_written([me = caf::actor_cast<caf::actor>(self), number](bool written) {
    caf::anon_send(me, CommandRecorded{number, written});
  });
  self->delayed_send(self, 2s, CommandRecorded{number, false});
}

void command_recorded(Self* self, const CommandRecorded& recorded) {
  JobSupervisorState& s = self->state;
  auto found = s.replies.extract(recorded.number);
  if (found.empty()) return;
  auto& [promise, reply, dies] = found.mapped();
  if (!recorded.written && s.lead.deposed())
    reply = {false,
             "another supervisor leads now; `events` shows whether the command was carried out",
             ""};
  else if (!recorded.written)
    reply.text += " (its event could not be written)";
  promise.deliver(std::move(reply));
  if (dies) self->delayed_send(self, 20ms, local::Die{});
}

}  // namespace simplescale::supervisor
