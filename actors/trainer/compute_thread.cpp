#include "actors/trainer/compute_thread.hpp"

#include <algorithm>

#include "model/engine/buffer_plan.hpp"
#include "runtime/base/log.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/observe/trace.hpp"

namespace simplescale {

namespace {

EngineOptions engine_options(const Config& config, const Plan& plan) {
  EngineOptions o;
  o.shape = plan.shape;
  o.precision = config.train.precision;
  o.micro_batch_size = static_cast<int>(plan.micro_batch_size);
  o.rows = static_cast<int>(plan.rows());
  o.sharding = plan.topology.sharding;
  o.deterministic = config.train.deterministic;
  o.grad_clip = static_cast<float>(config.train.grad_clip);
  o.weight_decay = static_cast<float>(config.train.weight_decay);
  o.beta1 = static_cast<float>(config.train.betas[0]);
  o.beta2 = static_cast<float>(config.train.betas[1]);
  o.eps = static_cast<float>(config.train.eps);
  o.seed = static_cast<uint64_t>(config.run.seed);
  return o;
}

std::vector<std::vector<uint8_t>> addresses(const std::vector<DataAddress>& members) {
  std::vector<std::vector<uint8_t>> result;
  for (const DataAddress& member : members) result.push_back(member.bytes);
  return result;
}

/// Time spent waiting for others, for the watchdog.
class WaitsForOthers {
 public:
  explicit WaitsForOthers(std::atomic<bool>& flag) : flag_(flag) { flag_ = true; }
  ~WaitsForOthers() { flag_ = false; }
  WaitsForOthers(const WaitsForOthers&) = delete;
  WaitsForOthers& operator=(const WaitsForOthers&) = delete;

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

size_t arena_bytes(const Config& config, const Plan& plan, bool host_memory) {
  const auto groups = static_cast<size_t>(plan.topology.groups),
             shards = static_cast<size_t>(plan.topology.shards);
  const size_t total = shard_layout(units_of(plan.shape), shards).total;
  const EngineOptions options = engine_options(config, plan);
  size_t most = 0;  // fewer groups: more rows each, and more partial sums
  for (size_t g = 1; g <= groups; ++g)
    most = std::max(
        most, buffer_plan(options, g, shards, host_memory).bytes(config.train.precision, total));
  return most + (size_t{8} << 20);
}

/// Declared in the order of construction: what uses comes after what is used.
struct ComputeThread::Generation {
  std::unique_ptr<Collective> shard, replicate;
  TrainState* state = nullptr;
  std::optional<TokenRings> rings;
  std::unique_ptr<Engine> engine;
  uint64_t step = 0;  // committed
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
  if (generation <= fenced_) return;  // GEN-1
  fenced_ = generation;
  {
    std::lock_guard lock(plane_mutex_);
    plane_->abort(generation - 1, reason);
  }
  {  // which may compute for long before it needs the plane again
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
  progress.waiting = waiting_ || (engine_ && engine_->waiting());
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

/// progress() counts on: what this engine computed is not forgotten with it.
void ComputeThread::set_engine(Engine* engine) {
  std::lock_guard lock(engine_mutex_);
  if (engine_) units_ += engine_->progress();
  engine_ = engine;
  if (!engine_) return;
  if (fenced_ > generation_) engine_->abort("fenced before it began");
  for (const auto& [fault, step] : faults_) engine_->inject(fault, step);
  faults_.clear();
}

void ComputeThread::run() {
  trace::name_thread("compute");
  // While the first membership is being agreed on, load what every membership needs. Which GPU will
  // be its own, only that membership tells.
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
      report_(std::move(idle));
      continue;
    }
    const auto& order = std::get<JoinTrainer>(job);
    if (order.generation < fenced_) continue;  // GEN-1; the fence is answered after it
    trainer_ = order.trainer;
    fault_ = {.trainer = trainer_, .generation = order.generation};
    generation_ = order.generation;
    step_ = order.step;
    const Status status = run_generation(order);
    generation_ = 0;
    if (status.ok()) continue;
    log::warn("generation {} ends here: {}", order.generation, status.message());
    // The fence is answered after it. A bad copy, checkpoint or disk is news also then.
    if (order.generation < fenced_ && !fault_.fault.starts_with("bad_")) continue;
    if (fault_.fault.empty()) fault_.fault = "failed";
    fault_.reason = status.message();
    report_(fault_);
  }
}

Result<Backend*> ComputeThread::backend() {
  if (backend_) return backend_.get();
  BackendOptions o;
  o.shape = options_.plan.shape;
  o.micro_batch_size = static_cast<int>(options_.plan.micro_batch_size);
  o.precision = options_.config.train.precision;
  o.activation_checkpointing = options_.config.train.activation_checkpointing;
  o.threads = options_.threads;
  o.deterministic = options_.config.train.deterministic;
  if (device_index_) {
    o.device_index = *device_index_;
    SS_ASSIGN(backend_, make_cuda_backend(o));
    return backend_.get();
  }
  SS_ASSIGN(backend_, make_cpu_backend(o));
  return backend_.get();
}

/// The first generation tells which trainer this is, and so which device is its own.
Status ComputeThread::settle(const std::string& trainer) {
  if (!options_.choose_device || device_index_) return {};
  std::lock_guard lock(plane_mutex_);
  SS_ASSIGN(device_index_, options_.choose_device(trainer, plane_));
  return {};
}

Status ComputeThread::run_generation(const JoinTrainer& order) {
  const auto begun = std::chrono::steady_clock::now();
  SS_RETURN_IF_ERROR(settle(order.trainer));
  Generation g;
  Restore restore(order, options_.plan.shape, static_cast<size_t>(options_.plan.topology.shards),
                  static_cast<int>(options_.config.parallel.collective_timeout_ms),
                  [this, &order] { return fenced_ > order.generation; });
  {
    const WaitsForOthers waits(waiting_);
    trace::Span span("join generation", static_cast<int64_t>(order.generation));
    SS_RETURN_IF_ERROR(enter(g, order));
    span.end();
    span = trace::Span("transfer state");
    Status status = restore.transfer(*plane_, *g.state);
    span.end();
    span = trace::Span("check and commit state", -1, order.source);
    if (status.ok() && order.group != no_group)
      status = restore.commit(*g.state, *g.shard, *g.replicate);
    fault_.fault = restore.fault().fault;
    fault_.suspect = restore.fault().suspect;
    fault_.step = order.step;
    SS_RETURN_IF_ERROR(status);
  }
  if (order.group == no_group) {
    log::info("generation {}: helped with {} transfers", order.generation, order.transfers.size());
    report_(fault_);
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

/// Memory and communicators.
Status ComputeThread::enter(Generation& g, const JoinTrainer& order) {
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
    const std::span<float> first = g.state->side(0).params;  // the two sides lie side by side
    pinned_ = first.data();
    backend->pin_host(pinned_, 2 * 3 * first.size_bytes());
  }
  SS_ASSIGN(g.rings, TokenRings::open(order.ring_segment));
  SS_ASSIGN(g.engine, Engine::create(engine_options(options_.config, options_.plan), *backend,
                                     *g.shard, *g.replicate, *g.state));
  if (order.source == "initialize") {
    SS_RETURN_IF_ERROR(g.engine->initialize());
  } else {
    SS_ASSIGN(g.step, g.engine->attach());
  }
  if (g.step != order.step)
    return Status(Code::internal, "the state is at step " + std::to_string(g.step) +
                                      ", agreed was step " + std::to_string(order.step));
  return {};
}

/// One group's trainer of a shard saves it, or gives it to a peer node; the groups share the work.
Result<bool> ComputeThread::keep_for_checkpoint(Generation& g, const JoinTrainer& order,
                                                uint64_t step) {
  if (order.shard % order.replicate_members.size() != order.group) return false;
  SS_RETURN_IF_ERROR(g.engine->settle());
  SS_ASSIGN(const int side, g.state->pin(step));
  (void)side;  // the node's actor that copies it lets go of it
  return true;
}

StepDone ComputeThread::step_done(const JoinTrainer& order, uint64_t step,
                                  const StepResult& result) const {
  StepDone done{.generation = order.generation, .step = step, .trainer = trainer_};
  done.loss = result.loss;
  done.grad_norm = result.grad_norm;
  done.learning_rate = options_.plan.learning_rate.at(static_cast<int64_t>(step) - 1);
  done.step_ms = result.step_ms;
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
  const auto max_steps = static_cast<uint64_t>(options_.plan.max_steps);
  const auto every = static_cast<uint64_t>(options_.config.checkpoint.disk_every_steps);
  const auto peer_every = static_cast<uint64_t>(options_.config.checkpoint.peer_every_steps);
  if (g.step == 0) SS_RETURN_IF_ERROR(validate(g, order, 0));
  StepControl agreed;
  while (g.step < max_steps && !agreed.stop && !agreed.pause) {
    const uint64_t step = g.step + 1;
    SS_ASSIGN(const StepResult result, this->step(g, order, step));
    g.step = step_ = step;
    log::debug(
        "step {}: {:.2f} ms; data {:.2f}, forward {:.2f}, backward {:.2f}, optimizer {:.2f}; of "
        "them {:.2f} waiting for others",
        step, result.step_ms, result.data_ms, result.forward_ms, result.backward_ms,
        result.optimizer_ms, result.wait_ms);
    agreed = result.agreed;
    if (agreed.save) save_ = false;
    const bool last = agreed.stop || step == max_steps;  // TrainerFinished tells of that one
    StepDone done = step_done(order, step, result);
    if (!last && (agreed.save || (every > 0 && step % every == 0))) {
      SS_ASSIGN(done.save, keep_for_checkpoint(g, order, step));
    }
    if (!last && peer_every > 0 && step % peer_every == 0) {
      SS_ASSIGN(done.copy, keep_for_checkpoint(g, order, step));
    }
    report_(std::move(done));
    inject_delay(result.step_ms);
  }
  if (g.step == max_steps || agreed.stop) return finish(g, order);
  SS_RETURN_IF_ERROR(g.engine->settle());  // what memory holds is told next
  log::info("generation {} was left after step {}", order.generation, g.step);
  fault_.step = g.step;
  report_(fault_);  // none: it was asked to leave
  return {};
}

/// After the last step, which no vote follows: replicas compare their states once more.
Status ComputeThread::finish(Generation& g, const JoinTrainer& order) {
  const auto max_steps = static_cast<uint64_t>(options_.plan.max_steps);
  SS_RETURN_IF_ERROR(blame_state(g, g.engine->compare_states()));
  if (g.step == max_steps && order.step < max_steps) SS_RETURN_IF_ERROR(validate(g, order, g.step));
  TrainerFinished end{trainer_, order.generation, g.step, false};
  if (g.step > order.step || order.source == "memory") {
    SS_ASSIGN(end.save, keep_for_checkpoint(g, order, g.step));
  }
  report_(std::move(end));
  return {};
}

/// What the engine says of a step, in the words of TrainerIdle.
Status ComputeThread::blame_state(Generation& g, Status status) {
  if (status.code() == Code::bad_data) {
    fault_.fault = "non_finite";
    fault_.step = g.step + 1;
  } else if (g.engine->damaged()) {
    fault_.fault = "bad_copy";
    fault_.step = g.step;
    fault_.suspect = trainer_;
    if (Status copied = g.state->wait_unpinned(
            static_cast<int>(options_.config.parallel.collective_timeout_ms));
        !copied.ok())
      log::warn("{}", copied.message());
    g.state->forget(g.step);
  } else if (const auto& mismatch = g.engine->mismatch();
             status.code() == Code::mismatch && mismatch) {
    fault_.fault = "mismatch";
    fault_.step = mismatch->step;
    const auto wrong = mismatch->wrong();
    const bool mine = mismatch->shard == g.shard->rank() &&
                      std::ranges::find(wrong, g.replicate->rank()) != wrong.end();
    if (mine) fault_.suspect = trainer_;
    if (mismatch->shard == g.shard->rank())
      fault_.state_hash = mismatch->of_group[static_cast<size_t>(g.replicate->rank())].low;
  }
  return status;
}

/// Injected slowness.
void ComputeThread::inject_delay(double step_ms) {
  if (std::chrono::steady_clock::now().time_since_epoch().count() >= slow_until_ns_) return;
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, std::chrono::duration<double, std::milli>(slow_fraction_ * step_ms),
                 [this] { return exiting_; });
}

/// They may be long in coming; a fence does not wait for them. A token file that is bad is told as
/// io: bad_data is what the engine calls a loss that is not finite.
Result<MicroBatch> ComputeThread::tokens(Generation& g, const JoinTrainer& order,
                                         const BatchKey& key) {
  constexpr int look_ms = 50;
  const int64_t limit_ms = options_.config.supervision.progress_timeout_ms;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  while (true) {
    auto batch = g.rings->acquire(order.ring, key, look_ms);
    if (batch.status().code() == Code::bad_data) return Status(Code::io, batch.status().message());
    if (batch.status().code() != Code::deadline) return batch;
    if (fenced_ > order.generation)
      return Status(Code::aborted, "fenced while it waited for tokens");
    if (std::chrono::steady_clock::now() > deadline)
      return Status(Code::deadline, "no tokens within " + std::to_string(limit_ms) + " ms");
  }
}

Result<StepResult> ComputeThread::step(Generation& g, const JoinTrainer& order, uint64_t step) {
  bool holding = false;
  auto let_go = [&]() -> Status {
    if (!holding) return {};
    holding = false;
    return g.rings->release(order.ring);
  };
  auto batch = [&](int k) -> Result<const int32_t*> {
    SS_RETURN_IF_ERROR(let_go());
    const WaitsForOthers waits(waiting_);
    SS_ASSIGN(const MicroBatch micro_batch,
              tokens(g, order, {order.generation, step - 1, static_cast<uint64_t>(k)}));
    holding = true;
    return micro_batch.tokens;
  };
  StepControl mine;
  mine.stop = stop_;
  mine.save = save_;
  mine.pause = leave_ == order.generation;
  const auto rate =
      static_cast<float>(options_.plan.learning_rate.at(static_cast<int64_t>(step) - 1));
  auto result = g.engine->step(step, rate, mine, batch);
  if (!result.ok()) return blame_state(g, result.status());
  SS_RETURN_IF_ERROR(let_go());
  return result;
}

/// Mean loss over the first validation samples: micro-batch j is computed by rank j mod world, and
/// the losses are added in their order, so the result does not depend on the layout.
Status ComputeThread::validate(Generation& g, const JoinTrainer& order, uint64_t step) {
  const trace::Span span("validate", static_cast<int64_t>(step));
  const Plan& plan = options_.plan;
  const auto batch_size = static_cast<uint64_t>(plan.micro_batch_size);
  if (options_.config.train.validation_samples == 0) return {};
  if (!dataset_) {
    SS_ASSIGN(dataset_, open_tokens(options_.config, plan.shape));
  }
  const TokenSource& source = dataset_->validation;
  const uint64_t samples =
      std::min<uint64_t>(static_cast<uint64_t>(options_.config.train.validation_samples),
                         source.tokens() > 0 ? source.samples(plan.shape.block_size) : 0);
  const uint64_t batches = samples / batch_size,
                 world = order.shard_members.size() * order.replicate_members.size();
  if (batches == 0) return {};
  const uint64_t rank = order.group * order.shard_members.size() + order.shard;
  const auto row = static_cast<size_t>(plan.shape.block_size + 1);
  std::vector<int32_t> tokens(batch_size * row);
  std::vector<double> group_losses(order.shard_members.size());
  std::vector<double> losses(world);
  double sum = 0;
  for (uint64_t first = 0; first < batches; first += world) {
    const uint64_t mine =
        std::min(first + rank, batches - 1);  // beyond the end: computed, not counted
    for (uint64_t b = 0; b < batch_size; ++b)
      if (Status read = source.read_sample(mine * batch_size + b, plan.shape.block_size,
                                           tokens.data() + b * row);
          !read.ok()) {
        (void)dataset_->validation.reopen();  // the next generation tries again
        return read;
      }
    SS_ASSIGN(const double loss, g.engine->loss(tokens.data()));
    SS_RETURN_IF_ERROR(g.shard->all_gather_bytes(&loss, group_losses.data(), sizeof loss)->wait());
    SS_RETURN_IF_ERROR(g.replicate
                           ->all_gather_bytes(group_losses.data(), losses.data(),
                                              group_losses.size() * sizeof loss)
                           ->wait());
    for (uint64_t i = 0; i < world && first + i < batches; ++i) sum += losses[i];
  }
  report_(Validated{order.generation, step, trainer_, sum / static_cast<double>(batches)});
  return {};
}

}  // namespace simplescale
