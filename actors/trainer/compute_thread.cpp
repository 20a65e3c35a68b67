#include "actors/trainer/compute_thread.hpp"

#include <algorithm>
#include <cstdio>

#include "actors/checkpoint/state_store.hpp"
#include "model/engine/buffer_plan.hpp"
#include "runtime/base/log.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/data/data_location.hpp"

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
  std::optional<TrainState> state;
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
  plane_->abort(UINT64_MAX, "the trainer stops");
  wake_.notify_one();
  thread_.join();
}

void ComputeThread::join(JoinTrainer order) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(order));
  wake_.notify_one();
}

void ComputeThread::fence(uint64_t generation, const std::string& reason) {
  plane_->abort(generation - 1, reason);
  std::lock_guard lock(mutex_);
  jobs_.push_back(Fenced{generation, reason});
  wake_.notify_one();
}

void ComputeThread::run() {
  // While the first membership is being agreed on, load what every membership needs.
  if (auto made = backend(); !made.ok()) log::error("{}", made.status().message());
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
      TrainerIdle idle{.trainer = options_.trainer, .generation = fenced->generation - 1};
      idle.reason = fenced->reason;
      report_(std::move(idle));
      continue;
    }
    const auto& order = std::get<JoinTrainer>(job);
    if (Status status = run_generation(order); !status.ok()) {
      log::warn("generation {} ends here: {}", order.generation, status.message());
      TrainerIdle idle{.trainer = options_.trainer, .generation = order.generation};
      idle.fault = "failed";
      idle.reason = status.message();
      report_(std::move(idle));
    }
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
  if (options_.device_index) {
    o.device_index = *options_.device_index;
    SS_ASSIGN(backend_, make_cuda_backend(o));
    return backend_.get();
  }
  SS_ASSIGN(backend_, make_cpu_backend(o));
  return backend_.get();
}

Status ComputeThread::run_generation(const JoinTrainer& order) {
  Generation g;
  const int timeout_ms = static_cast<int>(options_.config.parallel.collective_timeout_ms);
  SS_ASSIGN(Backend * backend, this->backend());
  SS_ASSIGN(g.shard, plane_->join({order.generation, "shard", static_cast<int>(order.shard),
                                   addresses(order.shard_members), timeout_ms}));
  SS_ASSIGN(g.replicate, plane_->join({order.generation, "replicate", static_cast<int>(order.group),
                                       addresses(order.replicate_members), timeout_ms}));
  const auto shards = static_cast<size_t>(options_.plan.topology.shards);
  const size_t total = shard_layout(units_of(options_.plan.shape), shards).total;
  SS_ASSIGN(g.state,
            TrainState::open(order.state_segment,
                             layout_hash(options_.plan.shape, shards, order.shard), total));
  SS_ASSIGN(g.rings, TokenRings::open(order.ring_segment));
  SS_ASSIGN(g.engine, Engine::create(engine_options(options_.config, options_.plan), *backend,
                                     *g.shard, *g.replicate, *g.state));
  SS_RETURN_IF_ERROR(restore(g, order));
  log::info("generation {}: group {} shard {}, at step {} from {}", order.generation, order.group,
            order.shard, g.step, order.source);
  return train(g, order);
}

Status ComputeThread::restore(Generation& g, const JoinTrainer& order) {
  if (order.source == "initialize") {
    SS_RETURN_IF_ERROR(g.engine->initialize());
  } else if (order.source == "checkpoint") {
    char name[32];
    std::snprintf(name, sizeof name, "/step-%08llu", static_cast<unsigned long long>(order.step));
    SS_ASSIGN(Checkpoint checkpoint, Checkpoint::open(order.checkpoint + name));
    g.state->invalidate();
    SS_ASSIGN(const TrainState::Side side,
              g.state->begin_write(options_.config.parallel.collective_timeout_ms));
    SS_RETURN_IF_ERROR(read_shard(checkpoint, static_cast<size_t>(options_.plan.topology.shards),
                                  order.shard, side));
    g.state->commit(order.step);
    SS_ASSIGN(g.step, g.engine->attach());
  } else {
    SS_RETURN_IF_ERROR(g.state->rewind(order.step));
    SS_ASSIGN(g.step, g.engine->attach());
  }
  if (g.step != order.step)
    return Status(Code::internal, "the state is at step " + std::to_string(g.step) +
                                      ", agreed was step " + std::to_string(order.step));
  return {};
}

/// One group's trainer of a shard saves it; the groups share the work.
bool ComputeThread::saves() const {
  return options_.place.shard % options_.plan.topology.groups == options_.place.group;
}

Result<bool> ComputeThread::keep_for_checkpoint(Generation& g, uint64_t step) {
  if (!saves()) return false;
  SS_ASSIGN(const int side, g.state->pin(step));
  (void)side;  // the node's checkpoint actor lets go of it
  return true;
}

Status ComputeThread::train(Generation& g, const JoinTrainer& order) {
  const auto max_steps = static_cast<uint64_t>(options_.plan.max_steps);
  const auto every = static_cast<uint64_t>(options_.config.checkpoint.disk_every_steps);
  if (g.step == 0) SS_RETURN_IF_ERROR(validate(g, order, 0));
  bool stopped = false;
  while (g.step < max_steps && !stopped) {
    const uint64_t step = g.step + 1;
    SS_ASSIGN(const StepResult result, this->step(g, order, step));
    g.step = step;
    log::debug(
        "step {}: {:.2f} ms; data {:.2f}, forward {:.2f}, backward {:.2f}, optimizer {:.2f}; of "
        "them {:.2f} waiting for others",
        step, result.step_ms, result.data_ms, result.forward_ms, result.backward_ms,
        result.optimizer_ms, result.wait_ms);
    stopped = result.agreed.stop;
    const bool last = stopped || step == max_steps;  // TrainerFinished tells of that one
    StepDone done{order.generation,
                  step,
                  options_.trainer,
                  result.loss,
                  result.grad_norm,
                  0,
                  result.step_ms,
                  {},
                  false,
                  result.step_ms - result.wait_ms,
                  0};
    done.learning_rate = options_.plan.learning_rate.at(static_cast<int64_t>(step) - 1);
    done.samples =
        samples_of(options_.plan, order.replicate_members.size(), order.group, order.shard, step);
    if (!last && (result.agreed.save || (every > 0 && step % every == 0))) {
      SS_ASSIGN(done.save, keep_for_checkpoint(g, step));
    }
    report_(std::move(done));
  }
  if (g.step == max_steps && order.step < max_steps) SS_RETURN_IF_ERROR(validate(g, order, g.step));
  TrainerFinished end{options_.trainer, order.generation, g.step, false};
  if (g.step > order.step || order.source == "memory") {
    SS_ASSIGN(end.save, keep_for_checkpoint(g, g.step));
  }
  report_(std::move(end));
  return {};
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
    SS_ASSIGN(const MicroBatch micro_batch,
              g.rings->acquire(order.ring, {order.generation, step - 1, static_cast<uint64_t>(k)},
                               static_cast<int>(options_.config.supervision.progress_timeout_ms)));
    holding = true;
    return micro_batch.tokens;
  };
  StepControl mine;
  mine.stop = stop_;
  const auto rate =
      static_cast<float>(options_.plan.learning_rate.at(static_cast<int64_t>(step) - 1));
  SS_ASSIGN(StepResult result, g.engine->step(step, rate, mine, batch));
  SS_RETURN_IF_ERROR(let_go());
  return result;
}

/// Mean loss over the first validation samples: micro-batch j is computed by rank j mod world, and
/// the losses are added in their order, so the result does not depend on the layout.
Status ComputeThread::validate(Generation& g, const JoinTrainer& order, uint64_t step) {
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
                 world = static_cast<uint64_t>(plan.topology.world());
  if (batches == 0) return {};
  const uint64_t rank = order.group * static_cast<uint64_t>(plan.topology.shards) + order.shard;
  const auto row = static_cast<size_t>(plan.shape.block_size + 1);
  std::vector<int32_t> tokens(batch_size * row);
  std::vector<double> group_losses(static_cast<size_t>(plan.topology.shards));
  std::vector<double> losses(world);
  double sum = 0;
  for (uint64_t first = 0; first < batches; first += world) {
    const uint64_t mine =
        std::min(first + rank, batches - 1);  // beyond the end: computed, not counted
    for (uint64_t b = 0; b < batch_size; ++b)
      SS_RETURN_IF_ERROR(source.read_sample(mine * batch_size + b, plan.shape.block_size,
                                            tokens.data() + b * row));
    SS_ASSIGN(const double loss, g.engine->loss(tokens.data()));
    SS_RETURN_IF_ERROR(g.shard->all_gather_bytes(&loss, group_losses.data(), sizeof loss)->wait());
    SS_RETURN_IF_ERROR(g.replicate
                           ->all_gather_bytes(group_losses.data(), losses.data(),
                                              group_losses.size() * sizeof loss)
                           ->wait());
    for (uint64_t i = 0; i < world && first + i < batches; ++i) sum += losses[i];
  }
  report_(Validated{order.generation, step, options_.trainer, sum / static_cast<double>(batches)});
  return {};
}

}  // namespace simplescale
