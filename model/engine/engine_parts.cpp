#include "model/engine/engine_parts.hpp"

#include <unistd.h>

#include "runtime/observe/trace.hpp"
#include "runtime/training/token_marks.hpp"

namespace simplescale {
namespace {

Status check_state(const EngineOptions& options, TrainState& state, size_t total) {
  auto bad = [](const std::string& text) { return Status(Code::bad_config, text); };
  if (state.side(0).params.size() != total)
    return bad("the training state has " + std::to_string(state.side(0).params.size()) +
               " parameters, this shard " + std::to_string(total));
  if (state.format().moments != options.moments)
    return bad(std::string("the training state has moments in ") +
               to_string(state.format().moments) + ", not in " + to_string(options.moments));
  if (state.format().ema != state_format(options).ema)
    return bad(options.ema_decay == 0 ? "the training state has an average of the parameters"
                                      : "the training state has no average of the parameters");
  return {};
}

}  // namespace

Status Engine::Parts::create() {
  units = units_of(options.shape);
  const size_t shards = static_cast<size_t>(shard.size()),
               groups = static_cast<size_t>(replicate.size());
  layout = shard_layout(units, shards);
  SS_RETURN_IF_ERROR(check(options, shard.size()));
  SS_RETURN_IF_ERROR(check_state(options, state, layout.total));
  plan = buffer_plan(options, groups, shards, backend.host_memory(),
                     shard.native_sums() && replicate.native_sums());
  if (void* stream = backend.stream()) {
    shard.follow(stream);
    replicate.follow(stream);
  }
  options_hash = hash_of(options, shard.size(), replicate.size());
  SS_ASSIGN(gather, GatherSchedule::create(plan, layout, options.precision, backend, shard));
  deal(static_cast<uint64_t>(options.leaves));
  SS_ASSIGN(reduce, ReduceSchedule::create(plan, units, layout, options.precision, backend, shard,
                                           replicate, shares));
  SS_RETURN_IF_ERROR(create_optimizer());
  vote.emplace(units, layout, shares, shard, replicate);
  placeholder_tokens.resize(
      static_cast<size_t>(options.micro_batch_size * (options.shape.block_size + 1)));
  return {};
}

/// MuonSchedule updates Muon's runs, ShardOptimizer all others.
Status Engine::Parts::create_optimizer() {
  std::vector<ParameterRun> runs =
      parameter_runs(units, layout, static_cast<size_t>(shard.rank()), options.groups,
                     options.weight_decay, options.optimizer);
  const auto first = std::stable_partition(
      runs.begin(), runs.end(), [](const ParameterRun& run) { return run.muon_scale == 0; });
  std::vector<ParameterRun> of_muon(first, runs.end());
  runs.erase(first, runs.end());
  SS_ASSIGN(optimizer,
            ShardOptimizer::create(plan, std::move(runs), layout.total, backend, shard, state));
  if (options.optimizer != Optimizer::muon) return {};
  SS_ASSIGN(muon, MuonSchedule::create(plan, units, layout, std::move(of_muon), options.precision,
                                       backend, shard, replicate));
  return {};
}

/// Deals the leaves of the following steps.
void Engine::Parts::deal(uint64_t leaves) {
  shares = Shares::even(leaves, static_cast<uint64_t>(replicate.size()), layout.shards);
  leaf_scale = 1.0f / static_cast<float>(leaves);
}

void Engine::Parts::load() {
  optimizer->load();
  gather->reset(optimizer->params(), false);
  // With copies on demand, the first one is often that of an engine that ends because another trainer
  // has failed, and registering the memory would delay the recovery.
  if (options.memory_every_steps == 0) return;
  const TrainState::Side first = state.side(0);  // the two sides are adjacent
  backend.pin_host(first.params.data(), 2 * first.values() * sizeof(float));
}

/// Finishes this engine: aborts both communicators, so that no peer waits for this rank.
Status Engine::Parts::end(Status error) {
  if (ended.ok()) {
    ended = error;
    shard.abort(error.message());
    replicate.abort(error.message());
  }
  return error;
}

/// Called after every unit: counts it for progress() and returns aborted after abort().
Status Engine::Parts::unit_computed() {
  if (take_fault(EngineFault::hang))
    for (;;) pause();
  progress.fetch_add(1, std::memory_order_relaxed);
  if (!aborted) return {};
  const std::lock_guard lock(mutex);
  return {Code::aborted, abort_reason};
}

/// True once, when the step that `fault` was injected for has begun.
bool Engine::Parts::take_fault(EngineFault fault) {
  std::atomic<uint64_t>& at = fault_step[static_cast<size_t>(fault)];
  uint64_t step = at;
  return step <= newest_step && at.compare_exchange_strong(step, kNever);
}

/// Flips a bit of the first block's gradient, whose elements all differ from zero.
void Engine::Parts::flip_gradient_bit() {
  float* at = reduce->total() + layout.offset[1];
  uint32_t bits = 0;
  backend.copy_to_host(&bits, at, sizeof bits);
  bits ^= 1u << 22;
  backend.copy_to_device(at, &bits, sizeof bits);
}

/// For hashed(). hash: of the committed state.
void Engine::Parts::note_hash(const Hash128& hash) {
  if (replicate.size() > 1) hashed = {optimizer->step(), hash};
}

/// ENGINE-5. current_hash: of the committed state, computed now.
Status Engine::Parts::check_unchanged(const Hash128& current_hash) {
  damaged = !optimizer->matches_commit(current_hash);
  if (!damaged) return {};
  return {Code::mismatch, "the state of " + at_step(optimizer->step()) + " has changed in memory"};
}

/// Embeddings and blocks. Returns the head's parameters and sets *tied_params to the embedding
/// matrix (V, C), or null if embeddings are not tied. after_head: the unit to gather next. tokens:
/// null if this rank has no leaf in this turn; it then only takes part in the gathers.
Result<const void*> Engine::Parts::forward(const int32_t* tokens, size_t after_head,
                                           const void** tied_params) {
  at(StepPhase::forward);
  SS_ASSIGN(const void* params, gather->use(0, 1, wait));
  {
    const trace::Span span("forward embeddings");
    if (tokens) backend.embed(params, tokens);
  }
  *tied_params = tied() ? params : nullptr;
  for (size_t layer = 0; layer < layers(); ++layer) {
    at(StepPhase::forward, static_cast<int64_t>(layer));
    SS_RETURN_IF_ERROR(unit_computed());
    SS_ASSIGN(params, gather->use(1 + layer, 2 + layer, wait));
    const trace::Span span("forward block", static_cast<int64_t>(layer));
    if (tokens) backend.forward_block(static_cast<int>(layer), params);
  }
  at(StepPhase::forward);
  SS_RETURN_IF_ERROR(unit_computed());
  return gather->use(head(), after_head, wait);
}

/// Head (forward and backward), blocks and embeddings of turn k; starts the reduction of each
/// unit's gradient. Returns the mean loss; without a leaf 0.
Result<double> Engine::Parts::backward(int k, bool has_leaf, const void* head_params,
                                       const void* tied_params) {
  void* tied_grad = nullptr;
  at(StepPhase::backward);
  SS_ASSIGN(void* grad, reduce->gradient(head(), wait));
  if (tied()) {
    SS_ASSIGN(tied_grad, reduce->gradient(0, wait));
  }
  {
    const trace::Span head_span("forward and backward head");
    if (has_leaf) backend.head(head_params, tied_params, leaf_scale, grad, tied_grad);
  }
  SS_RETURN_IF_ERROR(reduce->reduce(head(), k, wait));
  const bool last = static_cast<uint64_t>(k) + 1 == shares.turns(group());
  const size_t after = last ? GatherSchedule::kNone : 0;
  for (size_t unit = layers(); unit > 0; --unit) {
    at(StepPhase::backward, static_cast<int64_t>(unit) - 1);
    SS_RETURN_IF_ERROR(unit_computed());
    if (unit == 1 && last) optimizer->start_hash();
    SS_ASSIGN(const void* params, gather->use(unit, unit > 1 ? unit - 1 : after, wait));
    SS_ASSIGN(grad, reduce->gradient(unit, wait));
    {
      const trace::Span block_span("backward block", static_cast<int64_t>(unit) - 1);
      if (has_leaf) backend.backward_block(static_cast<int>(unit) - 1, params, grad);
    }
    SS_RETURN_IF_ERROR(reduce->reduce(unit, k, wait));
  }
  at(StepPhase::backward);
  SS_RETURN_IF_ERROR(unit_computed());
  if (!tied()) {
    SS_ASSIGN(tied_grad, reduce->gradient(0, wait));
  }
  {
    const trace::Span embed_span("backward embeddings");
    if (has_leaf) backend.backward_embed(tied_grad, tied());
  }
  SS_RETURN_IF_ERROR(reduce->reduce(0, k, wait));
  return has_leaf ? backend.loss() : 0;
}

Ballot Engine::Parts::begin_step(uint64_t step, float learning_rate, const StepControl& mine) {
  newest_step = step;
  if (const uint64_t now = leaves_of(options, step); now != shares.leaves()) deal(now);
  mismatch.reset();
  hashed.reset();
  suspect.reset();
  cause.clear();
  damaged = false;
  wait.ms = 0;
  Ballot ballot{
      .step = step, .options_hash = options_hash, .learning_rate = learning_rate, .control = mine};
  if (optimizer->step() + 1 != step)
    ballot.failure = {Code::internal,
                      "holds " + at_step(optimizer->step()) + ", cannot make " + at_step(step)};
  return ballot;
}

/// Forward and backward of this rank's leaves. If batch() fails, the rank computes with placeholder
/// tokens and reports the failure in its ballot, so that every rank learns of it.
Status Engine::Parts::accumulate_gradients(const Batch& batch, Ballot& ballot, StepResult& times) {
  gather->prefetch(0);
  reduce->begin_step();
  for (int k = 0; static_cast<uint64_t>(k) < shares.turns(group()); ++k) {
    const bool has_leaf = static_cast<uint64_t>(k) < own_leaves();
    const int32_t* tokens = has_leaf ? placeholder_tokens.data() : nullptr;
    if (has_leaf && ballot.failure.ok()) {
      const Stopwatch watch(times.data_ms);
      const trace::Span span("data");
      at(StepPhase::data);
      const Result<const int32_t*> next = batch(k);
      if (next.ok())
        tokens = *next;
      else if (next.status().code() == Code::aborted)
        return next.status();
      else
        ballot.failure = next.status();
    }
    const trace::Span span("micro-batch", k);
    const void *head_params = nullptr, *tied_params = nullptr;
    {
      const Stopwatch watch(times.forward_ms);
      SS_ASSIGN(head_params, forward(tokens, layers(), &tied_params));
    }
    const Stopwatch watch(times.backward_ms);
    SS_ASSIGN(const double loss, backward(k, has_leaf, head_params, tied_params));
    if (!has_leaf) continue;
    ballot.trained += trained_targets(tokens, options.micro_batch_size, options.shape.block_size);
    // A gradient that is not finite makes this rank's loss NaN, so that the vote names this rank.
    const bool poisoned = take_fault(EngineFault::nan_loss) || !reduce->take_finite();
    ballot.losses.push_back(poisoned ? std::numeric_limits<double>::quiet_NaN() : loss);
  }
  return {};
}

void Engine::Parts::finish_store() {
  at(StepPhase::copy);
  optimizer->finish_store(wait);
}

/// Before the vote, while the last reductions continue; as late as possible, so that the hash
/// covers any damage during the step (ENGINE-4, ENGINE-5); in device memory backward() has begun it.
/// ENGINE-2: what a rank that votes for this step has stored is complete in host memory.
Status Engine::Parts::check_committed_state(Ballot& ballot) {
  finish_store();
  at(StepPhase::vote);
  trace::Span hash_span("hash state");
  ballot.state_hash = optimizer->current_hash();
  hash_span.end();
  note_hash(ballot.state_hash);
  const Status unchanged = check_unchanged(ballot.state_hash);
  if (ballot.failure.ok()) ballot.failure = unchanged;
  return {};
}

/// Completes the total gradient of this rank's shard, and its sums of squares for the norm.
Status Engine::Parts::finish_reductions(Ballot& ballot, StepResult& times) {
  const Stopwatch watch(times.backward_ms);
  trace::Span reduce_span("finish reductions");
  SS_RETURN_IF_ERROR(reduce->finish(wait));
  reduce_span.end();
  const trace::Span norm_span("gradient norm");
  ballot.squares.resize(vote->square_trees().size());
  backend.square_sums(reduce->total(), vote->square_trees(), ballot.squares.data());
  return {};
}

/// An error is a collective's. Otherwise every rank returns the same verdict.
Result<Verdict> Engine::Parts::vote_on(const Ballot& ballot, StepResult& times) {
  const Stopwatch watch(times.backward_ms);
  const trace::Span vote_span("vote");
  SS_ASSIGN(Verdict verdict, vote->hold(ballot, wait));
  mismatch = verdict.mismatch;
  suspect = verdict.suspect;
  cause = verdict.cause;
  return verdict;
}

/// ENGINE-7: what the loss, the gradient and its norm are multiplied by.
double Engine::Parts::over_trained(const Verdict& verdict) const {
  const auto targets =
      shares.leaves() * static_cast<uint64_t>(options.micro_batch_size * options.shape.block_size);
  return simplescale::over_trained(targets, verdict.trained);
}

/// AdamW or Muon on this rank's shard, with the gradient clipped by its global norm; then the
/// average.
Status Engine::Parts::apply(float learning_rate, double grad_norm, double over_trained) {
  const EngineOptions& o = options;
  double scale = over_trained;
  if (o.grad_clip > 0)
    scale *= std::min(1.0, static_cast<double>(o.grad_clip) / (grad_norm + 1e-6));
  AdamW adamw{learning_rate,
              o.beta1,
              o.beta2,
              o.eps,
              static_cast<float>(scale),
              newest_step,
              {o.moments, rounding_key(o.seed, newest_step)}};
  if (take_fault(EngineFault::bitflip_gradient)) flip_gradient_bit();
  at(StepPhase::copy);
  SS_RETURN_IF_ERROR(optimizer->begin_write(o.state_timeout_ms, wait));
  at(StepPhase::optimizer);
  optimizer->apply(adamw, reduce->total(), updated_units());
  if (muon) {
    const Muon of_muon{learning_rate, o.muon_momentum, adamw.gradient_scale, adamw.moments};
    SS_RETURN_IF_ERROR(muon->apply(
        of_muon, reduce->total(), optimizer->update(), [this] { return unit_computed(); }, wait));
  }
  if (o.ema_decay > 0) optimizer->average(static_cast<float>(1 - o.ema_decay));
  return {};
}

Status Engine::Parts::commit() {
  const Status committed = optimizer->commit();
  damaged = committed.code() == Code::mismatch;
  if (!committed.ok()) return committed;
  gather->reset(optimizer->params(), updated_units() != nullptr);
  if (const uint64_t every = options.memory_every_steps; every == 0 || newest_step % every != 0)
    return {};
  return optimizer->start_store(options.state_timeout_ms, wait);
}

}  // namespace simplescale
