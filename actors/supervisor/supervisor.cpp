#include "actors/supervisor/supervisor.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "actors/checkpoint/uploader.hpp"
#include "actors/clock.hpp"
#include "actors/essential.hpp"
#include "actors/supervisor/carry_out.hpp"
#include "actors/supervisor/console_commands.hpp"
#include "actors/supervisor/ended_agents.hpp"
#include "actors/supervisor/idle_event.hpp"
#include "actors/supervisor/take_over.hpp"
#include "runtime/base/log.hpp"
#include "runtime/config/risk.hpp"
#include "runtime/diagnostics/diagnose.hpp"
#include "transport/caf/address.hpp"
#include "transport/caf/transport.hpp"

namespace simplescale {

namespace supervisor {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr auto kTick = 100ms;
constexpr int64_t kStatusMs = 1'000;        // longest time between two status documents
constexpr int64_t kTrainingStatusMs = 200;  // shortest, if only steps are committed

// --- Nodes ---

void node_hello(Self* self, const NodeHello& hello) {
  JobSupervisorState& s = self->state;
  const auto agent = caf::actor_cast<caf::actor>(self->current_sender());
  s.agents[hello.node] = {hello.host, hello.pid, hello.address, true,
                          remote::visible_pid(self->node(), agent.node())};
  s.handles[hello.node] = agent;
  self->monitor(agent);
  s.lead.node_joined(hello.node, now_ms(self));
  self->send(agent, s.lead.announcement(s.options.journal->marked()));
  handle(self, job::NodeUp{hello.node, hello.pid, hello.data_address, hello.instructions,
                           hello.run_instructions});
}

void node_health(Self* self, const NodeHealth& report) {
  JobSupervisorState& s = self->state;
  if (s.job.nodes.contains(report.node))
    s.health.add(report, now_ms(self), wall_time_s(), *s.options.journal);
}

void log_found(Self* self, LogFound found) {
  constexpr size_t kTextMax = 400;
  JobSupervisorState& s = self->state;
  if (!s.job.nodes.contains(found.node)) return;
  const bool trainer = s.job.trainers.contains(found.subject);
  if (!trainer) found.subject = found.node;
  if (found.text.size() > kTextMax) found.text.resize(kTextMax);
  const json line = s.incidents.log_rule_line(s.job, found, now_ms(self));
  append_event(self, line);
  log::info("log_rule {}: {}", found.subject, line["reason"].get<std::string>());
  if (found.action == "diagnose")
    handle(self, job::Suspected{trainer ? found.subject : trainer_name(found.node, 0),
                                found.rule + ": " + found.text});
}

void connection_lost(Self* self, const caf::down_msg& down) {
  JobSupervisorState& s = self->state;
  if (s.standby && down.source == s.standby.address())
    return perform(self, s.lead.standby_lost(s.job, s.agents, now_ms(self)));
  const auto lost = std::ranges::find_if(
      s.handles, [&](const auto& entry) { return entry.second.address() == down.source; });
  if (lost == s.handles.end()) return;
  const std::string node = lost->first;
  s.agents[node].connected = false;
  s.handles.erase(lost);
  handle(self, job::NodeLost{node, job::why_node_lost(why_lost(down.reason))});
}

// --- Diagnosis ---

/// Reports the node to the scheduler (JobOptions::diagnosis_failed), and records the result.
void report_unfit(Self* self, const Examined& node) {
  const JobSupervisorState& s = self->state;
  if (!s.options.diagnosis_failed) return;
  const json line = s.incidents.event_line(s.job, {"", "", node.node, ""}, now_ms(self));
  self->spawn<caf::detached>([tell = s.options.diagnosis_failed, journal = s.options.journal, line,
                              host = s.agents.at(node.node).host,
                              wrong = node.wrong](caf::event_based_actor*) {
    const auto [kind, text] = tell(host, wrong);
    if (kind.empty()) return;
    json event = line;
    event["kind"] = kind;
    event["reason"] = text;
    journal->append("events.jsonl", event);
  });
}

void judge(Self* self, const std::vector<Examined>& examined) {
  JobSupervisorState& s = self->state;
  for (const Examined& node : examined) {
    json line =
        s.incidents.event_line(s.job, {"", "checked", node.node, table(node.checks)}, now_ms(self));
    line["checks"] = to_json(node.checks);
    append_event(self, line);
    if (s.diagnosis.retry_links(node, s.job, s.agents)) {
      examine(self, {node.node, "its links are measured once more"});
      continue;
    }
    handle(self, NodeChecked{node.node, node.wrong.empty(), node.wrong});
    const auto judged = s.job.nodes.find(node.node);  // it may be removed by now
    if (!node.wrong.empty() && judged != s.job.nodes.end() &&
        judged->second.state == job::NodeState::drained)
      report_unfit(self, node);
  }
}

void node_checked(Self* self, const NodeChecked& checked) {
  JobSupervisorState& s = self->state;
  if (s.job.nodes.contains(checked.node))
    judge(self, s.diagnosis.report(checked, s.job, s.agents, now_ms(self)));
}

// --- Trainers ---

void trainer_idle(Self* self, const TrainerIdle& idle) {
  JobSupervisorState& s = self->state;
  if (idle.state_hash != 0) s.steps.hashed(idle.trainer, idle.step, idle.state_hash);
  if (idle.fault == Fault::mismatch) s.steps.mismatch(idle.step);
  handle(self, idle_event(s, idle, now_ms(self)));
}

// --- Stalls ---

void node_progress(Self* self, const NodeProgress& report) {
  for (const TrainerProgress& p : report.trainers) self->state.stalls.report(now_ms(self), p);
}

void watch_stall(Self* self) {
  JobSupervisorState& s = self->state;
  const int64_t now = now_ms(self);
  if (s.stalls.ask(now, s.job)) to_nodes(self, ReportProgress{s.job.generation});
  if (const auto hung = s.stalls.hung(now, s.job)) handle(self, *hung);
}

// --- Steps ---

void tell_copied(Self* self) {
  if (const auto step = self->state.copy_rounds.completed(self->state.job))
    log::info("all shards of step {} are in the memory of peer nodes", *step);
}

/// Orders nodes to send copies of the step before to peer nodes, if a round of copies is due.
void copy_to_peers(Self* self, uint64_t step) {
  JobSupervisorState& s = self->state;
  tell_copied(self);
  const bool lacked = s.copy_rounds.lacking();
  auto order = s.copy_rounds.committed(now_ms(self), s.job, step, s.steps.begun_at());
  if (s.copy_rounds.lacking() && !lacked)
    record(self, {"", "no_peer", "", "there is no other node that could keep a copy of a shard"});
  if (!order) return;
  for (CopyTask& task : order->copies)
    if (auto found = s.agents.find(task.node); found != s.agents.end())
      task.address = found->second.address;
  to_nodes(self, std::move(*order));
}

void commit(Self* self, const ReportedStep& reports) {
  JobSupervisorState& s = self->state;
  const uint64_t step = reports.newest.step;
  const int64_t now = now_ms(self);
  s.steps.measure(reports);
  s.stalls.committed(now);
  handle(self, job::StepCommitted{reports.newest.generation, step});
  record_step(self, reports);
  inject_due(self, step);
  copy_to_peers(self, step);
  for (const Anomaly& a :
       s.anomalies.step(step, reports.newest.loss, reports.newest.grad_norm, reports.busy_ms))
    record(self, {"", a.kind, a.subject, a.reason});
  for (const Anomaly& a : s.anomalies.experts(step, reports.experts))
    record(self, {"", a.kind, a.subject, a.reason});
  if (auto speeds = s.anomalies.take_speeds(); s.job.balance && !speeds.empty())
    handle(self, job::SpeedsMeasured{reports.newest.generation, std::move(speeds),
                                     s.anomalies.stragglers()});
  const auto ended_ns = static_cast<int64_t>(std::clamp(reports.first_time, 0.0, 4e9) * 1e9);
  write_traces(self, s.traces.committed(step, ended_ns, wall_ns()));
  if (now - s.status_ms >= kTrainingStatusMs) publish_status(self);
}

void commit_complete(Self* self) {
  while (const auto step = self->state.steps.take_complete()) commit(self, *step);
}

void step_done(Self* self, const StepDone& done) {
  JobSupervisorState& s = self->state;
  // Reports that come after a fence still show which steps the old generation made, but they
  // complete no step.
  if (!s.steps.report(done) || done.generation != s.job.generation) return;
  for (const std::string& trainer : s.steps.wrong_states(done))
    handle(self, job::Suspected{
                     trainer, "its state of step " + std::to_string(done.step - 1) + " was wrong"});
  commit_complete(self);
}

void validated(Self* self, const Validated& result) {
  JobSupervisorState& s = self->state;
  const auto& members = s.steps.members();
  if (result.generation != s.job.generation || members.empty() ||
      result.trainer != members.front().trainer)
    return;
  self->send(s.publisher, local::StepValidated{result.step, result.loss});
  if (s.steps.is_past(result.step)) return;  // a repeated report, for the checkpoint of that step
  const bool known = s.steps.knows(result);
  if (const auto line = s.steps.validated(result))
    s.options.journal->append(line->file, line->json);
  commit_complete(self);
  const json shown = s.steps.members_of(result);
  const bool has_loss = shown.contains("val_loss"), has_scores = shown.contains("tasks");
  std::string text = !has_loss                 ? ""
                     : std::isnan(result.loss) ? "no validation loss"
                                               : fmt::format("validation loss {:.4f}", result.loss);
  if (has_scores) text += (has_loss ? ", " : "") + task_text(shown["tasks"]);
  if (known)
    return log::info("step {}: {}, as recorded before; training begins there", result.step, text);
  const char* reason = !has_scores ? "validation loss"
                       : has_loss  ? "validation loss and scores of tasks"
                                   : "scores of tasks";
  json line = s.incidents.event_line(s.job, {"", "validated", "", reason}, now_ms(self));
  line["step"] = result.step;
  line.update(shown);
  append_event(self, line);
  for (const Anomaly& a :
       validated_nothing(result.step, result.targets, s.options.plan.mixture.names))
    record(self, {"", a.kind, a.subject, a.reason});
  log::info("step {}: {}", result.step, text);
}

// --- Copies and checkpoints ---

void peer_copies(Self* self, const PeerCopies& held) {
  handle(self, held);
  tell_copied(self);
}

void copy_sent(Self* self, const CopySent& sent) {
  log::debug("shard {} of step {} {} its peer after {:.1f} ms{}{}", sent.shard, sent.step,
             sent.error.empty() ? "reached" : "did not reach", sent.ms,
             sent.error.empty() ? "" : ": ", sent.error);
  self->state.copy_rounds.ended(sent);
  tell_copied(self);
}

void publish_shards(Self* self) {
  JobSupervisorState& s = self->state;
  for (const ShardSaved& shard :
       take_publishable(s.unpublished, s.job, s.options.journal->marked())) {
    self->send(
        s.publisher,
        local::ShardWritten{shard.generation, shard.step, s.options.plan.batch.samples(shard.step),
                            shard.record, shard.error, shard.shard, shard.shards});
    if (s.written.add(shard)) handle(self, job::CheckpointWritten{shard.step, shard.generation});
  }
}

void published(Self* self, const local::Published& published) {
  // SIGNATURE-1: what trainers choose in the first steps of a run completes it; later it changes.
  if (std::string& known = self->state.options.signature;
      !published.signature.empty() && published.signature != known) {
    if (self->state.job.has_checkpoint)
      record(self, {"", "changed", "signature",
                    "was " + known + " and is now " + published.signature +
                        ": it has what trainers have chosen since this start (control/products)"});
    known = published.signature;
  }
  if (published.error.empty())
    handle(self, job::CheckpointSaved{published.step, published.generation});
  else
    handle(self, job::CheckpointFailed{published.step, published.error, published.generation});
}

void uploaded(Self* self, const local::Uploaded& result) {
  const std::string& url = self->state.options.config.checkpoint.upload;
  if (!result.error.empty())
    return record(self, {"", "upload_failed", "", result.error + "; it is tried again"});
  for (const uint64_t step : result.steps)
    record(self, {"", "checkpoint_uploaded", "", "step " + std::to_string(step) + " is in " + url});
}

// --- Leadership ---

void standby_hello(Self* self, const StandbyHello& hello) {
  JobSupervisorState& s = self->state;
  const auto standby = caf::actor_cast<caf::actor>(self->current_sender());
  if (!standby) return;
  const Leadership::Actions actions = s.lead.accept_standby(hello, s.job);
  if (actions.empty()) return self->send(standby, Shutdown{0, "no standby is wanted"});
  s.standby = standby;
  self->monitor(standby);
  perform(self, actions);
}

void replica_kept(Self* self, const ReplicaKept& kept) {
  JobSupervisorState& s = self->state;
  if (s.standby && self->current_sender() == s.standby)
    perform(self, s.lead.replica_stored(kept.sequence));
}

void lead(Self* self) {
  JobSupervisorState& s = self->state;
  if (s.lead.deposed()) return;
  const int64_t now = now_ms(self);
  perform(self, s.lead.tick(s.job, s.agents, now));
  if (s.options.journal->marked() != s.announced_step) announce(self);
  for (const job::Event& missing : s.lead.missing_nodes(now)) handle(self, missing);
  perform(self, s.lead.end_if_due(s.job, s.agents, now));
}

// --- Time ---

void tick(Self* self) {
  JobSupervisorState& s = self->state;
  notice_stop(self);
  publish_shards(self);
  self->delayed_send(self, kTick, local::Tick{});
  lead(self);
  for (const job::NodeLost& ended : job::ended_agents(s.job, s.agents, process_state))
    handle(self, ended);
  handle(self, job::Tick{});
  watch_stall(self);
  judge(self, s.diagnosis.take_due(s.job, s.agents, now_ms(self)));
  if (s.status_due || now_ms(self) - s.status_ms >= kStatusMs) publish_status(self);
}

/// Records that all processes of the last start died: an incident, from its newest record to the
/// first step of this start.
void record_death(Self* self, const JobOptions::Died& died) {
  JobSupervisorState& s = self->state;
  const int64_t now = now_ms(self);
  const auto away_ms =
      static_cast<int64_t>(std::clamp(wall_time_s() - died.newest_time, 0.0, 1e9) * 1e3);
  const auto record = [&](const job::Record& record) {
    const json at = {{"step", died.step}};
    append_event(self, s.incidents.record(s.job, record, now, at, now - away_ms).line);
  };
  s.job.incident = true;  // the first committed step ends it
  record({"detect", "run_died", "", "no process of the last start has recorded its end"});
  if (died.step > s.job.checkpoint_step)
    record({"",
            "steps_undone",
            std::to_string(died.step - s.job.checkpoint_step),
            {"no checkpoint has them"},
            died.step - s.job.checkpoint_step});
}

void start(Self* self, JobOptions options) {
  JobSupervisorState& s = self->state;
  s.options = std::move(options);
  const Config& config = s.options.config;
  LeadershipOptions& o = s.options.leadership;
  const int64_t now = now_ms(self);
  s.job = initial_state(s.options);
  s.job.waiting_since_ms = s.seen_ms = now;
  s.stored_rates = s.job.rates;
  s.stored_instructions = s.options.recorded_instructions;
  s.publisher = spawn_publisher(self->system(), caf::actor_cast<caf::actor>(self),
                                publisher_options(s.options));
  const UploaderOptions upload{config, s.options.run, s.options.leads};
  s.uploader = spawn_uploader(self->system(), caf::actor_cast<caf::actor>(self), upload);
  self->attach_functor([publisher = s.publisher, uploader = s.uploader,
                        stopped = upload.stopped](const caf::error&) {
    *stopped = true;
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
    if (uploader) caf::anon_send_exit(uploader, caf::exit_reason::user_shutdown);
  });
  s.lead = Leadership({o.term, s.options.node, o.address, o.elected, config.cluster.join_timeout_ms,
                       config.supervision.shutdown_ms},
                      now);
  s.steps = StepLedger(config, s.options.plan, s.options.recorded_step);
  s.steps.set_validations(s.options.validations);
  s.steps.set_padding(s.options.padding);
  s.planned = planned_faults(s.options);
  s.traces = TracePlan(config.metrics.trace_steps, config.metrics.trace_recoveries);
  s.incidents = Incidents(s.options.incidents, risk_of(config, s.options.plan).avoid);
  s.copy_rounds =
      job::CopyRounds(static_cast<uint64_t>(peer_every_steps(config, s.options.plan.topology)));
  if (!o.state) {
    if (s.options.died) record_death(self, *s.options.died);
    for (const std::string& why : s.options.skipped)
      record(self, {"", "checkpoint_skipped", "", why});
    const auto record_start = [self, &s](job::Record record) {
      json line = s.incidents.event_line(s.job, record, now_ms(self));
      line["step"] = s.job.checkpoint_step;  // no generation has begun with this checkpoint yet
      append_event(self, line);
    };
    for (const auto& [key, reason] : s.options.changes) record_start({"", "changed", key, reason});
    record_start({"", "started", "",
                  !s.options.parent.empty() ? "begins with the weights of " + s.options.parent
                  : s.job.has_checkpoint
                      ? "resumes from step " + std::to_string(s.job.checkpoint_step)
                      : ""});
  }
  const json identity = {{"term", o.term}, {"address", o.address}, {"instance", o.instance}};
  s.options.journal->replace("control/supervisor.json", identity.dump(1) + "\n", false);
  if (o.state) take_over(self, *std::exchange(o.state, std::nullopt));
  self->delayed_send(self, kTick, local::Tick{});
}

}  // namespace
}  // namespace supervisor

caf::behavior job_supervisor(supervisor::Self* self, JobOptions options) {
  end_process_with(self, "supervisor");
  using namespace supervisor;
  start(self, std::move(options));
  self->set_down_handler([self](const caf::down_msg& down) { connection_lost(self, down); });
  return {
      // Nodes.
      [self](const NodeHello& m) { node_hello(self, m); },
      [self](const NodeHealth& m) { node_health(self, m); },
      [self](const NodeProgress& m) { node_progress(self, m); },
      [self](LogFound& m) { log_found(self, std::move(m)); },
      [self](const NodeChecked& m) { node_checked(self, m); },
      // Trainers.
      [self](const TrainerUp& m) { handle(self, m); },
      [self](const TrainerDown& m) { handle(self, m); },
      [self](const TrainerIdle& m) { trainer_idle(self, m); },
      [self](const TrainerReady& m) { handle(self, m); },
      [self](const StepDone& m) { step_done(self, m); },
      [self](const Validated& m) { validated(self, m); },
      [self](const TrainerFinished& m) { handle(self, m); },
      // Copies and checkpoints.
      [self](const PeerCopies& m) { peer_copies(self, m); },
      [self](const CopySent& m) { copy_sent(self, m); },
      [self](const ShardSaved& m) {
        self->state.unpublished.push_back(m);
        publish_shards(self);
      },
      [self](const local::CheckpointsLeft& m) { handle(self, job::CheckpointsLeft{m.steps}); },
      [self](const local::Published& m) { published(self, m); },
      [self](const local::Uploaded& m) { uploaded(self, m); },
      // The console, and the launcher.
      [self](const Command& m) { command(self, m); },
      [self](const CommandRecorded& m) { command_recorded(self, m); },
      [self](const RequestStop& m) {
        const bool requeue = m.exit_code == exit_code(Code::requeue);
        handle(self, job::StopRequested{requeue ? Code::requeue : Code::ok, m.reason, m.now});
      },
      // Leadership.
      [self](const StandbyHello& m) { standby_hello(self, m); },
      [self](const ReplicaKept& m) { replica_kept(self, m); },
      [self](const local::TermSeen& m) {
        JobSupervisorState& s = self->state;
        perform(self, s.lead.term_seen(m, s.job, s.agents, now_ms(self)));
      },
      [self](const local::WaitedLongEnough& m) {
        JobSupervisorState& s = self->state;
        perform(self, s.lead.timed_out(m.sequence, s.job, s.agents));
      },
      [](const local::Die&) { kill(getpid(), SIGKILL); },
      [self](const InjectFault& fault) { to_node(self, node_of(fault.target), fault); },
      [self](const local::Tick&) { tick(self); },
  };
}

}  // namespace simplescale
