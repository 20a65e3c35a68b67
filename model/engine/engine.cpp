#include "model/engine/engine.hpp"

#include <limits>

#include "model/engine/engine_parts.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/training/initial_values.hpp"
#include "runtime/training/state_hash.hpp"

namespace simplescale {
namespace {

constexpr size_t kInitialPiece = size_t{1} << 16;  // elements that a thread initializes at a time
constexpr int kStoreAtEndMs = 1'000;  // for readers of the side that an engine's end writes

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options, Backend& backend,
                                               Axes axes, TrainState& state) {
  auto parts = std::make_unique<Parts>(options, backend, std::move(axes), state);
  SS_RETURN_IF_ERROR(parts->create());
  return std::unique_ptr<Engine>(new Engine(std::move(parts)));
}

Engine::Engine(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Engine::~Engine() {
  if (!parts_->optimizer) return;
  if (!parts_->damaged && !parts_->mismatch)
    (void)parts_->optimizer->start_store(kStoreAtEndMs, parts_->wait);
  parts_->finish_store();
}

Status Engine::start_commit() {
  return parts_->optimizer->start_store(parts_->options.state_timeout_ms, parts_->wait);
}

Status Engine::wait_for_commit() {
  SS_RETURN_IF_ERROR(start_commit());
  parts_->finish_store();
  parts_->at(StepPhase::none);
  return {};
}

Status Engine::initialize() {
  Parts& p = *parts_;
  SS_ASSIGN(const TrainState::Side side, p.state.begin_write(p.options.state_timeout_ms));
  const Parallel threads = p.backend.host_threads();
  for (size_t unit = 0; unit < p.units.size(); ++unit) {
    const size_t count = p.layout.count[unit];
    const size_t begin = static_cast<size_t>(p.shard.rank()) * count;
    for_pieces(threads, count, kInitialPiece, [&](size_t first, size_t here) {
      initial_values(p.units[unit], p.options.seed, begin + first,
                     side.params.subspan(p.layout.offset[unit] + first, here));
    });
  }
  for (const std::span<float> moments : {side.exp_avg, side.exp_avg_sq})
    for_pieces(threads, moments.size(), kInitialPiece, [&](size_t first, size_t here) {
      std::ranges::fill(moments.subspan(first, here), 0.0f);
    });
  for_pieces(threads, side.ema.size(), kInitialPiece, [&](size_t first, size_t here) {
    std::ranges::copy(side.params.subspan(first, here), side.ema.subspan(first, here).begin());
  });
  p.state.commit(0, state_hash(side, threads));
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
  SS_RETURN_IF_ERROR(p.ended);
  if (!p.optimizer->params())
    return Status(Code::not_found, "no state to start from: initialize() or attach()");
  Parts::Run r{.batch = batch, .learning_rate = learning_rate};
  {
    const Stopwatch watch(r.result.step_ms);
    const trace::Span span("step", static_cast<int64_t>(step));
    r.ballot = p.begin_step(step, learning_rate, mine);
    Status status = p.agree_on_layout(r);
    if (status.ok()) status = p.run(p.step_tasks, r);
    r.turn.end();  // before the span of the step
    if (!status.ok()) return r.all_agree ? status : p.end(status.in(at_step(step)));
    p.at(StepPhase::none);
  }
  r.result.wait_ms = p.wait.ms;
  return r.result;
}

Result<double> Engine::loss(const int32_t* tokens) {
  Parts& p = *parts_;
  SS_RETURN_IF_ERROR(p.ended);
  if (!p.optimizer->params())
    return Status(Code::not_found, "no state to start from: initialize() or attach()");
  const Batch batch = [&](int) { return tokens; };
  Parts::Run r{.batch = batch, .loss_only = true};
  if (const Status status = p.run(p.loss_tasks, r); !status.ok()) return p.end(status);
  return p.backend.loss(0);
}

Result<std::span<const float>> Engine::losses(const int32_t* tokens) {
  SS_RETURN_IF_ERROR(loss(tokens).status());
  return parts_->backend.losses(0);
}

Status Engine::compare_states() {
  Parts& p = *parts_;
  SS_RETURN_IF_ERROR(p.ended);
  p.mismatch.reset();
  p.hashed.reset();
  p.suspect.reset();
  p.cause.clear();
  if (!p.optimizer->params())
    return Status(Code::not_found, "no state to compare: initialize() or attach()");
  SS_RETURN_IF_ERROR(wait_for_commit());
  const Hash128 hash = p.optimizer->host_hash();  // of the copy that checkpoints are made of
  p.note_hash(hash);
  const Status unchanged = p.check_unchanged(hash);
  if (p.replicate.size() == 1) return unchanged;
  const Result<Verdict> verdict = p.vote->compare(p.optimizer->step(), hash, p.wait);
  if (!verdict.ok()) return p.end(verdict.status().in("comparing states"));
  if (unchanged.ok()) p.mismatch = verdict->mismatch, p.suspect = verdict->suspect;
  return unchanged.ok() ? verdict->status : unchanged;
}

bool Engine::damaged() const {
  return parts_->damaged;
}

const std::optional<Mismatch>& Engine::mismatch() const {
  return parts_->mismatch;
}

const std::optional<HashedState>& Engine::hashed() const {
  return parts_->hashed;
}

std::optional<int> Engine::suspect() const {
  return parts_->suspect;
}

const std::string& Engine::cause() const {
  return parts_->cause;
}

uint64_t Engine::leaf(int k) const {
  return parts_->shares.leaf(parts_->group(), static_cast<uint64_t>(parts_->shard.rank()),
                             static_cast<uint64_t>(k));
}

size_t Engine::buffer_bytes() const {
  return parts_->plan.bytes(parts_->options.precision, parts_->layout.total).total();
}

void Engine::abort(const std::string& reason) {
  {
    const std::lock_guard lock(parts_->mutex);
    if (parts_->abort_reason.empty()) parts_->abort_reason = reason;
  }
  parts_->aborted = true;
  for (const Axis& axis : parts_->axes) axis.members->abort(reason);
}

uint64_t Engine::progress() const {
  return parts_->progress.load(std::memory_order_relaxed);
}

bool Engine::waiting() const {
  return parts_->wait.waiting.load(std::memory_order_relaxed);
}

Activity Engine::activity() const {
  const int64_t now = parts_->activity.load(std::memory_order_relaxed);
  return {static_cast<StepPhase>(now & 0xff), static_cast<int>(now >> 8) - 1};
}

void Engine::inject(EngineFault fault, uint64_t step) {
  parts_->fault_step[static_cast<size_t>(fault)] = step;
}

}  // namespace simplescale
