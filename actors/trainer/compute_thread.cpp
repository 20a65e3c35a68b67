#include "actors/trainer/compute_thread.hpp"

#include <algorithm>

#include "actors/trainer/batch_reader.hpp"
#include "actors/trainer/engine_setup.hpp"
#include "actors/trainer/validation.hpp"
#include "runtime/base/log.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/data/validation_samples.hpp"
#include "runtime/observe/trace.hpp"

namespace simplescale {

namespace {

std::vector<std::vector<uint8_t>> addresses(const std::vector<DataAddress>& members) {
  std::vector<std::vector<uint8_t>> result;
  for (const DataAddress& member : members) result.push_back(member.bytes);
  return result;
}

/// Names what the compute thread does outside of a step, for its lifetime.
class Doing {
 public:
  Doing(std::atomic<const char*>& what, const char* name) : what_(what) { what_ = name; }
  ~Doing() { what_ = nullptr; }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  std::atomic<const char*>& what_;
};

}  // namespace

/// Everything of one generation. Members are destroyed in reverse order: the engine uses the rest.
struct ComputeThread::Generation {
  std::unique_ptr<Collective> shard, replicate;
  TrainState* state = nullptr;
  std::optional<BatchReader> batches;
  std::unique_ptr<Engine> engine;
  uint64_t step = 0;  // committed
  std::chrono::steady_clock::time_point step_began;
};

ComputeThread::ComputeThread(ComputeOptions options, std::unique_ptr<DataPlane> plane,
                             std::function<void(ComputeReport)> report)
    : options_(std::move(options)),
      plane_(std::move(plane)),
      report_(std::move(report)),
      thread_([this] { run(); }) {}

ComputeThread::~ComputeThread() {
  {
    std::lock_guard lock(mutex_);
    exiting_ = true;
  }
  {
    std::lock_guard lock(plane_mutex_);
    plane_->abort(UINT64_MAX, "the trainer stops");
  }
  wake_.notify_one();
  thread_.join();
}

void ComputeThread::join(JoinTrainer order) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(order));
  wake_.notify_one();
}

void ComputeThread::fence(uint64_t generation, const std::string& reason) {
  if (generation <= fenced_) return;  // GEN-1: fences only grow
  fenced_ = generation;
  {
    std::lock_guard lock(plane_mutex_);
    plane_->abort(generation - 1, reason);
  }
  {  // the engine may compute for long before it uses the plane again
    std::lock_guard lock(engine_mutex_);
    if (engine_ && generation_ < generation) engine_->abort(reason);
  }
  std::lock_guard lock(mutex_);
  jobs_.push_back(Fenced{generation, reason});
  wake_.notify_one();
}

TrainerProgress ComputeThread::progress() const {
  TrainerProgress progress{.generation = generation_, .step = step_, .units = units_};
  std::lock_guard lock(engine_mutex_);
  if (engine_) progress.units += engine_->progress();
  progress.waiting = wait_.waiting || (engine_ && engine_->waiting());
  const char* doing = doing_;
  const Activity activity = engine_ && !doing ? engine_->activity() : Activity{};
  progress.phase = doing ? doing : activity.phase;
  progress.block = activity.block;
  return progress;
}

void ComputeThread::inject(EngineFault fault, uint64_t step) {
  std::lock_guard lock(engine_mutex_);
  if (engine_)
    engine_->inject(fault, step);
  else
    faults_.emplace_back(fault, step);
}

void ComputeThread::slow_down(double fraction, std::chrono::milliseconds how_long) {
  slow_fraction_ = fraction;
  slow_until_ns_ = (std::chrono::steady_clock::now() + how_long).time_since_epoch().count();
}

void ComputeThread::inject_network_fault(const NetworkFault& fault) {
  std::lock_guard lock(plane_mutex_);
  plane_->inject_network_fault(fault);
}

/// Null: the engine ends; progress() keeps the units that it computed.
void ComputeThread::set_engine(Engine* engine) {
  std::lock_guard lock(engine_mutex_);
  if (engine_) units_ += engine_->progress();
  engine_ = engine;
  if (!engine_) return;
  if (fenced_ > generation_) engine_->abort("fenced before the engine started");
  for (const auto& [fault, step] : faults_) engine_->inject(fault, step);
  faults_.clear();
}

void ComputeThread::run() {
  trace::name_thread("compute");
  // While the first generation is being agreed on, load what every generation needs. The GPU's
  // index follows from the trainer's name, which comes with that generation.
  const Status loaded = options_.choose_device ? load_cuda_backend() : backend().status();
  if (!loaded.ok()) log::error("{}", loaded.message());
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return exiting_ || !jobs_.empty(); });
      if (exiting_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    if (const auto* fenced = std::get_if<Fenced>(&job)) {
      TrainerIdle idle{.trainer = trainer_, .generation = fenced->generation - 1};
      idle.reason = fenced->reason;
      // By the hashes the supervisor finds a wrong replica. The fence may have ended this vote because
      // the ranks of another shard, which know all hashes, have reported a mismatch.
      if (hashed_) idle.step = hashed_->step, idle.state_hash = hashed_->hash.low;
      report_(std::move(idle));
      continue;
    }
    const auto& order = std::get<JoinTrainer>(job);
    if (order.generation < fenced_) continue;  // GEN-1; the fence's job, still queued, reports idle
    trainer_ = order.trainer;
    idle_ = {.trainer = trainer_, .generation = order.generation};
    hashed_.reset();
    generation_ = order.generation;
    step_ = order.step;
    const Status status = run_generation(order);
    generation_ = 0;
    if (!status.ok()) report_failure(order, status);
  }
}

void ComputeThread::report_failure(const JoinTrainer& order, const Status& status) {
  log::warn("generation {} ended: {}", order.generation, status.message());
  // The fence's job, still queued, reports idle. A bad copy, checkpoint or disk is reported anyway,
  // and so is a mismatch: it says which step must be undone.
  const bool anyway = idle_.fault.starts_with("bad_") || idle_.fault == "mismatch";
  if (order.generation < fenced_ && !anyway) return;
  if (idle_.fault.empty()) idle_.fault = "failed";
  idle_.reason = status.message();
  report_(idle_);
}

Result<Backend*> ComputeThread::backend() {
  if (backend_) return backend_.get();
  BackendOptions options = backend_options(options_.config, options_.plan, options_.threads);
  if (device_index_) {
    options.device_index = *device_index_;
    SS_ASSIGN(backend_, make_cuda_backend(options));
    return backend_.get();
  }
  SS_ASSIGN(backend_, make_cpu_backend(options));
  return backend_.get();
}

/// Once, in the first generation: the trainer's name determines its device.
Status ComputeThread::choose_device(const std::string& trainer) {
  if (!options_.choose_device || device_index_) return {};
  std::lock_guard lock(plane_mutex_);
  SS_ASSIGN(device_index_, options_.choose_device(trainer, plane_));
  return {};
}

Status ComputeThread::run_generation(const JoinTrainer& order) {
  const auto begun = std::chrono::steady_clock::now();
  SS_RETURN_IF_ERROR(choose_device(order.trainer));
  Generation g;
  Restore restore(order, options_.plan.shape, static_cast<size_t>(options_.plan.topology.shards),
                  static_cast<int>(options_.config.parallel.collective_timeout_ms),
                  [this, &order] { return fenced_ > order.generation; });
  {
    const Doing doing(doing_, "restore");
    const Waiting waits(wait_);
    SS_RETURN_IF_ERROR(restore_state(g, order, restore));
  }
  if (order.group == no_group) {
    log::info("generation {}: helped with {} transfers", order.generation, order.transfers.size());
    report_(idle_);
    return {};
  }
  SS_RETURN_IF_ERROR(make_engine(g, order));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
  log::info("generation {}: group {} of {}, shard {}, at step {} from {} after {:.0f} ms",
            order.generation, order.group, order.replicate_members.size(), order.shard, g.step,
            order.source, took.count());
  report_(TrainerReady{trainer_, order.generation, g.step, took.count(), restore.bytes()});
  set_engine(g.engine.get());
  const Status status = train(g, order);
  set_engine(nullptr);
  return status;
}

/// Joins the generation's communicators and brings the state in shared memory to its step.
Status ComputeThread::restore_state(Generation& g, const JoinTrainer& order, Restore& restore) {
  trace::Span span("join generation", static_cast<int64_t>(order.generation));
  SS_RETURN_IF_ERROR(join_generation(g, order));
  span.end();
  span = trace::Span("transfer state");
  Status status = restore.transfer(*plane_, *g.state);
  span.end();
  span = trace::Span("check and commit state", -1, order.source);
  if (status.ok() && order.group != no_group)
    status = restore.commit(*g.state, *g.shard, *g.replicate);
  idle_.fault = restore.fault().fault;
  idle_.suspect = restore.fault().suspect;
  idle_.step = order.step;
  return status;
}

/// Maps the state and, unless the trainer only helps, joins the two communicators.
Status ComputeThread::join_generation(Generation& g, const JoinTrainer& order) {
  const int timeout_ms = static_cast<int>(options_.config.parallel.collective_timeout_ms);
  const auto shards = static_cast<size_t>(options_.plan.topology.shards);
  if (!state_ || state_->name() != order.state_segment) {
    if (pinned_) backend_->unpin_host(pinned_);
    pinned_ = nullptr;
    SS_ASSIGN(state_, TrainState::open(order.state_segment,
                                       shard_layout(units_of(options_.plan.shape), shards).total));
  }
  g.state = &*state_;
  g.state->set_generation(order.generation);
  if (order.group == no_group) return {};
  CommunicatorSpec shard{order.generation, "shard", static_cast<int>(order.shard),
                         addresses(order.shard_members), timeout_ms};
  CommunicatorSpec replicate{order.generation, "replicate", static_cast<int>(order.group),
                             addresses(order.replicate_members), timeout_ms};
  SS_ASSIGN(g.shard, plane_->join(shard));
  SS_ASSIGN(g.replicate, plane_->join(replicate));
  return {};
}

Status ComputeThread::make_engine(Generation& g, const JoinTrainer& order) {
  const trace::Span span("make engine");
  SS_ASSIGN(Backend * backend, this->backend());
  if (!pinned_ && !backend->host_memory()) {
    const std::span<float> first = g.state->side(0).params;  // the two sides are adjacent
    pinned_ = first.data();
    backend->pin_host(pinned_, 2 * 3 * first.size_bytes());
  }
  SS_ASSIGN(
      g.batches,
      BatchReader::open(order.ring_segment, order.ring, order.generation,
                        std::chrono::milliseconds(options_.config.supervision.progress_timeout_ms),
                        [this, &order] { return fenced_ > order.generation; }));
  SS_ASSIGN(g.engine, Engine::create(engine_options(options_.config, options_.plan), *backend,
                                     *g.shard, *g.replicate, *g.state));
  if (order.source == "initialize") {
    SS_RETURN_IF_ERROR(g.engine->initialize());
  } else {
    SS_ASSIGN(g.step, g.engine->attach());
  }
  if (g.step != order.step)
    return Status(Code::internal, "the state is at step " + std::to_string(g.step) +
                                      ", the generation begins at step " +
                                      std::to_string(order.step));
  return {};
}

/// Pins this shard at `step` for the node's actor that copies it to disk or to a peer; that actor
/// unpins it. False: another group's trainer does it, since the groups share the shards evenly.
Result<bool> ComputeThread::pin_if_responsible(Generation& g, const JoinTrainer& order,
                                               uint64_t step) {
  if (order.shard % order.replicate_members.size() != order.group) return false;
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

StepDone ComputeThread::step_done(const JoinTrainer& order, uint64_t step, const StepResult& result,
                                  double interval_ms) const {
  StepDone done{.generation = order.generation, .step = step, .trainer = trainer_};
  done.loss = result.loss;
  done.grad_norm = result.grad_norm;
  done.learning_rate = learning_rate(order, step);
  done.step_ms = result.step_ms;
  done.interval_ms = interval_ms;
  done.validates = validation_batches_ > 0 && validation_due(options_.config, options_.plan, step);
  done.busy_ms = result.step_ms - result.wait_ms;
  done.data_ms = result.data_ms;
  done.forward_ms = result.forward_ms;
  done.backward_ms = result.backward_ms;
  done.optimizer_ms = result.optimizer_ms;
  done.state_hash = result.state_hash.low;
  done.time =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  done.samples =
      samples_of(options_.plan, order.replicate_members.size(), order.group, order.shard, step);
  return done;
}

Status ComputeThread::train(Generation& g, const JoinTrainer& order) {
  if (order.source == "save") return finish(g, order);
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
    SS_ASSIGN(const StepResult result, this->step(g, order, step));
    g.step = step_ = step;
    log::debug(
        "step {}: {:.2f} ms; data {:.2f}, forward {:.2f}, backward {:.2f}, optimizer {:.2f}; "
        "{:.2f} of it waiting for other trainers",
        step, result.step_ms, result.data_ms, result.forward_ms, result.backward_ms,
        result.optimizer_ms, result.wait_ms);
    agreed = result.agreed;
    if (agreed.save) save_ = false;
    const bool last = agreed.stop || step == max_steps;  // TrainerFinished requests that save
    const auto ended = std::chrono::steady_clock::now();
    const std::chrono::duration<double, std::milli> interval = ended - g.step_began;
    g.step_began = ended;
    StepDone done = step_done(order, step, result, interval.count());
    if (!last && (agreed.save || (every > 0 && step % every == 0))) {
      SS_ASSIGN(done.save, pin_if_responsible(g, order, step));
    }
    if (!last && peer_every > 0 && step % peer_every == 0) {
      SS_ASSIGN(done.copy, pin_if_responsible(g, order, step));
    }
    report_(std::move(done));
    if (!last) SS_RETURN_IF_ERROR(validate(g, order, step));
    inject_delay(result.step_ms);
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
  if (g.step > order.step || order.source == "memory" || order.source == "save") {
    SS_ASSIGN(end.save, pin_if_responsible(g, order, g.step));
  }
  report_(std::move(end));
  return {};
}

/// Translates an engine's error into the fault, step and suspect of TrainerIdle, and forgets a
/// state that has changed in memory. Returns `status`.
Status ComputeThread::note_fault(Generation& g, Status status) {
  idle_.suspect_rank = g.engine->suspect().value_or(-1);
  if (!status.ok()) hashed_ = g.engine->hashed();
  if (status.code() == Code::bad_data) {
    idle_.fault = "non_finite";
    idle_.step = g.step + 1;
  } else if (g.engine->damaged()) {
    idle_.fault = "bad_copy";
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
    idle_.fault = "mismatch";
    const auto wrong = mismatch->wrong();
    const bool mine = mismatch->shard == g.shard->rank() &&
                      std::ranges::find(wrong, g.replicate->rank()) != wrong.end();
    if (mine) idle_.suspect = trainer_;
    for (size_t group = 0; group < mismatch->of_group.size(); ++group)
      log::warn("group {}: shard {} of step {} has the hash {}", group, mismatch->shard,
                mismatch->step, mismatch->of_group[group].hex());
  }
  return status;
}

/// Sleeps as slow_down() asked for.
void ComputeThread::inject_delay(double step_ms) {
  if (std::chrono::steady_clock::now().time_since_epoch().count() >= slow_until_ns_) return;
  std::chrono::duration<double, std::milli> left(slow_fraction_ * step_ms);
  constexpr std::chrono::milliseconds piece(100);
  std::unique_lock lock(mutex_);
  for (; left.count() > 0 && !exiting_; left -= piece) {
    wake_.wait_for(lock, std::min<decltype(left)>(left, piece), [this] { return exiting_; });
    ++units_;  // a slow trainer is one that computes units slowly
  }
}

Result<StepResult> ComputeThread::step(Generation& g, const JoinTrainer& order, uint64_t step) {
  auto batch = [&](int k) {
    const Waiting waits(wait_);
    return g.batches->read(step, k);
  };
  StepControl mine;
  mine.stop = stop_;
  mine.save = save_;
  mine.pause = leave_ == order.generation;
  const auto rate = static_cast<float>(learning_rate(order, step));
  auto result = g.engine->step(step, rate, mine, batch);
  if (!result.ok() && g.batches->bad_tokens()) idle_.fault = "bad_tokens";
  if (!result.ok()) return note_fault(g, result.status());
  SS_RETURN_IF_ERROR(g.batches->release());
  return result;
}

/// Opens the validation tokens, once.
Status ComputeThread::open_validation() {
  if (dataset_ || options_.config.train.validation_samples == 0) return {};
  SS_ASSIGN(dataset_, open_tokens(options_.config, options_.plan.shape));
  validation_batches_ = validation_batches(options_.config, options_.plan, dataset_->validation);
  return {};
}

/// Reports the mean loss over the validation samples, if the step is to be validated. The time that
/// this takes is no part of the next step's interval.
Status ComputeThread::validate(Generation& g, const JoinTrainer& order, uint64_t step) {
  if (validation_batches_ == 0 || !validation_due(options_.config, options_.plan, step)) return {};
  const trace::Span span("validate", static_cast<int64_t>(step));
  const Doing doing(doing_, "validation");
  const auto began = std::chrono::steady_clock::now();
  SS_ASSIGN(const double loss,
            validation_loss(*g.engine, *g.shard, *g.replicate, dataset_->validation, options_.plan,
                            validation_batches_, wait_));
  report_(Validated{order.generation, step, trainer_, loss});
  g.step_began += std::chrono::steady_clock::now() - began;
  return {};
}

}  // namespace simplescale
