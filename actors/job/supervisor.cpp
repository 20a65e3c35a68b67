#include "actors/job/supervisor.hpp"

#include <cmath>

#include "actors/checkpoint/checkpoint.hpp"
#include "actors/job/records.hpp"
#include "runtime/base/log.hpp"
#include "runtime/data/data_location.hpp"

namespace simplescale {

namespace {

using Self = caf::stateful_actor<JobState>;
using namespace std::chrono_literals;

int64_t now_ms(Self* self) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             self->clock().now().time_since_epoch())
      .count();
}

template <class Message>
void to_nodes(Self* self, const Message& message) {
  for (auto& [name, node] : self->state.nodes)
    if (node.handle) self->send(node.handle, message);
}

void publish_status(Self* self) {
  JobState& s = self->state;
  s.status_at_ms = now_ms(self);
  s.options.journal->replace("control/status.json", status_page(s).dump(1) + "\n");
}

// --- Steps ---

/// Lines for a step that every trainer has applied.
void record_step(Self* self, uint64_t step, const JobState::Step& reports) {
  JobState& s = self->state;
  const int64_t now = now_ms(self);
  const auto every = static_cast<uint64_t>(s.options.config.metrics.every_steps);
  if (every > 0 && (step % every == 0 || step == s.job.max_steps))
    s.options.journal->append(
        "metrics.jsonl",
        metrics_line(s, reports.any, static_cast<double>(now - s.committed_at_ms)));
  if (s.options.config.data.ledger)
    for (const auto& [trainer, samples] : reports.samples)
      s.options.journal->append("ledger.jsonl",
                                ledger_line(reports.any.generation, step, trainer, samples));
  s.recorded_step = step;
  s.committed_at_ms = now;
}

/// A generation begins at `step`, which all trainers hold: what was applied everywhere is
/// committed, also if a trainer died before it could report it. What it trained is known from the
/// plan.
void settle_records(Self* self, uint64_t step) {
  JobState& s = self->state;
  if (!s.recorded_step || step < *s.recorded_step) s.recorded_step = step;
  while (*s.recorded_step < step) {
    const uint64_t next = *s.recorded_step + 1;
    JobState::Step reports;
    if (auto found = s.pending.find(next); found != s.pending.end()) {
      reports = found->second;
    } else {
      reports.any.generation = s.job.generation;
      reports.any.step = next;
      reports.any.loss = reports.any.grad_norm = std::nan("");
      reports.any.learning_rate = s.options.plan.learning_rate.at(static_cast<int64_t>(next) - 1);
    }
    for (const TrainerPlace& place : s.options.plan.topology.trainers)
      if (!reports.samples.contains(place.name()))
        reports.samples[place.name()] = samples_of(
            s.options.plan, static_cast<uint64_t>(s.options.plan.topology.groups),
            static_cast<uint64_t>(place.group), static_cast<uint64_t>(place.shard), next);
    record_step(self, next, reports);
  }
  s.pending.clear();
}

// --- Carrying out decisions ---

void carry_out(Self* self, const job::Fence& fence) {
  JobState& s = self->state;
  s.options.journal->replace("control/generation", std::to_string(fence.generation) + "\n");
  to_nodes(self, FenceGeneration{fence.generation, fence.reason});
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
  for (const TrainerPlace& place : s.options.plan.topology.trainers)
    order.members.push_back({place.name(), static_cast<uint32_t>(place.group),
                             static_cast<uint32_t>(place.shard),
                             s.job.trainers.at(place.name()).address});
  to_nodes(self, order);
  s.training_since_ms = now_ms(self);
  s.committed_at_ms = s.training_since_ms;
  s.training_since_step = join.step;
}

void carry_out(Self* self, const job::StopAtStep& stop) {
  to_nodes(self, StopTraining{stop.reason});
}

void carry_out(Self* self, const job::Shutdown& end) {
  publish_status(self);
  if (end.exit != Code::ok) log::error("{}", end.reason);
  to_nodes(self, Shutdown{exit_code(end.exit), end.reason});
}

void carry_out(Self* self, const job::Record& record) {
  JobState& s = self->state;
  if (record.phase == "detect" && !s.incident_since_ms) {
    ++s.incidents;
    s.incident_since_ms = now_ms(self);
  }
  s.options.journal->append("events.jsonl", event_line(s, record, now_ms(self)));
  log::info("{}{}{}{}", record.kind, record.subject.empty() ? "" : " " + record.subject,
            record.reason.empty() ? "" : ": ", record.reason);
  if (record.phase == "resume") s.incident_since_ms.reset();
}

void handle(Self* self, const job::Event& event) {
  JobState& s = self->state;
  const job::Decision decision = job::decide(now_ms(self), s.job, event);
  for (const job::Action& action : decision.actions)
    std::visit([self](const auto& a) { carry_out(self, a); }, action);
  if (!decision.actions.empty()) publish_status(self);
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
  if (now - s.status_at_ms >= 200) publish_status(self);
}

void step_done(Self* self, const StepDone& done) {
  JobState& s = self->state;
  if (done.generation != s.job.generation) return;  // S4
  JobState::Step& step = s.pending[done.step];
  step.any = done;
  step.samples[done.trainer] = done.samples;
  // Trainers report their steps in order, so the oldest is complete first.
  while (!s.pending.empty() &&
         s.pending.begin()->second.samples.size() == s.job.trainer_names.size()) {
    const auto complete = s.pending.extract(s.pending.begin());
    commit(self, complete.key(), complete.mapped());
  }
}

void tick(Self* self) {
  self->delayed_send(self, 500ms, local::Tick{});
  handle(self, job::Tick{});
  if (now_ms(self) - self->state.status_at_ms >= 1000) publish_status(self);
}

job::State initial(const JobOptions& options) {
  job::State state;
  for (const TrainerPlace& place : options.plan.topology.trainers) {
    state.trainer_names.push_back(place.name());
    state.trainers[place.name()];
  }
  for (int node = 0; node < options.plan.topology.nodes; ++node) {
    state.node_names.push_back("n" + std::to_string(node));
    state.nodes[state.node_names.back()] = false;
  }
  state.max_steps = static_cast<uint64_t>(options.plan.max_steps);
  state.join_timeout_ms = options.config.cluster.join_timeout_ms;
  state.give_up_after_cycles = static_cast<int>(options.config.supervision.give_up_after_cycles);
  state.generation = options.last_generation;
  state.checkpoint_step = options.checkpoint_step;
  return state;
}

PublisherOptions publisher_options(const JobOptions& o) {
  PublisherOptions p;
  p.folder = checkpoint_folder(o.config);
  p.shape = o.plan.shape;
  p.shards = static_cast<size_t>(o.plan.topology.shards);
  p.seed = static_cast<uint64_t>(o.config.run.seed);
  p.precision = o.config.train.precision == DType::bf16 ? "bf16" : "fp32";
  p.tokenizer = o.tokenizer;
  p.resume = "{}";
  p.tokens_per_sample = static_cast<uint64_t>(o.plan.shape.block_size);
  p.keep = static_cast<size_t>(o.config.checkpoint.keep);
  p.permanent_every_steps = static_cast<uint64_t>(o.config.checkpoint.permanent_every_steps);
  return p;
}

}  // namespace

caf::behavior job_supervisor(Self* self, JobOptions options) {
  JobState& s = self->state;
  s.options = std::move(options);
  s.job = initial(s.options);
  s.job.waiting_since_ms = now_ms(self);
  s.publisher = spawn_publisher(self->system(), caf::actor_cast<caf::actor>(self),
                                publisher_options(s.options));
  self->attach_functor([publisher = s.publisher](const caf::error&) {
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
  });
  carry_out(self, job::Record{"", "started", "",
                              s.job.checkpoint_step
                                  ? "goes on from step " + std::to_string(*s.job.checkpoint_step)
                                  : ""});
  self->delayed_send(self, 500ms, local::Tick{});

  self->set_down_handler([self](const caf::down_msg& down) {
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
                               hello.pid};
        self->monitor(s.nodes[hello.node].handle);
        handle(self, job::NodeUp{hello.node});
      },
      [self](const TrainerUp& up) {
        handle(self, job::TrainerUp{up.trainer, up.pid, up.data_address, up.held});
      },
      [self](const TrainerDown& down) {
        handle(self, job::TrainerDown{down.trainer, down.reason, down.restarting});
      },
      [self](const TrainerIdle& idle) {
        handle(self, job::TrainerIdle{idle.trainer, idle.generation, idle.held, idle.reason});
      },
      [self](const StepDone& done) { step_done(self, done); },
      [self](const Validated& result) {
        JobState& s = self->state;
        if (result.generation != s.job.generation || result.trainer != s.job.trainer_names[0])
          return;
        s.options.journal->append("events.jsonl", validated_line(s, result));
        log::info("step {}: validation loss {:.4f}", result.step, result.loss);
      },
      [self](const TrainerFinished& end) {
        handle(self, job::TrainerFinished{end.trainer, end.generation, end.step});
      },
      [self](const ShardSaved& saved) {
        JobState& s = self->state;
        self->send(s.publisher,
                   local::ShardWritten{
                       saved.generation, saved.step,
                       saved.step * static_cast<uint64_t>(s.options.plan.global_batch_size),
                       saved.record, saved.error});
      },
      [self](const local::Published& published) {
        if (published.error.empty())
          handle(self, job::CheckpointSaved{published.step});
        else
          handle(self, job::CheckpointFailed{published.step, published.error});
      },
      [self](const RequestStop& stop) {
        Code code = Code::ok;
        if (stop.exit_code == exit_code(Code::requeue)) code = Code::requeue;
        handle(self, job::StopRequested{code, stop.reason, stop.now});
      },
      [self](const local::Tick&) { tick(self); },
  };
}

}  // namespace simplescale
