#include "runtime/feed/ring_filler.hpp"

#include <pthread.h>

#include <utility>

#include "runtime/base/log.hpp"

namespace simplescale {

RingFiller::RingFiller(TokenRings rings, TokenSources sources, MixedOrder order,
                       std::function<void(const Status&)> on_error, Retries retries)
    : rings_(std::move(rings)),
      sources_(std::move(sources)),
      files_(sources_.files()),
      order_(std::move(order)),
      on_error_(std::move(on_error)),
      retries_(retries) {
  const std::vector<SampleOrder>& orders = order_.orders();
  SS_ASSERT(orders.size() == sources_.size());
  for (size_t i = 0; i < orders.size(); ++i)
    SS_ASSERT(orders[i].samples() <=
              sources_[i].samples(static_cast<int64_t>(rings_.shape().block_size)));
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "dataloader");
}

RingFiller::~RingFiller() {
  stop();
}

Status RingFiller::start(const FillPlan& plan) {
  const RingShape& shape = rings_.shape();
  const BatchLayout& layout = plan.layout;
  bool fits =
      plan.trainers.size() <= shape.rings && layout.micro_batch_size() == shape.micro_batch_size;
  for (const auto& [group, shard] : plan.trainers)
    fits = fits && group < layout.groups() && shard < layout.shards() &&
           layout.shares(layout.batch().runs().back().first).count(group, shard) > 0;
  if (!fits)
    return Status(Code::bad_config,
                  "the plan of the dataloader does not fit token rings " + name());
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return Status(Code::aborted, "the dataloader has stopped");
    if (plan == newest_) return {};
    if (plan.generation <= newest_.generation)
      return Status(Code::aborted, "token rings are at generation " +
                                       std::to_string(newest_.generation) + ", the plan is for " +
                                       std::to_string(plan.generation));
    newest_ = plan;
    next_plan_ = plan;
  }
  wake_.notify_one();
  rings_.ring_doorbell();
  return {};
}

void RingFiller::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  rings_.ring_doorbell();
  files_.stop();
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void RingFiller::run() {
  while (true) {
    const uint32_t seen = rings_.doorbell();
    std::optional<FillPlan> next;
    bool stopping = false;
    {
      const std::lock_guard lock(mutex_);
      next = std::exchange(next_plan_, std::nullopt);
      stopping = stopping_;
    }
    if (next) begin_plan(*std::move(next));
    if (stopping) break;
    bool worked = false;
    if (plan_) {
      const auto filled = fill_one_slot_each();
      worked = filled.ok() ? *filled : pause_and_reopen(filled.status());
      if (!filled.ok() && !worked) fail(filled.status());
      if (filled.ok() && worked && std::exchange(failures_, 0) > 0)
        log::info("the token files can be read again");
    }
    // Every event that needs this thread rings the doorbell. The deadline is a safeguard against a
    // lost wake-up.
    if (!worked)
      rings_.wait_for_work(seen, std::chrono::steady_clock::now() + std::chrono::seconds(10));
  }
  for (uint64_t ring = 0; ring < rings_.shape().rings; ++ring)
    rings_.close(ring, Status(Code::aborted, "the dataloader has stopped"));
}

void RingFiller::begin_plan(FillPlan plan) {
  for (uint64_t ring = 0; ring < rings_.shape().rings; ++ring) rings_.reset(ring, plan.generation);
  cursors_.clear();
  announced_.clear();
  plan_ = std::move(plan);
  for (uint64_t ring = 0; ring < plan_->trainers.size(); ++ring) {
    const Cursor first = at_batch({.step = plan_->start_step}, ring);
    cursors_.push_back(first);
    announced_.push_back({.next = first});
  }
  failures_ = 0;
}

/// Fills one slot of every ring that has room, so that no trainer waits until another trainer's
/// ring is full. Returns false if all are full.
Result<bool> RingFiller::fill_one_slot_each() {
  bool worked = false;
  for (uint64_t ring = 0; ring < cursors_.size(); ++ring) {
    read_ahead();
    int32_t* tokens = rings_.begin_fill(ring);
    if (!tokens) continue;
    Cursor& at = cursors_[ring];
    const uint64_t first = sample_at(at, ring);
    SS_RETURN_IF_ERROR(fill(tokens, first));
    rings_.commit_fill(ring, at.step, at.accumulation, first);
    ++at.accumulation;
    at = at_batch(at, ring);
    if (Announced& ahead = announced_[ring]; ahead.batches > 0)
      --ahead.batches;
    else
      ahead.next = at;
    worked = true;
  }
  return worked;
}

/// The ring's first micro-batch from `at` on. In a step of the warm-up its trainer may have none;
/// of later steps it has one at least.
RingFiller::Cursor RingFiller::at_batch(Cursor at, uint64_t ring) const {
  const auto [group, shard] = plan_->trainers[ring];
  while (at.accumulation == plan_->layout.shares(at.step + 1).count(group, shard))
    at = Cursor{.step = at.step + 1};
  return at;
}

uint64_t RingFiller::sample_at(const Cursor& at, uint64_t ring) const {
  const auto [group, shard] = plan_->trainers[ring];
  return first_sample(plan_->layout, at.step + 1, group, shard, at.accumulation);
}

/// Announces the samples that are filled next, those of all rings in turn.
void RingFiller::read_ahead() {
  if (!files_.in_bucket()) return;
  const RingShape& shape = rings_.shape();
  for (uint64_t batches = 0; batches < shape.slots; ++batches)
    for (uint64_t ring = 0; ring < announced_.size(); ++ring) {
      Announced& ahead = announced_[ring];
      if (ahead.batches != batches) continue;
      const uint64_t first = sample_at(ahead.next, ring);
      for (uint64_t row = 0; row < shape.micro_batch_size; ++row)
        if (!sources_.read_ahead(order_.at_place(first + row),
                                 static_cast<int64_t>(shape.block_size)))
          return;
      ++ahead.next.accumulation;
      ahead.next = at_batch(ahead.next, ring);
      ++ahead.batches;
    }
}

Status RingFiller::fill(int32_t* tokens, uint64_t first) {
  const RingShape& shape = rings_.shape();
  for (uint64_t row = 0; row < shape.micro_batch_size; ++row)
    SS_RETURN_IF_ERROR(sources_.read_sample(order_.at_place(first + row),
                                            static_cast<int64_t>(shape.block_size),
                                            tokens + row * (shape.block_size + 1)));
  return {};
}

/// Waits before the next try, since a file may be replaced or a disk may recover, and reopens the
/// file. A new plan or stop() ends the pause. False: no try is left, or the file was read and holds
/// a wrong token.
bool RingFiller::pause_and_reopen(const Status& error) {
  if (failures_ == retries_.tries || error.code() == Code::bad_data) return false;
  if (failures_ == 0) log::warn("cannot read tokens, trying again: {}", error.message());
  {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, retries_.first_pause * (1 << failures_),
                   [this] { return stopping_ || next_plan_.has_value(); });
  }
  ++failures_;
  if (Status again = sources_.reopen(); !again.ok()) log::debug("{}", again.message());
  return true;
}

void RingFiller::fail(const Status& status) {
  plan_.reset();
  for (uint64_t ring = 0; ring < rings_.shape().rings; ++ring) rings_.close(ring, status);
  if (on_error_) on_error_(status);
}

}  // namespace simplescale
