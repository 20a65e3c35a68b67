#include "actors/supervisor/carry_out.hpp"

#include <algorithm>
#include <set>

#include "actors/checkpoint/uploader.hpp"
#include "actors/clock.hpp"
#include "actors/supervisor/commands.hpp"
#include "actors/supervisor/rates.hpp"
#include "actors/supervisor/status.hpp"
#include "actors/supervisor/transfers.hpp"
#include "runtime/base/log.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/run/run_state.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale::supervisor {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr auto kLastWords = 300ms;       // to record and answer a drill before it ends this process
constexpr int64_t kTicksLateMs = 1'000;  // on a busy machine: this much counts as waiting

// --- Records ---

void append_event(Self* self, const json& line) {
  self->state.options.journal->append("events.jsonl", line);
  const auto& tell = self->state.options.notify;
  if (tell && (line["kind"] == "recovered" || line["kind"] == "failed")) tell(line);
}

void record_step(Self* self, const ReportedStep& step) {
  JobSupervisorState& s = self->state;
  for (const RunLine& line : s.steps.record(step))
    if (s.options.recorded_beyond.erase(step_line(line.json)) == 0)
      s.options.journal->append(line.file, line.json);
  s.options.journal->mark(step.newest.step);
}

int64_t wall_ns() {
  return trace::now_ns() + trace::wall_offset_ns();
}

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

void record_up_to(Self* self, uint64_t step) {
  JobSupervisorState& s = self->state;
  while (const auto next = s.steps.take_committed(step)) {
    record_step(self, *next);
    write_traces(self, s.traces.committed(next->newest.step, wall_ns(), wall_ns()));
  }
}

void publish_status(Self* self, bool last) {
  constexpr size_t kTrainersPerMs = 16;
  JobSupervisorState& s = self->state;
  const int64_t now = now_ms(self);
  const auto every_ms = static_cast<int64_t>(s.job.trainers.size() / kTrainersPerMs);
  s.status_due = !last && now - s.status_ms < every_ms;
  if (s.status_due) return;
  s.status_ms = now;
  s.stall = s.stalls.stall(now, s.job);
  s.options.journal->replace("control/status.json", status_text(s, true) + "\n", false);
}

void record_end(Self* self, int exit_code, const std::string& reason) {
  const LeadershipOptions& o = self->state.options.leadership;
  self->state.options.journal->replace("control/end.json",
                                       end_text({exit_code, reason, o.instance, o.term}));
}

// --- Injected faults ---

std::string inject(Self* self, const InjectFault& fault) {
  JobSupervisorState& s = self->state;
  const std::string node = node_of(fault.target);
  std::string why = why_unreachable(s.job, fault);
  const bool own = fault.kind == "kill_agent" && node == s.options.node;  // this process dies, too
  if (why.empty() && own) self->delayed_send(self, kLastWords, fault);
  const bool sent =
      why.empty() && (own || fault.kind == "kill_supervisor" || to_node(self, node, fault));
  if (why.empty() && !sent) why = node + " is not connected to the supervisor";
  append_event(self, s.incidents.event_line(s.job,
                                            {"", sent ? "injected" : "not_injected", fault.target,
                                             fault.kind + (sent ? "" : ": " + why)},
                                            now_ms(self)));
  if (sent)
    log::info("injected: {} {}", fault.kind, fault.target);
  else
    log::warn("not injected: {} {}: {}", fault.kind, fault.target, why);
  return why;
}

void inject_due(Self* self, uint64_t committed) {
  std::vector<InjectFault> due;
  std::erase_if(self->state.planned, [&](const InjectFault& fault) {
    if (fault.step > committed + 1) return false;
    due.push_back(fault);
    return true;
  });
  for (const InjectFault& fault : due) {
    if (fault.kind == "kill_supervisor") self->delayed_send(self, 20ms, local::Die{});
    (void)inject(self, fault);
  }
}

// --- Decisions ---

void record(Self* self, const job::Record& record) {
  JobSupervisorState& s = self->state;
  json extra = json::object();
  if (record.kind == "diagnosed") extra["machines"] = s.diagnosis.take_judged();
  // No training time is lost while the trainers are not supposed to train.
  const bool training = !s.job.paused && s.job.examined.empty();
  const int64_t now = now_ms(self);
  const Incidents::Recorded recorded = s.incidents.record(
      s.job, record, now, extra, training ? s.stalls.committed_ms().value_or(now) : now);
  if (recorded.began)
    s.health.write(record.subject.substr(0, record.subject.find('.')), *s.options.journal);
  if (record.phase == "detect")
    s.traces.incident_begun(s.job.generation, s.incidents.count(), node_of(record.subject),
                            wall_ns());
  trace::instant(record.kind, record.subject);
  append_event(self, recorded.line);
  log::info("{}{}{}{}", record.kind, record.subject.empty() ? "" : " " + record.subject,
            record.reason.text.empty() ? "" : ": ", record.reason.text);
  if (!recorded.summary) return;
  append_event(self, *recorded.summary);
  log::info("{}", (*recorded.summary)["reason"].get<std::string>());
  s.traces.incident_ended(s.job.generation, s.incidents.count());
}

void examine(Self* self, const job::CheckNode& check) {
  JobSupervisorState& s = self->state;
  if (connected(s.agents, check.node))
    to_node(self, check.node, s.diagnosis.examine(check, s.job, s.agents));
}

namespace {

JoinGeneration join_order(const JobSupervisorState& s, const job::Join& join,
                          const std::vector<job::Place>& places) {
  JoinGeneration order;
  order.generation = join.generation;
  order.source = join.by_agents   ? JoinSource::agents
                 : join.save_only ? JoinSource::save
                                  : join.source;
  order.step = join.step;
  order.checkpoint = checkpoint_folder(s.options.config);
  order.rates = s.job.rates.changes;
  order.instructions = s.job.instructions;
  if (!join.by_agents) order.weights = s.job.weights;
  order.shards = join.by_agents ? join.moves.front().shards : s.job.rules.cut_of(s.job.layout);
  std::set<std::string> known;
  for (const job::Place& place : places) {
    order.groups = std::max(order.groups, place.group + 1);
    order.members.push_back(
        {place.trainer, place.group, place.shard, s.job.trainers.at(place.trainer).address});
    known.insert(place.trainer);
  }
  order.transfers = transfers_of(units_of(s.options.plan.shape), join.moves, places, order.shards);
  for (const Transfer& transfer : order.transfers) {
    const std::string& source = transfer.source;
    if (join.by_agents || !known.insert(source).second) continue;
    const auto trainer = s.job.trainers.find(source);  // or a node, whose agent sends
    order.members.push_back({source, no_group, transfer.shard,
                             trainer != s.job.trainers.end() ? trainer->second.address
                                                             : s.job.nodes.at(source).address});
  }
  return order;
}

/// Repeats orders that the node may have missed: while it was disconnected, or because the
/// predecessor died before it sent them.
void tell_decided(Self* self, const std::string& node) {
  const JobSupervisorState& s = self->state;
  if (over(s.job)) return (void)to_node(self, node, s.lead.end());
  if (s.job.generation > 0)
    to_node(self, node, FenceGeneration{s.job.generation, "older generations are over"});
  if (s.job.leaving)
    to_node(self, node, LeaveGeneration{s.job.generation, "the generation is to be left"});
  if (s.job.stop_requested) to_node(self, node, StopTraining{s.job.exit_reason});
}

/// Carries out one action of a decision.
struct CarryOut {
  Self* self;
  JobSupervisorState& s = self->state;

  void publish_generation(uint64_t generation) const {
    s.options.journal->replace("control/generation", std::to_string(generation) + "\n");
  }
  /// Before trainers use them, as store_rates().
  void store_instructions() const {
    if (s.job.instructions == s.stored_instructions ||
        s.job.instructions == InstructionSet::automatic)
      return;
    s.stored_instructions = s.job.instructions;
    s.options.journal->replace("control/instructions",
                               std::string(to_string(s.stored_instructions)) + "\n");
  }
  void operator()(const job::Record& r) const { record(self, r); }
  void operator()(const job::CheckNode& check) const { examine(self, check); }
  void operator()(const job::Fence& fence) const {
    publish_generation(fence.generation);
    to_nodes(self, fence);
  }
  /// GEN-1: a node that has joined gets its first orders once that is decided.
  void operator()(const job::AdmitNode& admitted) const { tell_decided(self, admitted.node); }
  void operator()(const job::EndNode& end) const {
    if (s.lead.behind(end.node)) return;  // the agent has ended: another one has its name
    log::info("{} is to end: {}", end.node, end.reason);
    to_node(self, end.node, Shutdown{exit_code(end.exit), end.reason});
    s.handles.erase(end.node);
    s.agents.erase(end.node);
    if (end.node == s.options.node) self->delayed_send(self, kLastWords, local::Die{});
  }
  void operator()(const job::Leave& leave) const { to_nodes(self, leave); }
  void operator()(const job::KillTrainer& kill) const {
    to_node(self, node_of(kill.trainer), kill);
  }
  void operator()(const job::StopAtStep& stop) const { to_nodes(self, stop); }
  void operator()(const job::Join& join) const {
    self->send(s.publisher, local::StepsUndone{join.generation, join.step});
    if (join.regained ? s.steps.regain(join.step, s.job) : s.steps.rewind(join.step))
      s.options.journal->mark(*s.steps.recorded_step());
    const std::vector<job::Place> members = job::places(s.job.rules, s.job.layout);
    record_up_to(self, std::min(join.step, s.steps.reported_up_to()));
    // The generation that made these other steps may be unknown, because the predecessor died
    // before it replicated that decision. Their lines name this generation instead: readers ignore
    // a line that is older than one before it.
    s.steps.begin(join.generation, members, join.step, s.job.weights);
    record_up_to(self, join.step);
    store_instructions();
    publish_generation(join.generation);
    to_nodes(self, join_order(s, join, join.by_agents ? std::vector<job::Place>{} : members));
    s.steps.set_rates(s.job.rates.changes);
    s.anomalies.reset();
    s.stalls.begin();
    s.copy_rounds.reset();
    s.traces.generation_begun(wall_ns());
    inject_due(self, join.step);
  }
  void operator()(const job::PruneCheckpoints& prune) const {
    if (s.prune_replaced) *s.prune_replaced = true;
    s.prune_replaced = std::make_shared<std::atomic<bool>>(false);
    self->send(s.publisher, local::PruneCheckpoints{prune.step, s.prune_replaced});
    if (s.uploader) self->send(s.uploader, local::UploadCheckpoints{prune.step});
  }
  void operator()(const job::Shutdown& end) const {
    publish_status(self, true);
    record_end(self, exit_code(end.exit), end.reason);
    if (end.exit != Code::ok) log::error("{}", end.reason);
    write_traces(self, s.traces.end(wall_ns()));
    to_nodes(self, Shutdown{exit_code(end.exit), end.reason});
  }
};

/// Stores the rates before trainers use them, so that no step made with them outlives this file.
void store_rates(Self* self) {
  JobSupervisorState& s = self->state;
  if (s.job.rates == s.stored_rates) return;
  s.stored_rates = s.job.rates;
  s.options.journal->replace(
      "control/learning_rates.json",
      rates_text(s.stored_rates, s.options.config.train.learning_rate) + "\n");
}

void carry_out(Self* self, const std::vector<job::Action>& actions) {
  store_rates(self);
  for (const job::Action& action : actions) std::visit(CarryOut{self}, action);
  publish_status(self);
}

}  // namespace

void notice_stop(Self* self) {
  JobSupervisorState& s = self->state;
  const int64_t now = now_ms(self);
  const int64_t late = now - std::exchange(s.seen_ms, now) - kTicksLateMs;
  if (late <= 0) return;
  move_times(s.job, late);
  s.lead.stopped(late);
}

std::string handle(Self* self, const job::Event& event) {
  JobSupervisorState& s = self->state;
  notice_stop(self);
  if (!s.lead.admit(event)) return "";
  const auto* up = std::get_if<job::NodeUp>(&event);
  if (up && (over(s.job) || s.job.nodes.contains(up->node))) tell_decided(self, up->node);
  const trace::Span span("decide");
  job::Decision decision = job::decide(now_ms(self), s.job, event, s.lead.has_later());
  // Nodes report these events again to a new supervisor. If a decision on them has no consequences,
  // it is recorded without replication, because thousands of trainers come up at the same time.
  const bool reported_again =
      std::holds_alternative<job::NodeUp>(event) || std::holds_alternative<job::TrainerUp>(event);
  if (reported_again && std::ranges::all_of(decision.actions, [](const job::Action& action) {
        return std::holds_alternative<job::Record>(action);
      }))
    carry_out(self, decision.actions);
  else if (!decision.actions.empty())
    perform(self, s.lead.submit(std::move(decision.actions)));
  return decision.reason;
}

// --- Leadership ---

void announce(Self* self) {
  JobSupervisorState& s = self->state;
  s.announced_step = s.options.journal->marked();
  const caf::message lead = caf::make_message(s.lead.announcement(s.announced_step));
  for (const auto& [node, agent] : s.handles) self->send(agent, lead);
}

namespace {

void replicate(Self* self, bool store) {
  JobSupervisorState& s = self->state;
  SupervisorState state;
  state.job = s.job;
  state.now_ms = now_ms(self);
  s.lead.save(state);
  s.incidents.save(state);
  state.node = s.options.node;
  state.recorded = s.steps.recorded_step().has_value();
  const uint64_t marked = s.options.journal->marked();
  state.recorded_step = marked > 0 ? marked : s.steps.first_after();
  state.planned = s.planned;
  state.traced = s.traces.chosen();
  std::vector<uint8_t> bytes = encode(state);
  if (store)
    s.options.journal->replace(state_page(s.options.leadership.instance, state.term),
                               std::string(bytes.begin(), bytes.end()));
  if (s.standby) self->send(s.standby, Replica{state.term, state.sequence, std::move(bytes)});
}

/// Does one thing that Leadership returned.
struct Perform {
  Self* self;
  JobSupervisorState& s = self->state;
  LeadershipOptions& o = s.options.leadership;

  void operator()(const Leadership::Replicate& r) const { replicate(self, r.store); }
  void operator()(const Leadership::Announce&) const { announce(self); }
  void operator()(const job::Record& record) const { carry_out(self, {record}); }
  void operator()(const Leadership::Await& await) const {
    if (await.check_term)
      o.watch->poll([me = caf::actor_cast<caf::actor>(self), decision = await.decision,
                     term = o.term](const TermView& view) {
        caf::anon_send(me, term_seen(decision, term, view));
      });
    self->delayed_send(self, Leadership::kAnswerTimeout, local::WaitedLongEnough{await.decision});
  }
  void operator()(const Leadership::CarryOut& decision) const {
    carry_out(self, decision.actions);
    while (const auto event = s.lead.next_event()) handle(self, *event);
  }
  void operator()(const Leadership::StartStandby& start) const {
    to_node(self, start.node, HostStandby{o.term, o.address});
  }
  void operator()(const Leadership::EndStandby& end) const {
    self->send(s.standby, Shutdown{0, end.reason});
    if (s.lead.standby()) return;
    self->demonitor(s.standby);
    s.standby = nullptr;
  }
  void operator()(const Leadership::EndProcess& end) const {
    if (end.deposed) s.options.journal->stop();
    const auto finished = std::exchange(o.finished, nullptr);
    if (finished) finished(end.exit_code, end.reason, end.resigns);
  }
};

}  // namespace

void perform(Self* self, const Leadership::Actions& actions) {
  for (const Leadership::Action& action : actions) std::visit(Perform{self}, action);
}

}  // namespace simplescale::supervisor
