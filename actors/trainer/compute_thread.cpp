#include "actors/trainer/compute_thread.hpp"

#include <algorithm>

#include "actors/trainer/compute_generation.hpp"
#include "actors/trainer/engine_setup.hpp"
#include "model/cpu/instructions.hpp"
#include "runtime/base/log.hpp"
#include "runtime/config/signature.hpp"
#include "runtime/observe/trace.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

namespace {

std::vector<std::vector<uint8_t>> addresses(const std::vector<DataAddress>& members) {
  std::vector<std::vector<uint8_t>> result;
  for (const DataAddress& member : members) result.push_back(member.bytes);
  return result;
}

}  // namespace

ComputeThread::ComputeThread(ComputeOptions options, std::unique_ptr<DataPlane> plane,
                             std::function<void(ComputeReport)> report)
    : options_(std::move(options)),
      plane_(std::move(plane)),
      report_(std::move(report)),
      kernel_traces_(options_.config.metrics.trace_steps, options_.traces_folder),
      warm_gpus_(options_.warm_gpus, {hold_cuda_context, drop_cuda_context, prepare_nccl}),
      shards_(options_.plan.topology.shards),
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

void ComputeThread::prepare(PrepareGpus order) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(order));
  wake_.notify_one();
}

void ComputeThread::prepare(UseInstructions order) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(order);
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
  Activity activity{.phase = doing_};
  if (engine_ && activity.phase == StepPhase::none) activity = engine_->activity();
  progress.phase = activity.phase;
  progress.block = activity.block;
  progress.gpu = gpu_;
  return progress;
}

void ComputeThread::inject(EngineFault fault, uint64_t step) {
  std::lock_guard lock(engine_mutex_);
  if (engine_)
    engine_->inject(fault, step);
  else
    faults_.emplace_back(fault, step);
}

void ComputeThread::slow_down(double ms, std::chrono::milliseconds how_long) {
  slow_ms_ = ms;
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
  if (options_.choose_device)
    if (const Status loaded = load_cuda_backend(); !loaded.ok()) log::error("{}", loaded.message());
  // While there is nothing else to do: any trainer of this node may have to be replaced. If the node
  // has told which GPUs they use, the guess is out of date.
  if (!is_told()) warm_gpus_.make([this] { return is_needed(); });
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
      idle.reason.text = fenced->reason;
      // By the hashes the supervisor finds a wrong replica. The fence may have ended this vote because
      // the ranks of another shard, which know all hashes, have reported a mismatch.
      if (hashed_) idle.step = hashed_->step, idle.state_hash = hashed_->hash.low;
      report_(std::move(idle));
      continue;
    }
    if (const auto* gpus = std::get_if<PrepareGpus>(&job)) {
      if (device_index_) continue;
      warm_gpus_.change({gpus->gpus.begin(), gpus->gpus.end()});
      warm_gpus_.make([this] { return is_needed(); });
      continue;
    }
    if (const auto* use = std::get_if<UseInstructions>(&job)) {
      if (options_.choose_device) continue;
      instructions_ = cpu::use_instructions(use->instructions);
      if (const Status made = backend().status(); !made.ok()) log::error("{}", made.message());
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

bool ComputeThread::is_told() {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(
      jobs_, [](const Job& job) { return std::holds_alternative<PrepareGpus>(job); });
}

bool ComputeThread::is_needed() {
  const std::lock_guard lock(mutex_);
  return exiting_ || std::ranges::any_of(jobs_, [](const Job& job) {
           return !std::holds_alternative<PrepareGpus>(job);
         });
}

void ComputeThread::report_failure(const JoinTrainer& order, const Status& status) {
  log::warn("generation {} ended: {}", order.generation, status.message());
  // The fence's job, still queued, reports idle. A bad copy, checkpoint or disk is reported anyway,
  // and so is a mismatch: it says which step must be undone.
  const bool anyway = idle_.fault >= Fault::mismatch;
  if (order.generation < fenced_ && !anyway) return;
  if (idle_.fault == Fault::none) idle_.fault = Fault::failed;
  idle_.reason.text = status.message();
  report_(idle_);
}

Result<Backend*> ComputeThread::backend() {
  if (backend_) return backend_.get();
  SS_RETURN_IF_ERROR(instructions_);
  BackendOptions options =
      backend_options(options_.config, options_.plan, shards_, options_.threads);
  if (device_index_) {
    options.device_index = *device_index_;
    options.gemm_folder = options_.gemm_folder;
    SS_ASSIGN(backend_, make_cuda_backend(options));
    return backend_.get();
  }
  SS_ASSIGN(backend_, make_cpu_backend(options));
  return backend_.get();
}

/// A backend has frames for one wave, because the memory of a group of another size may have no room
/// for more, and buffers for one number of experts.
void ComputeThread::use_shards(int shards) {
  const Plan& plan = options_.plan;
  const bool same = plan.wave_of(shards) == plan.wave_of(shards_) &&
                    plan.expert_shards(shards) == plan.expert_shards(shards_);
  shards_ = shards;
  if (same) return;
  forget_pages();
  backend_.reset();
}

/// Once, in the first generation: the trainer's name determines its device.
Status ComputeThread::choose_device(const std::string& trainer) {
  if (!options_.choose_device || device_index_) return {};
  {
    std::lock_guard lock(plane_mutex_);
    SS_ASSIGN(device_index_, options_.choose_device(trainer, plane_));
  }
  gpu_ = *device_index_;
  warm_gpus_.keep(*device_index_);
  return {};
}

Status ComputeThread::run_generation(const JoinTrainer& order) {
  Generation g;
  SS_RETURN_IF_ERROR(choose_device(order.trainer));
  if (backend_) kernel_traces_.end_failed(*backend_, trainer_);
  if (order.group != no_group) use_shards(static_cast<int>(order.shards));
  // A trainer that cannot compute says so now: members that wait for it would do so for a minute.
  if (!device_index_ && order.group != no_group) SS_RETURN_IF_ERROR(backend().status());
  Restore restore(
      order, options_.plan.shape, static_cast<int>(options_.config.parallel.collective_timeout_ms),
      [this, &order] { return fenced_ > order.generation; },
      on_threads(static_cast<size_t>(options_.threads)));
  {
    const Doing doing(doing_, StepPhase::restore);
    const Waiting waits(wait_);
    SS_RETURN_IF_ERROR(restore_state(g, order, restore));
  }
  if (order.group == no_group) {
    log::info("generation {}: helped with {} transfers", order.generation, order.transfers.size());
    report_(idle_);
    return {};
  }
  SS_RETURN_IF_ERROR(make_engine(g, order));
  const double ms = g.ms();
  log::info(
      "generation {}: group {} of {}, shard {}, at step {} from {} after {:.0f} ms (joined after "
      "{:.0f} ms, with its state after {:.0f} ms)",
      order.generation, order.group, order.groups, order.shard, g.step, to_string(order.source), ms,
      g.joined_ms, g.restored_ms);
  report_(TrainerReady{trainer_, order.generation, g.step, ms, restore.bytes()});
  set_engine(g.engine.get());
  const Status status = train(g, order);
  set_engine(nullptr);
  return status;
}

/// Joins the generation's communicators and brings the state in shared memory to its step.
Status ComputeThread::restore_state(Generation& g, const JoinTrainer& order, Restore& restore) {
  trace::Span span("join generation", static_cast<int64_t>(order.generation));
  SS_RETURN_IF_ERROR(join_generation(g, order));
  g.joined_ms = g.ms();
  span.end();
  span = trace::Span("transfer state");
  Status status = restore.transfer(*plane_, *g.state);
  span.end();
  span = trace::Span("check and commit state", -1, to_string(order.source));
  if (status.ok() && order.group != no_group) status = restore.commit(*g.state, g.axes);
  idle_.fault = restore.fault().fault;
  idle_.suspect = restore.fault().suspect;
  idle_.step = order.step;
  g.restored_ms = g.ms();
  return status;
}

/// Maps the state and, unless the trainer only helps, joins the communicators of its axes.
Status ComputeThread::join_generation(Generation& g, const JoinTrainer& order) {
  const int timeout_ms = static_cast<int>(options_.config.parallel.collective_timeout_ms);
  const bool mapped = state_ && state_->name() == order.state_segment;
  // The pages of a state that gets another cut are given back.
  if (!mapped || (order.group != no_group && cut_ != order.shards)) forget_pages();
  cut_ = order.group == no_group ? cut_ : order.shards;
  if (!mapped) {
    auto opened = TrainState::open(order.state_segment);
    if (!opened.ok()) {  // for the run its state is lost: a replica has another copy
      idle_.fault = Fault::bad_copy;
      idle_.suspect = trainer_;
      idle_.step = order.step;
      return opened.status();
    }
    state_ = opened.take();
  }
  g.state = &*state_;
  g.state->set_generation(order.generation);
  if (order.group == no_group) return {};
  for (const AxisMembers& axis : order.axes) {
    CommunicatorSpec spec{order.generation, axis.name, static_cast<int>(axis.place),
                          addresses(axis.members), timeout_ms};
    spec.separate_gathers =
        axis.name == kShardAxis && order.shards > 1 && !options_.config.train.deterministic;
    auto joined = plane_->join(spec);
    // Peers that wait in the other communicators see them end; closing them would wait for peers.
    if (!joined.ok())
      for (const Axis& other : g.axes) other.members->abort(joined.status().message());
    SS_ASSIGN(auto communicator, std::move(joined));
    g.axes.push_back({axis.name, communicator.get()});
    g.communicators.push_back(std::move(communicator));
  }
  // Not beside NCCL's start: each of its calls that maps memory would wait for many page faults. Not
  // before transfers, which may give pages back.
  if (device_index_ && !prefault_ && order.transfers.empty() &&
      options_.config.checkpoint.memory_every_steps > 0)
    prefault_state();
  return {};
}

/// Unpins the state's pages, and stops to enter them into this process's page table.
void ComputeThread::forget_pages() {
  prefault_.reset();
  if (!state_ || !backend_) return;
  for (const int side : {0, 1}) backend_->unpin_host(state_->side(side).params.data());
}

/// A GPU's copies of the state are written to pages that this process has not used yet. First those of
/// the side to which the next copy goes.
void ComputeThread::prefault_state() {
  const auto all_of = [this](int side) {
    const TrainState::Side s = state_->side(side);
    return std::span(s.params.data(), s.values());
  };
  const bool first_is_committed =
      state_->has_step() && state_->committed().params.data() == state_->side(0).params.data();
  const int next = first_is_committed ? 1 : 0;
  prefault_.emplace(std::vector{all_of(next), all_of(1 - next)}, std::min(options_.threads, 8));
}

/// Of this trainer's device and host. What GPUs choose is left out: they may still choose it.
Hash128 ComputeThread::signature_hash() const {
  Arithmetic arithmetic = arithmetic_of_host(options_.config);
  arithmetic.cuda = device_index_.has_value();
  arithmetic.instructions = to_string(cpu::used_instructions());
  return signature_of(options_.config, options_.plan, arithmetic).hash();
}

Status ComputeThread::make_engine(Generation& g, const JoinTrainer& order) {
  const trace::Span span("make engine");
  SS_ASSIGN(Backend * backend, this->backend());
  SS_ASSIGN(
      g.batches,
      BatchReader::open(order.ring_segment, order.ring, order.generation,
                        std::chrono::milliseconds(options_.config.supervision.progress_timeout_ms),
                        [this, &order] { return fenced_ > order.generation; }));
  EngineOptions options =
      engine_options(options_.config, options_.plan, static_cast<int>(order.shards));
  options.signature = signature_hash();
  options.weights = order.weights;
  g.layout = batch_layout(options_.plan, order.groups, order.shards, order.weights);
  SS_ASSIGN(g.engine, Engine::create(options, *backend, g.axes, *g.state));
  if (order.source == JoinSource::initialize) {
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

}  // namespace simplescale
