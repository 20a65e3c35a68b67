#include "actors/supervisor/supervisor.hpp"

#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <set>

#include "actors/clock.hpp"
#include "actors/supervisor/commands.hpp"
#include "actors/supervisor/records.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/observe/trace.hpp"

namespace simplescale {

namespace {
/// The journal's thread, or a clock -> supervisor: the event of a console's command is in the file,
/// or not.
struct CommandRecorded {
  uint64_t number;
  bool written;
};
}  // namespace

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::CommandRecorded)

namespace simplescale {

namespace {

using Self = caf::stateful_actor<JobState>;
using namespace std::chrono_literals;
using nlohmann::json;

constexpr size_t incidents_kept = 1000;

/// One content for all, so that the transport encodes a large one only once.
template <class Message>
void to_nodes(Self* self, Message message) {
  const caf::message content = caf::make_message(std::move(message));
  for (auto& [name, node] : self->state.nodes)
    if (node.handle) self->send(node.handle, content);
}

template <class Message>
bool to_node(Self* self, const std::string& name, const Message& message) {
  auto found = self->state.nodes.find(name);
  if (found == self->state.nodes.end() || !found->second.handle) return false;
  self->send(found->second.handle, message);
  return true;
}

int64_t wall_ns() {
  return trace::now_ns() + trace::wall_offset_ns();
}

/// Nodes write what they did in these windows of time, and so do we.
void write_traces(Self* self, const std::vector<TraceWindow>& windows) {
  if (!trace::on()) return;
  for (const TraceWindow& window : windows) {
    for (const std::string& node : self->state.traces.writers(window, self->state.job.node_order))
      to_node(self, node, WriteTrace{window.name, window.begin_ns, window.end_ns});
    self->spawn<caf::detached>([run = self->state.options.run, window](caf::event_based_actor*) {
      write_own_trace(run, window, "supervisor");
    });
  }
}

/// The more trainers a document has, the less often there is a new one; the last one always.
void publish_status(Self* self, bool last = false) {
  constexpr size_t kTrainersPerMs = 16;
  JobState& s = self->state;
  const int64_t now = now_ms(self);
  const auto every_ms = static_cast<int64_t>(s.job.trainers.size() / kTrainersPerMs);
  s.status_due = !last && now - s.status_at_ms < every_ms;
  if (s.status_due) return;
  s.status_at_ms = now;
  s.options.journal->replace("control/status.json", status_text(s, true) + "\n");
}

// --- Steps ---

/// Lines for a step that every trainer has applied.
void record_step(Self* self, uint64_t step, const JobState::Step& reports) {
  JobState& s = self->state;
  const int64_t now = now_ms(self);
  // By the trainers' own clocks, where they know: messages take their time, and come in bunches.
  const double since_s = reports.any.time - s.committed_time;
  const double step_ms = s.committed_time > 0 && since_s > 0
                             ? 1e3 * since_s
                             : static_cast<double>(now - s.committed_at_ms);
  s.committed_time = reports.any.time;
  s.options.journal->append("metrics.jsonl", metrics_line(s, reports.any, step_ms));
  if (s.options.config.data.ledger)
    for (const auto& [trainer, samples] : reports.samples)
      s.options.journal->append("ledger.jsonl",
                                ledger_line(reports.any.generation, step, trainer, samples));
  s.options.journal->mark(step);
  s.recorded_step = step;
  s.committed_at_ms = now;
}

std::vector<uint64_t> samples_of(Self* self, const job::Place& place, uint64_t step) {
  const JobState& s = self->state;
  return simplescale::samples_of(s.options.plan, s.groups, place.group, place.shard, step);
}

/// A generation begins at `step`, of which every shard has a copy: it is committed, also if a
/// trainer died before it could report it. What it trained is known from the plan.
void settle_records(Self* self, uint64_t step) {
  JobState& s = self->state;
  if (!s.recorded_step || step < *s.recorded_step) {
    s.recorded_step = step;
    s.options.journal->mark(step);
  }
  while (*s.recorded_step < step) {
    const uint64_t next = *s.recorded_step + 1;
    JobState::Step reports;
    if (auto found = s.pending.find(next); found != s.pending.end()) {
      reports = found->second;
    } else {
      reports.any.generation = s.members_generation;  // that made it
      reports.any.step = next;
      reports.any.loss = reports.any.grad_norm = std::nan("");
      reports.any.learning_rate = s.options.plan.learning_rate.at(static_cast<int64_t>(next) - 1);
    }
    for (const job::Place& place : s.members)
      if (!reports.samples.contains(place.trainer))
        reports.samples[place.trainer] = samples_of(self, place, next);
    record_step(self, next, reports);
    write_traces(self, s.traces.committed(next, wall_ns(), wall_ns()));
  }
  s.pending.clear();
}

// --- Faults on purpose ---

/// False: the target is not there. How a supervisor dies is its caller's business.
bool inject(Self* self, const InjectFault& fault) {
  JobState& s = self->state;
  s.options.journal->append(
      "events.jsonl", event_line(s, {"", "injected", fault.target, fault.kind}, now_ms(self)));
  log::info("injected: {} {}", fault.kind, fault.target);
  if (fault.kind == "kill_supervisor") return true;
  const bool trainer = s.job.trainers.contains(fault.target);
  return to_node(self, trainer ? job::node_of(fault.target) : fault.target, fault);
}

/// What was planned for the step that is made now.
void inject_due(Self* self, uint64_t committed) {
  JobState& s = self->state;
  std::vector<InjectFault> due;
  std::erase_if(s.planned, [&](const InjectFault& fault) {
    if (fault.step > committed + 1) return false;
    due.push_back(fault);
    return true;
  });
  for (const InjectFault& fault : due) {
    if (fault.kind == "kill_supervisor") self->delayed_send(self, 20ms, local::Die{});
    inject(self, fault);
  }
}

bool is_later(const JobState& s, const InjectFault& fault) {
  return fault.step > s.job.committed_step + 1;
}

// --- Carrying out decisions ---

void carry_out(Self* self, const job::Fence& fence) {
  JobState& s = self->state;
  s.options.journal->replace("control/generation", std::to_string(fence.generation) + "\n");
  to_nodes(self, FenceGeneration{fence.generation, fence.reason});
}

void carry_out(Self* self, const job::Leave& leave) {
  to_nodes(self, LeaveGeneration{leave.generation, leave.reason});
}

void carry_out(Self* self, const job::Join& join) {
  JobState& s = self->state;
  settle_records(self, join.step);
  s.options.journal->replace("control/generation", std::to_string(join.generation) + "\n");
  JoinGeneration order;
  order.generation = join.generation;
  order.source = job::to_string(join.source);
  order.step = join.step;
  order.checkpoint = checkpoint_folder(s.options.config);
  s.members = job::places(s.job.rules, s.job.layout);
  std::set<std::string> known;
  for (const job::Place& place : s.members) {
    order.groups = std::max(order.groups, place.group + 1);
    order.members.push_back(
        {place.trainer, place.group, place.shard, s.job.trainers.at(place.trainer).address});
    known.insert(place.trainer);
  }
  s.groups = order.groups;
  s.members_generation = join.generation;
  s.anomalies.reset();
  s.copy_rounds.reset();
  for (const job::Move& move : join.moves) {
    order.transfers.push_back({static_cast<uint32_t>(order.transfers.size()), move.shard, move.step,
                               move.source, move.peer, move.targets});
    if (known.insert(move.source).second)
      order.members.push_back(
          {move.source, no_group, move.shard, s.job.trainers.at(move.source).address});
  }
  to_nodes(self, std::move(order));
  s.traces.begun(wall_ns());
  s.training_since_ms = now_ms(self);
  s.committed_at_ms = s.training_since_ms;
  s.committed_time = 0;
  s.training_since_step = join.step;
  inject_due(self, join.step);
}

void carry_out(Self* self, const job::KillTrainer& kill) {
  to_node(self, job::node_of(kill.trainer), KillTrainer{kill.trainer, kill.reason});
}

void carry_out(Self* self, const job::CheckNode& check) {
  diagnosis::examine(self, check);
}

void carry_out(Self* self, const job::StopAtStep& stop) {
  to_nodes(self, StopTraining{stop.reason});
}

void carry_out(Self* self, const job::Shutdown& end) {
  publish_status(self, true);
  const json document = {{"instance", self->state.options.leadership.instance},
                         {"exit", exit_code(end.exit)},
                         {"reason", end.reason}};
  self->state.options.journal->replace("control/end.json", json_text(document, 1) + "\n");
  if (end.exit != Code::ok) log::error("{}", end.reason);
  write_traces(self, self->state.traces.over(wall_ns()));
  to_nodes(self, Shutdown{exit_code(end.exit), end.reason});
}

void carry_out(Self* self, const job::Record& record) {
  JobState& s = self->state;
  const int64_t now = now_ms(self);
  if (record.phase == "detect" && !s.incident) {
    ++s.incidents;
    s.incident.emplace();
    s.incident->since_ms = now;
    s.incident->what = record.subject + ": " + record.reason;
    s.health.write(record.subject.substr(0, record.subject.find('.')), *s.options.journal);
  }
  if (record.phase == "detect")
    s.traces.incident_begun(s.job.generation, s.incidents, job::node_of(record.subject), wall_ns());
  trace::instant(record.kind, record.subject);
  json line = event_line(s, record, now);
  if (record.kind == "diagnosed") line["machines"] = std::exchange(s.diagnosis.judged, {});
  s.options.journal->append("events.jsonl", line);
  log::info("{}{}{}{}", record.kind, record.subject.empty() ? "" : " " + record.subject,
            record.reason.empty() ? "" : ": ", record.reason);
  if (record.kind == "trainer_ended" && s.incident &&
      s.incident->what.starts_with(record.subject + ": "))
    s.incident->what = record.subject + ": " + record.reason;
  if (record.kind == "steps_undone" && s.incident)
    s.incident->undone = std::strtoull(record.subject.c_str(), nullptr, 10);
  if (!s.incident || record.phase.empty()) return;
  s.explained[s.incidents].push_back(line);
  if (s.explained.size() > incidents_kept) s.explained.erase(s.explained.begin());
  if (record.phase == "decide") s.incident->decision = record.reason;
  s.incident->phases.emplace_back(record.phase, now);
  if (record.phase == "resume") {
    const json summary = incident_line(s, now);
    s.options.journal->append("events.jsonl", summary);
    s.explained[s.incidents].push_back(summary);
    log::info("{}", summary["reason"].get<std::string>());
    s.incident.reset();
    s.traces.incident_ended(s.job.generation, s.incidents);
  }
}

/// Returns the decision's reason. What was decided happens when it may (leadership.hpp).
std::string handle(Self* self, const job::Event& event) {
  JobState& s = self->state;
  if (leadership::put_off(self, event)) return "";
  const trace::Span span("decide");
  job::Decision decision = job::decide(now_ms(self), s.job, event);
  // What a new supervisor would hear again from the node itself need not be kept before it is
  // written down: thousands of trainers come up at once.
  const bool retold =
      std::holds_alternative<job::NodeUp>(event) || std::holds_alternative<job::TrainerUp>(event);
  if (retold && std::ranges::all_of(decision.actions, [](const job::Action& action) {
        return std::holds_alternative<job::Record>(action);
      }))
    s.lead.act(decision.actions);
  else if (!decision.actions.empty())
    leadership::submit(self, std::move(decision.actions));
  return decision.reason;
}

job::Fault fault_of(const std::string& name) {
  if (name.empty()) return job::Fault::none;
  if (name == "non_finite") return job::Fault::non_finite;
  if (name == "mismatch") return job::Fault::mismatch;
  if (name == "bad_copy") return job::Fault::bad_copy;
  if (name == "bad_checkpoint") return job::Fault::bad_checkpoint;
  if (name == "bad_disk") return job::Fault::bad_disk;
  return job::Fault::failed;
}

/// What consoles and clients ask for.
CommandReply carry_out(Self* self, const Command& command, const Request& request) {
  JobState& s = self->state;
  if (request.fault && is_later(s, *request.fault)) {
    s.planned.push_back(*request.fault);
    leadership::replicate(self);
    return {true, "planned for step " + std::to_string(request.fault->step), ""};
  }
  if (request.fault)
    return inject(self, *request.fault)
               ? CommandReply{true, "injected " + request.fault->kind, ""}
               : CommandReply{false, request.fault->target + " is not there", ""};
  if (request.trace) {
    if (!trace::on()) return {false, "metrics.trace_events is 0: nothing is recorded", ""};
    s.traces.choose(request.trace->first, request.trace->count);
    leadership::replicate(self);
    return {true, "`simplescale trace` shows it when they are done", ""};
  }
  for (const std::string& trainer : request.restart)
    carry_out(self, job::KillTrainer{trainer, "restarted by " + command.who});
  if (!request.save.empty())
    to_node(self, job::node_of(request.save), SaveCheckpoint{request.save});
  const std::string reason = request.event ? handle(self, *request.event) : "";
  return {true, reason.empty() ? "done" : reason, ""};
}

/// Whoever asked for an action is answered when the event that it was asked for is in the file, so
/// that nobody hears "done" from a supervisor whose records went with it; a disk that hangs keeps
/// nobody waiting for long.
void answer(Self* self, const Command& command) {
  constexpr int64_t patience_ms = 2'000;
  JobState& s = self->state;
  auto promise = self->make_response_promise();
  const Request request = parse_command(s.job, command.words, command.who);
  if (!request.error.empty()) return promise.deliver(CommandReply{false, request.error, ""});
  const bool acts = request.fault || request.event || request.trace || !request.restart.empty() ||
                    !request.save.empty();
  if (!acts) return promise.deliver(describe(s, command.words));
  carry_out(self, job::Record{"", "command", request.words, command.who});
  CommandReply reply = carry_out(self, command, request);
  const bool dies =
      request.fault && request.fault->kind == "kill_supervisor" && !is_later(s, *request.fault);
  const uint64_t number = ++s.asked;
  s.answers.emplace(number, JobState::Answer{promise, std::move(reply), dies});
  s.options.journal->when_written([me = caf::actor_cast<caf::actor>(self), number](bool written) {
    caf::anon_send(me, CommandRecorded{number, written});
  });
  self->delayed_send(self, std::chrono::milliseconds(patience_ms), CommandRecorded{number, false});
}

void command_recorded(Self* self, const CommandRecorded& recorded) {
  JobState& s = self->state;
  auto found = s.answers.extract(recorded.number);
  if (found.empty()) return;
  JobState::Answer& answer = found.mapped();
  if (!recorded.written && s.lead.deposed)
    answer.reply = {false,
                    "another supervisor leads: whether this was done is not known; `events` "
                    "tells what was recorded",
                    ""};
  else if (!recorded.written)
    answer.reply.text += " (its event could not be written)";
  answer.promise.deliver(std::move(answer.reply));
  if (answer.dies) self->delayed_send(self, 20ms, local::Die{});  // once whoever asked has it
}

/// Copies of the step before go to other nodes' memory, if it is time.
void copy_to_peers(Self* self, uint64_t step) {
  JobState& s = self->state;
  const bool lacked = s.copy_rounds.lacking();
  auto order = s.copy_rounds.committed(now_ms(self), s.job, step, s.training_since_step);
  if (s.copy_rounds.lacking() && !lacked)
    carry_out(self, job::Record{"", "no_peer", "", "no node outside the cell keeps copies of it"});
  if (!order) return;
  for (CopyTask& task : order->copies)
    if (auto found = s.nodes.find(task.node); found != s.nodes.end())
      task.address = found->second.address;
  to_nodes(self, std::move(*order));
}

void commit(Self* self, uint64_t step, const JobState::Step& reports) {
  JobState& s = self->state;
  const int64_t now = now_ms(self);
  const auto since = static_cast<double>(now - s.training_since_ms) / 1e3;
  const auto tokens = static_cast<double>(s.options.plan.tokens_per_step);
  if (since > 0)
    s.tokens_per_second = tokens * static_cast<double>(step - s.training_since_step) / since;
  s.loss = reports.any.loss;
  handle(self, job::StepCommitted{reports.any.generation, step});
  record_step(self, step, reports);
  inject_due(self, step);
  copy_to_peers(self, step);
  for (const Anomaly& a : s.anomalies.step(step, reports.any.loss, reports.busy_ms))
    carry_out(self, job::Record{"", a.kind, a.subject, a.reason});
  const auto ended_ns = static_cast<int64_t>(std::clamp(reports.first_time, 0.0, 4e9) * 1e9);
  write_traces(self, s.traces.committed(step, ended_ns, wall_ns()));
  if (now - s.status_at_ms >= 200) publish_status(self);
}

/// A checkpoint is published once the records have its step: who resumes from it finds them whole.
void publish_recorded(Self* self) {
  JobState& s = self->state;
  const uint64_t recorded = s.options.journal->marked();
  auto finished = [&](uint64_t step) {
    return std::ranges::any_of(s.job.trainers, [&](const auto& t) {
      return t.second.state == job::TrainerState::finished && t.second.step == step;
    });
  };
  std::erase_if(s.unpublished, [&](const ShardSaved& saved) {
    // Replicas compare a step's state in the next one, or before they finish. Of steps that were
    // undone none is published: who goes on from it would not go on from what was made since.
    if (!job::trusted(s.job, saved.step, saved.generation)) return true;
    if (s.job.has_checkpoint && saved.step <= s.job.checkpoint_step) return true;  // told once more
    if (saved.step > recorded || (saved.step == recorded && !finished(saved.step))) return false;
    self->send(
        s.publisher,
        local::ShardWritten{saved.generation, saved.step,
                            saved.step * static_cast<uint64_t>(s.options.plan.global_batch_size),
                            saved.record, saved.error});
    return true;
  });
}

/// Replicas differed in the state of a step that has now been made again: who had it wrong?
void settle_dispute(Self* self, const StepDone& done) {
  JobState& s = self->state;
  if (s.disputed.empty() || done.state_hash == 0) return;
  auto shard_of = [&](const std::string& trainer) {
    for (const job::Place& place : s.members)
      if (place.trainer == trainer) return static_cast<int64_t>(place.shard);
    return int64_t{-1};
  };
  std::vector<std::string> wrong;
  std::erase_if(s.disputed, [&](const auto& entry) {
    const auto& [trainer, state] = entry;
    if (done.step != state.step + 1 || shard_of(trainer) != shard_of(done.trainer)) return false;
    if (state.hash != done.state_hash) wrong.push_back(trainer);
    return true;
  });
  for (const std::string& trainer : wrong)
    handle(self, job::Suspected{
                     trainer, "its state of step " + std::to_string(done.step - 1) + " was wrong"});
}

void step_done(Self* self, const StepDone& done) {
  JobState& s = self->state;
  // GEN-1. Reports of a generation that was just fenced still tell what its last steps were.
  if (done.generation != s.members_generation) return;
  if (s.recorded_step && done.step <= *s.recorded_step) return;  // told once more
  JobState::Step& step = s.pending[done.step];
  step.any = done;
  step.first_time = step.samples.empty() ? done.time : std::min(step.first_time, done.time);
  step.samples[done.trainer] = done.samples;
  step.busy_ms[done.trainer] = done.busy_ms;
  // Trainers report their steps in order, so the oldest is complete first.
  if (done.generation != s.job.generation) return;
  settle_dispute(self, done);
  while (!s.pending.empty() && s.pending.begin()->second.samples.size() == s.members.size()) {
    const auto complete = s.pending.extract(s.pending.begin());
    commit(self, complete.key(), complete.mapped());
  }
}

/// A line of a log means something: an event, and perhaps the cause of an incident.
void log_found(Self* self, LogFound found) {
  constexpr size_t text_max = 400, causes_kept = 64;
  JobState& s = self->state;
  const auto node = s.job.nodes.find(found.node);
  if (node == s.job.nodes.end()) return;
  if (!s.job.trainers.contains(found.subject)) found.subject = found.node;
  if (found.text.size() > text_max) found.text.resize(text_max);
  const int64_t now = now_ms(self);
  const json line = log_rule_line(s, found, now);
  s.options.journal->append("events.jsonl", line);
  if (s.incident) s.explained[s.incidents].push_back(line);
  log::info("log_rule {}: {}", found.subject, line["reason"].get<std::string>());
  if (found.root) s.causes.push_back({found, now});
  if (s.causes.size() > causes_kept) s.causes.pop_front();
  if (found.action != "diagnose") return;
  const bool trainer = s.job.trainers.contains(found.subject);
  handle(self, job::Suspected{trainer ? found.subject : job::trainer_name(found.node, 0),
                              found.rule + ": " + found.text});
}

void tick(Self* self) {
  publish_recorded(self);
  self->delayed_send(self, 100ms, local::Tick{});
  leadership::tick(self);
  handle(self, job::Tick{});
  diagnosis::judge_if_due(self);
  const JobState& s = self->state;
  if (s.status_due || now_ms(self) - s.status_at_ms >= 1000) publish_status(self);
}

}  // namespace

caf::behavior job_supervisor(Self* self, JobOptions options) {
  JobState& s = self->state;
  s.options = std::move(options);
  s.job = initial_state(s.options);
  s.job.waiting_since_ms = now_ms(self);
  s.publisher = spawn_publisher(self->system(), caf::actor_cast<caf::actor>(self),
                                publisher_options(s.options));
  self->attach_functor([publisher = s.publisher](const caf::error&) {
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
  });
  s.recorded_step = s.options.recorded_step;
  s.planned = planned_faults(s.options);
  s.traces =
      TracePlan(s.options.config.metrics.trace_steps, s.options.config.metrics.trace_recoveries);
  s.copy_rounds =
      job::CopyRounds(static_cast<uint64_t>(s.options.config.checkpoint.peer_every_steps));
  s.lead.handle = [self](const job::Event& event) { handle(self, event); };
  s.lead.act = [self](const std::vector<job::Action>& actions) {
    for (const job::Action& action : actions)
      std::visit([self](const auto& a) { carry_out(self, a); }, action);
    publish_status(self);
  };
  if (!s.options.leadership.state) {
    for (const std::string& why : s.options.skipped)
      carry_out(self, job::Record{"", "checkpoint_skipped", "", why});
    carry_out(self, job::Record{"", "started", "",
                                s.job.has_checkpoint
                                    ? "goes on from step " + std::to_string(s.job.checkpoint_step)
                                    : ""});
  }
  leadership::begin(self);
  self->delayed_send(self, 100ms, local::Tick{});

  self->set_down_handler([self](const caf::down_msg& down) {
    if (leadership::went_down(self, down)) return;
    for (auto& [name, node] : self->state.nodes) {
      if (!node.handle || down.source != node.handle.address()) continue;
      node.handle = nullptr;
      handle(self, job::NodeLost{name, "its agent does not answer any more (" +
                                           to_string(down.reason) + ")"});
      return;
    }
  });

  return {
      [self](const NodeHello& hello) {
        JobState& s = self->state;
        if (!s.job.nodes.contains(hello.node)) {
          log::warn("a node named {} reports, which this run does not have", hello.node);
          return;
        }
        s.nodes[hello.node] = {caf::actor_cast<caf::actor>(self->current_sender()), hello.host,
                               hello.pid, hello.address};
        self->monitor(s.nodes[hello.node].handle);
        leadership::node_came(self, hello.node);
        handle(self, job::NodeUp{hello.node, hello.pid});
      },
      [self](const TrainerUp& up) {
        handle(self, job::TrainerUp{up.trainer, up.pid, up.data_address, up.shard, up.held,
                                    up.generation});
      },
      [self](const TrainerDown& down) {
        handle(self, job::TrainerDown{down.trainer, down.reason, down.restarting});
      },
      [self](const TrainerIdle& idle) {
        if (idle.state_hash != 0) self->state.disputed[idle.trainer] = {idle.step, idle.state_hash};
        handle(self, job::TrainerIdle{idle.trainer, idle.generation, idle.shard, idle.held,
                                      fault_of(idle.fault), idle.step, idle.suspect, idle.reason});
      },
      [self](const TrainerReady& ready) {
        handle(self, job::TrainerReady{ready.trainer, ready.generation});
      },
      [self](const PeerCopies& held) {
        handle(self, job::PeerCopies{held.node, held.copies});
      },
      [self](const CopySent& sent) {
        log::debug("shard {} of step {} {} its peer after {:.1f} ms{}{}", sent.shard, sent.step,
                   sent.error.empty() ? "reached" : "did not reach", sent.ms,
                   sent.error.empty() ? "" : ": ", sent.error);
        if (self->state.copy_rounds.ended(sent))
          log::info("step {} is whole in the memory of peer nodes", sent.step);
      },
      [self](const NodeChecked& checked) { diagnosis::node_checked(self, checked); },
      [self](const NodeHealth& report) {
        JobState& s = self->state;
        if (s.job.nodes.contains(report.node))
          s.health.add(report, now_ms(self), wall_time_s(), *s.options.journal);
      },
      [self](LogFound& found) { log_found(self, std::move(found)); },
      [self](const Command& command) { answer(self, command); },
      [self](const CommandRecorded& recorded) { command_recorded(self, recorded); },
      [self](const StepDone& done) { step_done(self, done); },
      [self](const Validated& result) {
        JobState& s = self->state;
        if (result.generation != s.job.generation || s.members.empty() ||
            result.trainer != s.members.front().trainer)
          return;
        s.options.journal->append("events.jsonl", validated_line(s, result));
        log::info("step {}: validation loss {:.4f}", result.step, result.loss);
      },
      [self](const TrainerFinished& end) {
        handle(self, job::TrainerFinished{end.trainer, end.generation, end.step});
      },
      [self](const ShardSaved& saved) {
        self->state.unpublished.push_back(saved);
        publish_recorded(self);
      },
      [self](const local::Published& published) {
        if (published.error.empty())
          handle(self, job::CheckpointSaved{published.step});
        else
          handle(self,
                 job::CheckpointFailed{published.step, published.error, published.generation});
      },
      [self](const RequestStop& stop) {
        Code code = Code::ok;
        if (stop.exit_code == exit_code(Code::requeue)) code = Code::requeue;
        handle(self, job::StopRequested{code, stop.reason, stop.now});
      },
      [self](const StandbyHello& hello) { leadership::standby_came(self, hello); },
      [self](const ReplicaKept& kept) { leadership::replica_kept(self, kept); },
      [self](const local::EpochSeen& seen) { leadership::epoch_seen(self, seen); },
      [self](const local::WaitedLongEnough& wait) { leadership::waited(self, wait); },
      [](const local::Die&) { kill(getpid(), SIGKILL); },
      [self](const local::Tick&) { tick(self); },
  };
}

}  // namespace simplescale
