// The steps of a generation: training, validation, the end of the run, and what a failure means.
#include <algorithm>

#include "actors/trainer/compute_generation.hpp"
#include "actors/trainer/validation.hpp"
#include "runtime/base/log.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/feed/validation_samples.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// Pins this shard at `step` for the node's actor that copies it to disk or to a peer; that actor
/// unpins it. False: another group's trainer does it, since the groups share the shards evenly. All
/// trainers store the step in host memory, so that their memories have a step in common.
Result<bool> ComputeThread::pin_if_responsible(Generation& g, const JoinTrainer& order,
                                               uint64_t step) {
  SS_RETURN_IF_ERROR(g.engine->start_commit());
  if (order.shard % order.groups != order.group) return false;
  SS_RETURN_IF_ERROR(g.engine->wait_for_commit());
  SS_RETURN_IF_ERROR(g.state->pin(step).status());
  return true;
}

/// A function of the configuration and the recorded changes alone.
double ComputeThread::learning_rate(const JoinTrainer& order, uint64_t step) const {
  LearningRate rate = options_.plan.learning_rate;
  rate.changes = order.rates;
  return rate.at(static_cast<int64_t>(step) - 1);
}

StepDone ComputeThread::step_done(const Generation& g, const JoinTrainer& order, uint64_t step,
                                  const StepResult& result, double interval_ms) const {
  StepDone done{.generation = order.generation, .step = step, .trainer = trainer_};
  done.loss = result.loss;
  done.grad_norm = result.grad_norm;
  done.learning_rate = learning_rate(order, step);
  done.step_ms = result.step_ms;
  done.interval_ms = interval_ms;
  done.validates = (validates_ && validation_due(options_.config, options_.plan, step)) ||
                   tasks_due(options_.config, options_.plan, step);
  done.busy_ms = result.step_ms - result.wait_ms;
  done.compute_ms = result.compute_ms;
  done.data_ms = result.data_ms;
  done.forward_ms = result.forward_ms;
  done.backward_ms = result.backward_ms;
  done.optimizer_ms = result.optimizer_ms;
  done.state_hash = result.state_hash.low;
  done.time =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  done.samples = samples_of(options_.plan, g.layout, order.group, order.shard, step);
  if (order.group == 0 && order.shard == 0) done.router_counts = result.router_counts;
  return done;
}

Status ComputeThread::train(Generation& g, const JoinTrainer& order) {
  if (order.source == JoinSource::save) return finish(g, order);
  const auto max_steps = static_cast<uint64_t>(options_.plan.max_steps);
  const auto every = static_cast<uint64_t>(options_.config.checkpoint.disk_every_steps);
  const auto peer_every =
      static_cast<uint64_t>(peer_every_steps(options_.config, options_.plan.topology));
  SS_RETURN_IF_ERROR(open_validation());
  // Also repeats a validation that a failure has interrupted.
  SS_RETURN_IF_ERROR(validate(g, order, g.step));
  g.step_began = std::chrono::steady_clock::now();
  StepControl agreed;
  while (g.step < max_steps && !agreed.stop && !agreed.pause) {
    const uint64_t step = g.step + 1;
    if (device_index_) kernel_traces_.begin(*backend_, step);
    SS_ASSIGN(const StepResult result, this->step(g, order, step));
    g.step = step_ = step;
    log::debug(
        "step {}: {:.2f} ms; data {:.2f}, forward {:.2f}, backward {:.2f}, optimizer {:.2f}; "
        "{:.2f} of it waiting for other trainers and copies",
        step, result.step_ms, result.data_ms, result.forward_ms, result.backward_ms,
        result.optimizer_ms, result.wait_ms);
    agreed = result.agreed;
    if (agreed.save) save_ = false;
    const bool last = agreed.stop || step == max_steps;  // TrainerFinished requests that save
    if (device_index_) kernel_traces_.end(*backend_, trainer_, step, last);
    const auto ended = std::chrono::steady_clock::now();
    const std::chrono::duration<double, std::milli> interval = ended - g.step_began;
    g.step_began = ended;
    StepDone done = step_done(g, order, step, result, interval.count());
    if (!last && (agreed.save || (every > 0 && step % every == 0))) {
      SS_ASSIGN(done.save, pin_if_responsible(g, order, step));
    }
    if (!last && peer_every > 0 && step % peer_every == 0) {
      SS_ASSIGN(done.copy, pin_if_responsible(g, order, step));
    }
    report_(std::move(done));
    if (!last) SS_RETURN_IF_ERROR(validate(g, order, step));
  }
  if (g.step == max_steps || agreed.stop) return finish(g, order);
  SS_RETURN_IF_ERROR(g.engine->wait_for_commit());  // the node reads what memory holds next
  log::info("left generation {} after step {}", order.generation, g.step);
  idle_.step = g.step;
  report_(idle_);  // without a fault: the trainer was asked to leave
  return {};
}

/// After the last step, which no vote follows: replicas compare their states, and the last step is
/// validated, if that is due, and saved.
Status ComputeThread::finish(Generation& g, const JoinTrainer& order) {
  SS_RETURN_IF_ERROR(note_fault(g, g.engine->compare_states()));
  if (g.step > order.step) SS_RETURN_IF_ERROR(validate(g, order, g.step));
  TrainerFinished end{trainer_, order.generation, g.step, false};
  if (g.step > order.step || order.source == JoinSource::memory ||
      order.source == JoinSource::save) {
    SS_ASSIGN(end.save, pin_if_responsible(g, order, g.step));
  }
  report_(std::move(end));
  return {};
}

/// Translates an engine's error into the fault, step and suspect of TrainerIdle, and forgets a
/// state that has changed in memory. Returns `status`.
Status ComputeThread::note_fault(Generation& g, Status status) {
  idle_.suspect_rank = g.engine->suspect().value_or(-1);
  idle_.reason.step = g.step + 1;
  idle_.reason.detail = g.engine->cause();
  if (!status.ok()) hashed_ = g.engine->hashed();
  if (status.code() == Code::bad_data) {
    idle_.fault = Fault::non_finite;
    idle_.step = g.step + 1;
  } else if (g.engine->damaged()) {
    idle_.fault = Fault::bad_copy;
    idle_.step = g.step;
    idle_.suspect = trainer_;
    if (Status copied = g.state->wait_unpinned(
            static_cast<int>(options_.config.parallel.collective_timeout_ms));
        !copied.ok())
      log::warn("{}", copied.message());
    g.state->forget(g.step);
  } else if (!status.ok() && hashed_) {
    idle_.step = hashed_->step;
    idle_.state_hash = hashed_->hash.low;
  }
  if (const auto& mismatch = g.engine->mismatch(); status.code() == Code::mismatch && mismatch) {
    idle_.fault = Fault::mismatch;
    const auto wrong = mismatch->wrong();
    const bool mine =
        mismatch->shard == members_of(g.axes, kShardAxis).rank() &&
        std::ranges::find(wrong, members_of(g.axes, kReplicateAxis).rank()) != wrong.end();
    if (mine) idle_.suspect = trainer_;
    for (size_t group = 0; group < mismatch->of_group.size(); ++group)
      log::warn("group {}: shard {} of step {} has the hash {}", group, mismatch->shard,
                mismatch->step, mismatch->of_group[group].hex());
  }
  return status;
}

/// Sleeps as slow_down() asked for, until a fence ends the generation.
void ComputeThread::inject_delay(uint64_t generation) {
  if (std::chrono::steady_clock::now().time_since_epoch().count() >= slow_until_ns_) return;
  std::chrono::duration<double, std::milli> left(slow_ms_);
  constexpr std::chrono::milliseconds piece(100);
  const auto ends = [&] { return exiting_ || fenced_ > generation; };
  std::unique_lock lock(mutex_);
  for (; left.count() > 0 && !ends(); left -= piece) {
    wake_.wait_for(lock, std::min<decltype(left)>(left, piece), ends);
    ++units_;  // a slow trainer is one that computes units slowly
  }
}

Result<StepResult> ComputeThread::step(Generation& g, const JoinTrainer& order, uint64_t step) {
  auto batch = [&](int k) {
    inject_delay(order.generation);
    const Waiting waits(wait_);
    return g.batches->read(step, k);
  };
  StepControl mine;
  mine.stop = stop_;
  mine.save = save_;
  mine.pause = leave_ == order.generation;
  const auto rate = static_cast<float>(learning_rate(order, step));
  auto result = g.engine->step(step, rate, mine, batch);
  if (!result.ok() && g.batches->bad_tokens()) idle_.fault = Fault::bad_tokens;
  if (!result.ok()) return note_fault(g, result.status());
  SS_RETURN_IF_ERROR(g.batches->release());
  return result;
}

/// Opens the validation tokens, once.
Status ComputeThread::open_validation() {
  if (!validation_.empty() || options_.config.train.validation_samples == 0) return {};
  SS_ASSIGN(const RunData data, open_tokens(options_.config, options_.plan.shape));
  for (const RunData::Source& source : data.sources) {
    const TokenSource& tokens = source.data.validation;
    validation_.push_back({tokens, validation_batches(options_.config, options_.plan, tokens)});
    validates_ = validates_ || validation_.back().batches > 0;
  }
  return {};
}

/// Opens the tasks, once.
Status ComputeThread::open_tasks() {
  if (tasks_) return {};
  const Plan& plan = options_.plan;
  const RunFolder run{run_folder(options_.config)};
  SS_ASSIGN(std::vector<TaskTokens> rows,
            read_task_tokens(run.tasks(), plan.shape.block_size, plan.shape.vocab));
  tasks_.emplace(std::move(rows), plan.shape.block_size, plan.micro_batch_size,
                 /*share_prompts=*/!device_index_);
  return {};
}

/// Reports the mean loss over the validation samples and the scores of the tasks, each if it is due.
/// The time that this takes is no part of the next step's interval.
Status ComputeThread::validate(Generation& g, const JoinTrainer& order, uint64_t step) {
  const bool loss_due = validates_ && validation_due(options_.config, options_.plan, step),
             scores_due = tasks_due(options_.config, options_.plan, step);
  if (!loss_due && !scores_due) return {};
  const trace::Span span("validate", static_cast<int64_t>(step));
  const Doing doing(doing_, StepPhase::validation);
  const auto began = std::chrono::steady_clock::now();
  Validated result{order.generation, step, trainer_, std::nan("")};
  if (loss_due) {
    SS_ASSIGN(ValidationLosses losses,
              validation_losses(*g.engine, g.axes, validation_, options_.plan,
                                options_.config.train.validation_lengths, wait_));
    result.loss = losses.loss;
    result.targets = std::move(losses.targets);
    result.lengths = std::move(losses.lengths);
    result.positions = std::move(losses.positions);
    if (!options_.plan.mixture.empty()) result.sources = std::move(losses.sources);
  }
  if (scores_due) {
    SS_RETURN_IF_ERROR(open_tasks());
    SS_ASSIGN(result.tasks, task_scores(*g.engine, g.axes, *tasks_, options_.plan, wait_));
  }
  report_(std::move(result));
  g.step_began += std::chrono::steady_clock::now() - began;
  return {};
}

}  // namespace simplescale
