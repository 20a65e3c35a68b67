#include "model/engine/engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>

#include "model/engine/buffer_plan.hpp"
#include "model/engine/gather.hpp"
#include "model/engine/initial_values.hpp"
#include "model/engine/optimizer.hpp"
#include "model/engine/reduce.hpp"
#include "model/engine/stopwatch.hpp"
#include "model/engine/vote.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/training/state_hash.hpp"

namespace simplescale {
namespace {

constexpr uint64_t kNever = UINT64_MAX;
constexpr size_t kInitialPiece = size_t{1} << 16;  // elements that a thread makes at a time

Status check(const EngineOptions& options, const Collective& shard, const Collective& replicate,
             TrainState& state, size_t total) {
  SS_RETURN_IF_ERROR(validate(options.shape));
  auto bad = [](const std::string& text) { return Status(Code::bad_config, text); };
  if (options.micro_batch_size < 1) return bad("micro_batch_size must be at least 1");
  if (options.rows < replicate.size())
    return bad(std::to_string(options.rows) + " rows are too few for " +
               std::to_string(replicate.size()) + " groups");
  if (!(options.grad_clip >= 0)) return bad("grad_clip must not be negative");
  if (options.sharding == Sharding::no_shard && shard.size() != 1)
    return bad("no_shard needs groups of one trainer, this group has " +
               std::to_string(shard.size()));
  if (state.side(0).params.size() != total)
    return bad("the training state has " + std::to_string(state.side(0).params.size()) +
               " parameters, this shard " + std::to_string(total));
  return {};
}

/// Ranks with different options must not train together.
uint64_t hash_of(const EngineOptions& o, int shards, int groups) {
  const ModelShape& s = o.shape;
  std::ostringstream text;
  text << std::hexfloat;
  for (int64_t n : {s.dim, s.hidden, s.layers, s.heads, s.kv_heads, s.vocab, s.block_size})
    text << n << ' ';
  for (int n : {int(s.tie_embeddings), int(o.precision), o.micro_batch_size, o.rows,
                int(o.sharding), int(o.deterministic), shards, groups})
    text << n << ' ';
  for (double x : {s.rope_theta, s.norm_eps}) text << x << ' ';
  for (float x : {o.grad_clip, o.weight_decay, o.beta1, o.beta2, o.eps}) text << x << ' ';
  const std::string bytes = text.str();
  return hash128(bytes.data(), bytes.size()).low;
}

std::string at_step(uint64_t step) {
  return "step " + std::to_string(step);
}

}  // namespace

struct Engine::Parts {
  Parts(const EngineOptions& o, Backend& b, Collective& s, Collective& r, TrainState& t)
      : options(o), backend(b), shard(s), replicate(r), state(t) {}

  EngineOptions options;
  Backend& backend;
  Collective& shard;
  Collective& replicate;
  TrainState& state;

  std::vector<Unit> units;
  ShardLayout layout;
  BufferPlan plan;
  uint64_t options_hash = 0;
  float leaf_scale = 1;  // 1/M
  std::optional<GatherSchedule> gather;
  std::optional<ReduceSchedule> reduce;
  std::optional<ShardOptimizer> optimizer;
  std::optional<Vote> vote;
  std::optional<Mismatch> mismatch;
  bool damaged = false;
  RowRange rows;                   // of this group
  std::vector<int32_t> no_tokens;  // (B, T + 1): stands in for a batch that failed
  std::vector<double> block_squares;

  Status finished;      // not ok: the error that ended this engine
  uint64_t making = 0;  // the newest step that has begun
  WaitClock wait;
  std::atomic<uint64_t> fault_step[3] = {kNever, kNever, kNever};  // by EngineFault
  std::atomic<uint64_t> progress = 0;
  std::atomic<bool> aborted = false;
  std::mutex mutex;
  std::string abort_reason;  // under mutex

  size_t head() const { return units.size() - 1; }
  size_t layers() const { return units.size() - 2; }
  bool tied() const { return options.shape.tie_embeddings; }

  Status create();
  void load();
  Status finish(Status status);
  Status computed();
  Status check_memory(const Hash128& now);
  bool due(EngineFault fault);
  void flip_bit();
  Result<const void*> forward(const int32_t* tokens, size_t after_head, const void** tied_params);
  Status micro_batch(int k, const int32_t* tokens, double& loss, StepResult& times);
  Result<Verdict> vote_on(Ballot& ballot, const Batch& batch, StepResult& times);
};

Status Engine::Parts::create() {
  units = units_of(options.shape);
  const size_t shards = static_cast<size_t>(shard.size()),
               groups = static_cast<size_t>(replicate.size());
  layout = shard_layout(units, shards);
  SS_RETURN_IF_ERROR(check(options, shard, replicate, state, layout.total));
  plan = buffer_plan(options, groups, shards, backend.host_memory());
  if (void* stream = backend.stream()) {
    shard.follow(stream);
    replicate.follow(stream);
  }
  options_hash = hash_of(options, shard.size(), replicate.size());
  const auto all_rows = static_cast<uint64_t>(options.rows);
  rows = rows_of_group(all_rows, groups, static_cast<uint64_t>(replicate.rank()));
  leaf_scale = 1.0f / static_cast<float>(all_rows * shards);
  SS_ASSIGN(gather, GatherSchedule::create(plan, layout, options.precision, backend, shard));
  SS_ASSIGN(reduce, ReduceSchedule::create(plan, units, layout, options.precision, all_rows,
                                           backend, shard, replicate));
  SS_ASSIGN(optimizer, ShardOptimizer::create(
                           plan, decay_runs(units, layout, static_cast<size_t>(shard.rank())),
                           layout.total, backend, shard, state));
  vote.emplace(units, layout, all_rows, shard, replicate);
  no_tokens.resize(static_cast<size_t>(options.micro_batch_size * (options.shape.block_size + 1)));
  block_squares.resize(layout.total / kShardAlign);
  if (state.has_step()) load();
  return {};
}

void Engine::Parts::load() {
  optimizer->load();
  gather->reset(optimizer->params());
}

/// The end of this engine: nobody of it is left waiting.
Status Engine::Parts::finish(Status status) {
  if (finished.ok()) {
    finished = status;
    shard.abort(status.message());
    replicate.abort(status.message());
  }
  return status;
}

/// After every unit: a sign of life, and the place where abort() is noticed.
Status Engine::Parts::computed() {
  if (due(EngineFault::hang))
    for (;;) pause();
  progress.fetch_add(1, std::memory_order_relaxed);
  if (!aborted) return {};
  const std::lock_guard lock(mutex);
  return {Code::aborted, abort_reason};
}

/// ENGINE-5.
Status Engine::Parts::check_memory(const Hash128& now) {
  damaged = !optimizer->intact(now);
  if (!damaged) return {};
  return {Code::mismatch, "the state of " + at_step(optimizer->step()) + " has changed in memory"};
}

/// Once, when the step that the fault was asked for has begun.
bool Engine::Parts::due(EngineFault fault) {
  std::atomic<uint64_t>& at = fault_step[static_cast<size_t>(fault)];
  uint64_t step = at;
  return step <= making && at.compare_exchange_strong(step, kNever);
}

/// In the first block, whose gradients are all different from zero.
void Engine::Parts::flip_bit() {
  float* at = reduce->total() + layout.offset[1];
  uint32_t bits = 0;
  backend.copy_to_host(&bits, at, sizeof bits);
  backend.synchronize();
  bits ^= 1u << 22;
  backend.copy_to_device(at, &bits, sizeof bits);
  backend.synchronize();
}

/// Up to the head, whose parameters are returned; after_head: the unit that will be needed next.
Result<const void*> Engine::Parts::forward(const int32_t* tokens, size_t after_head,
                                           const void** tied_params) {
  SS_ASSIGN(const void* params, gather->use(0, 1, wait));
  {
    const trace::Span span("forward embeddings");
    backend.embed(params, tokens);
  }
  *tied_params = tied() ? params : nullptr;
  for (size_t layer = 0; layer < layers(); ++layer) {
    SS_RETURN_IF_ERROR(computed());
    SS_ASSIGN(params, gather->use(1 + layer, 2 + layer, wait));
    const trace::Span span("forward block", static_cast<int64_t>(layer));
    backend.forward_block(static_cast<int>(layer), params);
  }
  SS_RETURN_IF_ERROR(computed());
  return gather->use(head(), after_head, wait);
}

Status Engine::Parts::micro_batch(int k, const int32_t* tokens, double& loss, StepResult& times) {
  const trace::Span span("micro-batch", k);
  const void* tied_params = nullptr;
  void* tied_grad = nullptr;
  const void* params = nullptr;
  {
    const Stopwatch watch(times.forward_ms);
    SS_ASSIGN(params, forward(tokens, layers(), &tied_params));
  }
  const Stopwatch watch(times.backward_ms);
  SS_ASSIGN(void* grad, reduce->gradient(head(), wait));
  if (tied()) {
    SS_ASSIGN(tied_grad, reduce->gradient(0, wait));
  }
  {
    const trace::Span head_span("forward and backward head");
    loss = backend.head(params, tied_params, leaf_scale, grad, tied_grad);
  }
  SS_RETURN_IF_ERROR(reduce->reduce(head(), k, wait));
  const size_t after = static_cast<uint64_t>(k) + 1 < rows.count ? 0 : GatherSchedule::kNone;
  for (size_t unit = layers(); unit > 0; --unit) {
    SS_RETURN_IF_ERROR(computed());
    SS_ASSIGN(params, gather->use(unit, unit > 1 ? unit - 1 : after, wait));
    SS_ASSIGN(grad, reduce->gradient(unit, wait));
    {
      const trace::Span block_span("backward block", static_cast<int64_t>(unit) - 1);
      backend.backward_block(static_cast<int>(unit) - 1, params, grad);
    }
    SS_RETURN_IF_ERROR(reduce->reduce(unit, k, wait));
  }
  SS_RETURN_IF_ERROR(computed());
  if (!tied()) {
    SS_ASSIGN(tied_grad, reduce->gradient(0, wait));
  }
  {
    const trace::Span embed_span("backward embeddings");
    backend.backward_embed(tied_grad, tied());
  }
  return reduce->reduce(0, k, wait);
}

/// Everything before the commit. A rank whose batch fails goes on with no tokens, so that all hear
/// of it in the vote.
Result<Verdict> Engine::Parts::vote_on(Ballot& ballot, const Batch& batch, StepResult& times) {
  gather->prefetch(0);
  reduce->begin_step();
  for (int k = 0; static_cast<uint64_t>(k) < rows.count; ++k) {
    const int32_t* tokens = no_tokens.data();
    if (ballot.failure.ok()) {
      const Stopwatch watch(times.data_ms);
      const trace::Span span("data");
      const Result<const int32_t*> next = batch(k);
      if (next.ok())
        tokens = *next;
      else if (next.status().code() == Code::aborted)
        return next.status();
      else
        ballot.failure = next.status();
    }
    double loss = 0;
    SS_RETURN_IF_ERROR(micro_batch(k, tokens, loss, times));
    if (due(EngineFault::nan_loss)) loss = std::numeric_limits<double>::quiet_NaN();
    ballot.losses.push_back(loss);
  }
  // While the last reductions are under way; as late as can be, so that no damage slips in between.
  // ENGINE-2: who votes for this step holds the one before it in host memory.
  SS_RETURN_IF_ERROR(optimizer->settle());
  trace::Span hash_span("hash state");
  ballot.state_hash = optimizer->whole_hash();
  hash_span.end();
  const Status intact = check_memory(ballot.state_hash);
  if (ballot.failure.ok()) ballot.failure = intact;
  const Stopwatch watch(times.backward_ms);
  trace::Span reduce_span("finish reductions");
  SS_RETURN_IF_ERROR(reduce->finish(wait));
  reduce_span.end();
  trace::Span norm_span("gradient norm");
  backend.block_square_sums(reduce->total(), layout.total, block_squares.data());
  ballot.block_squares = block_squares;
  norm_span.end();
  const trace::Span vote_span("vote");
  return vote->hold(ballot, wait);
}

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options, Backend& backend,
                                               Collective& shard, Collective& replicate,
                                               TrainState& state) {
  auto parts = std::make_unique<Parts>(options, backend, shard, replicate, state);
  SS_RETURN_IF_ERROR(parts->create());
  return std::unique_ptr<Engine>(new Engine(std::move(parts)));
}

Engine::Engine(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Engine::~Engine() {
  (void)settle();
}

Status Engine::settle() {
  return parts_->optimizer ? parts_->optimizer->settle() : Status();
}

Status Engine::initialize() {
  Parts& p = *parts_;
  SS_ASSIGN(const TrainState::Side side, p.state.begin_write(p.options.state_timeout_ms));
  for (size_t unit = 0; unit < p.units.size(); ++unit) {
    const size_t count = p.layout.count[unit];
    const size_t begin = static_cast<size_t>(p.shard.rank()) * count;
    p.backend.parallel((count + kInitialPiece - 1) / kInitialPiece, [&](size_t piece) {
      const size_t first = piece * kInitialPiece;
      initial_values(p.units[unit], p.options.seed, begin + first,
                     side.params.subspan(p.layout.offset[unit] + first,
                                         std::min(kInitialPiece, count - first)));
    });
  }
  std::fill(side.exp_avg.begin(), side.exp_avg.end(), 0.0f);
  std::fill(side.exp_avg_sq.begin(), side.exp_avg_sq.end(), 0.0f);
  p.state.commit(0, state_hash(side, [&p](size_t tasks, const std::function<void(size_t)>& body) {
                   p.backend.parallel(tasks, body);
                 }));
  p.load();
  return {};
}

Result<uint64_t> Engine::attach() {
  if (!parts_->state.has_step())
    return Status(Code::not_found, "training state " + parts_->state.name() + " holds no step");
  parts_->load();
  return parts_->optimizer->step();
}

Result<StepResult> Engine::step(uint64_t step, float learning_rate, const StepControl& mine,
                                const Batch& batch) {
  Parts& p = *parts_;
  SS_RETURN_IF_ERROR(p.finished);
  if (!p.optimizer->params())
    return Status(Code::not_found, "no state to start from: initialize() or attach()");
  StepResult result;
  p.making = step;
  p.mismatch.reset();
  p.damaged = false;
  p.wait.ms = 0;
  {
    const Stopwatch watch(result.step_ms);
    const trace::Span span("step", static_cast<int64_t>(step));
    Ballot ballot{.step = step,
                  .options_hash = p.options_hash,
                  .learning_rate = learning_rate,
                  .control = mine};
    if (p.optimizer->step() + 1 != step)
      ballot.failure = {Code::internal,
                        "holds " + at_step(p.optimizer->step()) + ", cannot make " + at_step(step)};
    const Result<Verdict> verdict = p.vote_on(ballot, batch, result);
    if (!verdict.ok()) return p.finish(verdict.status().in(at_step(step)));
    p.mismatch = verdict->mismatch;
    SS_RETURN_IF_ERROR(verdict->status);
    if (p.replicate.size() > 1) result.state_hash = ballot.state_hash;
    result.loss = verdict->loss;
    result.grad_norm = verdict->grad_norm;
    result.agreed = verdict->agreed;

    const Stopwatch optimizer_watch(result.optimizer_ms);
    const trace::Span optimizer_span("optimizer");
    const EngineOptions& o = p.options;
    AdamW adamw{learning_rate, o.beta1, o.beta2, o.eps, o.weight_decay, 1.0f, step};
    if (o.grad_clip > 0)
      adamw.gradient_scale = static_cast<float>(
          std::min(1.0, static_cast<double>(o.grad_clip) / (result.grad_norm + 1e-6)));
    if (p.due(EngineFault::bitflip_gradient)) p.flip_bit();
    // ENGINE-5: replicas would find it in the next vote.
    const bool check_source = p.replicate.size() == 1;
    const Status applied =
        p.optimizer->apply(adamw, p.reduce->total(), o.state_timeout_ms, check_source);
    p.damaged = applied.code() == Code::mismatch;
    if (!applied.ok()) return p.finish(applied.in(at_step(step)));
    p.gather->reset(p.optimizer->params());
  }
  result.wait_ms = p.wait.ms;
  return result;
}

Result<double> Engine::loss(const int32_t* tokens) {
  Parts& p = *parts_;
  SS_RETURN_IF_ERROR(p.finished);
  if (!p.optimizer->params())
    return Status(Code::not_found, "no state to start from: initialize() or attach()");
  const void* tied_params = nullptr;
  const Result<const void*> params = p.forward(tokens, GatherSchedule::kNone, &tied_params);
  if (!params.ok()) return p.finish(params.status());
  return p.backend.head(*params, tied_params, 0, nullptr, nullptr);
}

Status Engine::compare_states() {
  Parts& p = *parts_;
  SS_RETURN_IF_ERROR(p.finished);
  p.mismatch.reset();
  if (!p.optimizer->params())
    return Status(Code::not_found, "no state to compare: initialize() or attach()");
  SS_RETURN_IF_ERROR(p.optimizer->settle());
  const Hash128 hash = p.optimizer->copy_hash();  // what is saved now
  const Status intact = p.check_memory(hash);
  if (p.replicate.size() == 1) return intact;
  const Result<Verdict> verdict = p.vote->compare(p.optimizer->step(), hash, p.wait);
  if (!verdict.ok()) return p.finish(verdict.status().in("comparing states"));
  if (intact.ok()) p.mismatch = verdict->mismatch;
  return intact.ok() ? verdict->status : intact;
}

bool Engine::damaged() const {
  return parts_->damaged;
}

const std::optional<Mismatch>& Engine::mismatch() const {
  return parts_->mismatch;
}

int Engine::accumulation() const {
  return static_cast<int>(parts_->rows.count);
}

uint64_t Engine::leaf(int k) const {
  return leaf_of(parts_->rows, static_cast<uint64_t>(k), parts_->layout.shards,
                 static_cast<uint64_t>(parts_->shard.rank()));
}

size_t Engine::buffer_bytes() const {
  return parts_->plan.bytes(parts_->options.precision, parts_->layout.total);
}

void Engine::abort(const std::string& reason) {
  {
    const std::lock_guard lock(parts_->mutex);
    if (parts_->abort_reason.empty()) parts_->abort_reason = reason;
  }
  parts_->aborted = true;
  parts_->shard.abort(reason);
  parts_->replicate.abort(reason);
}

uint64_t Engine::progress() const {
  return parts_->progress.load(std::memory_order_relaxed);
}

bool Engine::waiting() const {
  return parts_->wait.waiting.load(std::memory_order_relaxed);
}

void Engine::inject(EngineFault fault, uint64_t step) {
  parts_->fault_step[static_cast<size_t>(fault)] = step;
}

}  // namespace simplescale
