#include "model/engine/engine_parts.hpp"

#include <unistd.h>

#include <bit>
#include <numeric>

#include "runtime/observe/trace.hpp"
#include "runtime/training/router_counts.hpp"
#include "runtime/training/token_marks.hpp"

namespace simplescale {
namespace {

Status check_state(const EngineOptions& options, TrainState& state, size_t total) {
  auto bad = [](const std::string& text) { return Status(Code::bad_config, text); };
  for (const int side : {0, 1})
    if (state.side(side).params.size() != total)
      return bad("the training state has " + std::to_string(state.side(side).params.size()) +
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
  SS_RETURN_IF_ERROR(check(options, shard.size(), replicate.size()));
  SS_RETURN_IF_ERROR(check_state(options, state, layout.total));
  plan = buffer_plan(options, groups, shards, backend.host_memory(),
                     shard.native_sums() && replicate.native_sums());
  if (void* stream = backend.stream())
    for (const Axis& axis : axes) axis.members->follow(stream);
  layout_of_step = layout_hash(options, shard.size(), replicate.size());
  SS_ASSIGN(gathered, GatheredUnits::create(plan, layout, options.precision, backend, shard));
  SS_ASSIGN(sums, GradientSums::create(plan, units, layout, options.precision, backend, shard,
                                       replicate, shares));
  order = program_options(units, tied(), !plan.resident_units.empty());
  if (order.resident) {
    SS_ASSIGN(exchange, TokenExchange::create(plan, options, backend, shard));
  }
  loss_tasks = loss_program(order, plan);
  SS_RETURN_IF_ERROR(create_optimizer());
  vote.emplace(units, layout, shares, axes);
  deal(static_cast<uint64_t>(options.leaves));
  placeholder_tokens.resize(
      static_cast<size_t>(options.micro_batch_size * (options.shape.block_size + 1)));
  return {};
}

/// MuonSchedule updates Muon's runs, ShardOptimizer all others.
Status Engine::Parts::create_optimizer() {
  std::vector<ParameterRun> runs =
      parameter_runs(units, layout, static_cast<size_t>(shard.rank()), options.groups,
                     options.weight_decay, options.optimizer, options.router_bias_rate);
  const auto first = std::stable_partition(
      runs.begin(), runs.end(), [](const ParameterRun& run) { return run.muon_scale == 0; });
  std::vector<ParameterRun> of_muon(first, runs.end());
  runs.erase(first, runs.end());
  SS_ASSIGN(optimizer, ShardOptimizer::create(plan, std::move(runs), layout.total, options, backend,
                                              shard, state));
  if (options.optimizer != Optimizer::muon) return {};
  SS_ASSIGN(muon, MuonSchedule::create(plan, units, layout, std::move(of_muon), options.precision,
                                       backend, shard, replicate));
  return {};
}

/// Deals the leaves of the following steps.
void Engine::Parts::deal(uint64_t leaves) {
  shares = shares_of(options, leaves, static_cast<uint64_t>(replicate.size()), layout.shards);
  leaf_scale = 1.0f / static_cast<float>(leaves);
  order.turns = shares.turns(group());
  step_tasks = step_program(order, plan);
}

void Engine::Parts::load() {
  optimizer->load();
  gathered->reset(optimizer->params(), false);
  // With copies on demand, the first one is often that of an engine that ends because another trainer
  // has failed, and registering the memory would delay the recovery.
  if (options.memory_every_steps == 0 || plan.through_host) return;
  for (const int index : {0, 1}) {
    const TrainState::Side side = state.side(index);
    backend.pin_host(side.params.data(), side.values() * sizeof(float));
  }
}

/// Finishes this engine: aborts its communicators, so that no peer waits for this rank.
Status Engine::Parts::end(Status error) {
  if (ended.ok()) {
    ended = error;
    for (const Axis& axis : axes) axis.members->abort(error.message());
  }
  return error;
}

/// Called between the passes of units: counts for progress() and returns aborted after abort().
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

/// Flips a bit of the first block's gradient, whose elements all differ from zero. gradient: where the
/// state is.
void Engine::Parts::flip_gradient_bit(float* gradient) {
  float* const at = gradient + layout.offset[1];
  float value = 0;
  float* const here = plan.through_host ? at : &value;
  if (here != at) backend.copy_to_host(here, at, sizeof value);
  *here = std::bit_cast<float>(std::bit_cast<uint32_t>(*here) ^ 1u << 22);
  if (here != at) backend.copy_to_device(at, here, sizeof value);
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

Ballot Engine::Parts::begin_step(uint64_t step, float learning_rate, const StepControl& mine) {
  newest_step = step;
  if (const uint64_t now = leaves_of(options, step); now != shares.leaves()) deal(now);
  sums->begin_step();
  mismatch.reset();
  hashed.reset();
  suspect.reset();
  cause.clear();
  damaged = false;
  wait.ms = 0;
  Ballot ballot{.step = step,
                .signature = options.signature,
                .layout = layout_of_step,
                .learning_rate = learning_rate,
                .control = mine,
                .router_counts = std::vector<int64_t>(router_count_size(options.shape))};
  if (optimizer->step() + 1 != step)
    ballot.failure = {Code::internal,
                      "holds " + at_step(optimizer->step()) + ", cannot make " + at_step(step)};
  return ballot;
}

/// BALANCE-1, in the first step: ranks that deal the leaves differently would wait for each other, or make sums
/// that have a leaf twice, before they hold the vote.
Status Engine::Parts::agree_on_layout(Run& r) {
  if (layout_agreed) return {};
  SS_ASSIGN(const Verdict verdict, vote->compare_layouts(layout_of_step, wait));
  layout_agreed = verdict.status.ok();
  r.all_agree = !layout_agreed;
  return verdict.status;
}

Status Engine::Parts::run(const Program& program, Run& r) {
  for (const Task& task : program) SS_RETURN_IF_ERROR(execute(task, r));
  return {};
}

/// The part of the step's time that a task counts in. Gathers count in that of the pass before them.
double& Engine::Parts::time_of(const Task& task, Run& r) {
  switch (task.op) {
    case Op::gather:
      break;
    case Op::embed:
    case Op::route:
    case Op::forward:
    case Op::combine:
    case Op::evaluate:
      r.time = &r.result.forward_ms;
      break;
    case Op::check:
      r.time = &r.other_ms;
      break;
    case Op::update:
    case Op::commit:
      r.time = &r.result.optimizer_ms;
      break;
    default:
      r.time = &r.result.backward_ms;
  }
  return *r.time;
}

Status Engine::Parts::execute(const Task& task, Run& r) {
  if (task.op == Op::embed && (r.loss_only || has_leaf(task.micro_batch))) {
    SS_RETURN_IF_ERROR(read_tokens(task.micro_batch, r));
    if (task.frame == 0) r.turn = trace::Span("micro-batch", task.micro_batch);
  }
  const Stopwatch watch(time_of(task, r));
  switch (task.op) {
    case Op::gather:
      gathered->start(task.slot, task.unit);
      return {};
    case Op::add:
      sums->add(task);
      return {};
    case Op::reduce:
      sums->reduce(task);
      return {};
    case Op::reduced:
      return sums->reduced(task, wait);
    case Op::exchange:
      sums->exchange(task.unit);
      return {};
    case Op::download:
      return sums->download(task.unit, wait);
    case Op::downloaded:
      sums->downloaded(task.unit);
      return {};
    case Op::record:
      record(task, r);
      return {};
    case Op::hash:
      optimizer->start_hash();
      return {};
    case Op::check:
      return check_committed_state(r.ballot);
    case Op::finish:
      return finish_sums(r.ballot);
    case Op::vote:
      return hold_vote(r);
    case Op::update:
      return update(r);
    case Op::commit:
      return commit();
    default:
      return compute(task, r);
  }
}

/// A device computes after the call that starts a pass.
double& Engine::Parts::compute_time(Run& r) const {
  return backend.host_memory() ? r.result.compute_ms : r.other_ms;
}

/// If batch() fails, the rank computes with placeholder tokens and reports the failure in its ballot,
/// so that every rank learns of it.
Status Engine::Parts::read_tokens(int micro_batch, Run& r) {
  r.tokens = placeholder_tokens.data();
  if (r.ballot.failure.ok()) {
    const Stopwatch watch(r.result.data_ms);
    const Stopwatch computes(compute_time(r));
    const trace::Span span("data");
    at(StepPhase::data);
    const Result<const int32_t*> next = r.batch(micro_batch);
    if (next.ok())
      r.tokens = *next;
    else if (next.status().code() == Code::aborted)
      return next.status();
    else
      r.ballot.failure = next.status();
  }
  r.ballot.trained += trained_targets(r.tokens, options.micro_batch_size, options.shape.block_size);
  return {};
}

/// A pass of one unit.
Status Engine::Parts::compute(const Task& task, Run& r) {
  const bool makes_gradient =
      task.op == Op::head || task.op == Op::backward || task.op == Op::backward_embed;
  const Unit& unit = units[task.unit];
  const int layer = unit.layer;
  const bool of_experts = unit.kind == Unit::Kind::experts;
  at(task.op < Op::head || task.op == Op::evaluate ? StepPhase::forward : StepPhase::backward,
     layer);
  if (task.op != Op::embed) SS_RETURN_IF_ERROR(unit_computed());
  const void *params = nullptr, *second = nullptr;
  if (needs_unit(task)) {
    SS_ASSIGN(params, gathered->use(task.unit, wait));
  }
  if (const std::optional<size_t> other = second_unit(task, order)) {
    SS_ASSIGN(second, gathered->use(*other, wait));
  }
  const bool has_tokens = r.loss_only || has_leaf(task.micro_batch);
  void* const grad = makes_gradient ? sums->gradient(task.unit, task.slot) : nullptr;
  if (order.is_resident(task.unit))
    return compute_resident(task, r, params, second, grad, has_tokens);
  if (!has_tokens) return {};
  const Stopwatch watch(compute_time(r));
  switch (task.op) {
    case Op::embed: {
      const trace::Span span("forward embeddings");
      backend.embed(task.frame, params, r.tokens);
      break;
    }
    case Op::forward: {
      const trace::Span span(of_experts ? "forward experts" : "forward block", layer);
      if (of_experts)
        backend.forward_experts(task.frame, layer, params);
      else
        backend.forward_block(task.frame, layer, params);
      break;
    }
    case Op::head: {
      const trace::Span span("forward and backward head");
      backend.head(task.frame, params, second, leaf_scale, grad,
                   tied() ? sums->gradient(sums->tied_head(), task.slot2) : nullptr);
      break;
    }
    case Op::backward: {
      const trace::Span span(of_experts ? "backward experts" : "backward block", layer);
      if (of_experts)
        backend.backward_experts(task.frame, layer, second, params, grad);
      else
        backend.backward_block(task.frame, layer, params, grad);
      break;
    }
    case Op::backward_embed: {
      const trace::Span span("backward embeddings");
      backend.backward_embed(task.frame, grad);
      break;
    }
    default:
      backend.head(task.frame, params, second, 0, nullptr, nullptr);
  }
  return {};
}

/// A task of resident experts, in which this trainer takes part with or without a micro-batch. block: the
/// parameters of the block's other unit.
Status Engine::Parts::compute_resident(const Task& task, Run& r, const void* params,
                                       const void* block, void* grad, bool has_tokens) {
  const int layer = units[task.unit].layer;
  double& ms = compute_time(r);
  const trace::Span span(to_string(task.op), layer);
  switch (task.op) {
    case Op::route:
      return exchange->route(task, layer, has_tokens, wait, ms);
    case Op::route_backward:
      return exchange->route_backward(task, layer, block, has_tokens, ms);
    case Op::forward:
      return exchange->forward(task, layer, params, wait, ms);
    case Op::backward:
      return exchange->backward(task, layer, params, grad, wait, ms);
    default:
      return exchange->combine(task, layer, has_tokens, wait, ms);
  }
}

/// A gradient that is not finite makes this rank's loss NaN, so that the vote names this rank.
void Engine::Parts::record(const Task& task, Run& r) {
  if (!has_leaf(task.micro_batch)) return;
  const double loss = backend.loss(task.frame);
  const std::span<const int64_t> counts = backend.router_counts(task.frame);
  for (size_t i = 0; i < counts.size(); ++i) r.ballot.router_counts[i] += counts[i];
  const bool poisoned = take_fault(EngineFault::nan_loss) || !sums->take_finite();
  r.ballot.losses.push_back(poisoned ? std::numeric_limits<double>::quiet_NaN() : loss);
  r.turn.end();
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
Status Engine::Parts::finish_sums(Ballot& ballot) {
  trace::Span reduce_span("finish reductions");
  SS_RETURN_IF_ERROR(sums->finish(wait));
  reduce_span.end();
  const trace::Span norm_span("gradient norm");
  ballot.squares.resize(vote->square_trees().size());
  backend.square_sums(vote->square_trees(), ballot.squares.data());
  return {};
}

/// An error is a collective's, or the verdict that every rank returns.
Status Engine::Parts::hold_vote(Run& r) {
  const trace::Span vote_span("vote");
  SS_ASSIGN(const Verdict verdict, vote->hold(r.ballot, wait));
  mismatch = verdict.mismatch;
  suspect = verdict.suspect;
  cause = verdict.cause;
  r.all_agree = !verdict.status.ok();
  SS_RETURN_IF_ERROR(verdict.status);
  r.over_trained = over_trained(verdict);
  r.result.loss = verdict.trained > 0 ? verdict.loss * r.over_trained
                                      : std::numeric_limits<double>::quiet_NaN();
  r.result.grad_norm = verdict.grad_norm * r.over_trained;
  r.result.agreed = verdict.agreed;
  r.result.router_counts = verdict.router_counts;
  if (replicate.size() > 1) r.result.state_hash = r.ballot.state_hash;
  return {};
}

/// ENGINE-7: what the loss, the gradient and its norm are multiplied by.
double Engine::Parts::over_trained(const Verdict& verdict) const {
  const auto targets =
      shares.leaves() * static_cast<uint64_t>(options.micro_batch_size * options.shape.block_size);
  return simplescale::over_trained(targets, verdict.trained);
}

/// The total gradient where the state is. Waits for the end of its download.
float* Engine::Parts::gradient_of_update() {
  if (!plan.through_host) return sums->total();
  at(StepPhase::copy);
  const Waiting waiting(wait);
  backend.finish_copies();
  return sums->host_total();
}

/// The gradient of a router's bias becomes how many tokens an expert had below the mean.
void Engine::Parts::balance_routers(std::span<const int64_t> counts, float* gradient) {
  for (size_t u = 0; u < units.size(); ++u)
    for (const Parameter& p : units[u].parameters) {
      if (!p.is_router_bias()) continue;
      const auto of_layer = counts_of(counts, options.shape, units[u].layer).first(p.count);
      const auto E = static_cast<int64_t>(p.count);
      const int64_t all = std::accumulate(of_layer.begin(), of_layer.end(), int64_t{0});
      const size_t first = static_cast<size_t>(shard.rank()) * layout.count[u];
      for (size_t e = 0; e < p.count; ++e)
        if (const size_t at = p.offset + e; at >= first && at < first + layout.count[u])
          gradient[layout.offset[u] + at - first] = static_cast<float>(all - E * of_layer[e]);
    }
}

/// AdamW or Muon on this rank's shard, with the gradient clipped by its global norm; then the
/// average.
Status Engine::Parts::update(Run& r) {
  const trace::Span span("optimizer");
  const EngineOptions& o = options;
  double scale = r.over_trained;
  if (o.grad_clip > 0)
    scale *= std::min(1.0, static_cast<double>(o.grad_clip) / (r.result.grad_norm + 1e-6));
  AdamW adamw{r.learning_rate,
              o.beta1,
              o.beta2,
              o.eps,
              static_cast<float>(scale),
              newest_step,
              {o.moments, rounding_key(o.seed, newest_step)}};
  float* const gradient = gradient_of_update();
  if (options.router_bias_rate > 0) balance_routers(r.result.router_counts, gradient);
  if (take_fault(EngineFault::bitflip_gradient)) flip_gradient_bit(gradient);
  at(StepPhase::copy);
  SS_RETURN_IF_ERROR(optimizer->begin_write(o.state_timeout_ms, wait));
  at(StepPhase::optimizer);
  ShardOptimizer::Written upload;
  if (plan.through_host) upload = [this](size_t elements) { gathered->upload(elements); };
  optimizer->apply(adamw, gradient, updated_units(), upload);
  if (muon) {
    const Muon of_muon{r.learning_rate, o.muon_momentum, adamw.gradient_scale, adamw.moments};
    SS_RETURN_IF_ERROR(muon->apply(
        of_muon, gradient, optimizer->update(), [this] { return unit_computed(); }, wait));
  }
  optimizer->average();
  return {};
}

Status Engine::Parts::commit() {
  const Status committed = optimizer->commit();
  damaged = committed.code() == Code::mismatch;
  if (!committed.ok()) return committed;
  gathered->reset(optimizer->params(), updated_units() != nullptr);
  if (const uint64_t every = options.memory_every_steps; every == 0 || newest_step % every != 0)
    return {};
  return optimizer->start_store(options.state_timeout_ms, wait);
}

}  // namespace simplescale
