#include "model/engine/reduce.hpp"

#include <algorithm>
#include <atomic>

namespace simplescale {
namespace {

constexpr size_t kFinitePiece = size_t{1} << 16;  // elements that a thread examines at a time

/// exponent: the bits that are all set in infinities and NaNs, and in no other value.
template <class Bits>
bool all_finite(const void* values, size_t count, Bits exponent) {
  const Bits* bits = static_cast<const Bits*>(values);
  Bits found = 0;
  size_t i = 0;
  for (; i + 64 <= count; i += 64)  // a constant length, so that the compiler vectorizes the loop
    for (size_t k = 0; k < 64; ++k) found |= (bits[i + k] & exponent) == exponent;
  for (; i < count; ++i) found |= (bits[i] & exponent) == exponent;
  return found == 0;
}

}  // namespace

Result<ReduceSchedule> ReduceSchedule::create(const BufferPlan& plan,
                                              const std::vector<Unit>& units,
                                              const ShardLayout& layout, DType precision,
                                              Backend& backend, Collective& shard,
                                              Collective& replicate, const Shares& shares) {
  ReduceSchedule schedule(units, layout, precision, backend, shard, replicate, shares);
  schedule.pool_of_unit_ = plan.pool_of_unit_gradient;
  for (size_t pool = 0; pool < plan.gradient.size(); ++pool) {
    for (size_t i = 0; i < plan.gradient[pool].slots; ++i) {
      SS_ASSIGN(void* data, shard.allocate(plan.gradient[pool].elements * bytes_of(precision)));
      schedule.slots_.push_back({.pool = pool, .data = data});
    }
  }
  std::vector<float*> digits;
  for (size_t i = 0; i < plan.digits; ++i) {
    SS_ASSIGN(void* data, replicate.allocate(layout.total * sizeof(float)));
    digits.push_back(static_cast<float*>(data));
  }
  for (size_t unit = 0; unit < units.size(); ++unit) {
    std::vector<float*> buffers;
    for (float* digit : digits) buffers.push_back(digit + layout.offset[unit]);
    schedule.slices_.emplace_back(std::move(buffers), layout.count[unit]);
  }
  schedule.total_ = digits[0];
  if (plan.separate_total) {
    SS_ASSIGN(void* data, replicate.allocate(layout.total * sizeof(float)));
    schedule.total_ = static_cast<float*>(data);
  }
  return schedule;
}

void ReduceSchedule::begin_step() {
  for (PartialSum& slice : slices_) slice.clear();
  finite_ = true;
}

Result<void*> ReduceSchedule::gradient(size_t unit, WaitClock& wait) {
  if (slots_.empty()) return static_cast<void*>(slices_[unit].buffer(0));
  size_t chosen = kNone;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].pool != pool_of_unit_[unit]) continue;
    if (chosen == kNone || slots_[chosen].unit != kNone) chosen = i;
  }
  Slot& slot = slots_[chosen];
  if (slot.unit != kNone) SS_RETURN_IF_ERROR(finish(chosen, wait));
  slot.unit = unit;
  clear_padding(slot, unit);
  return slot.data;
}

/// Embeddings and head may share a slot: zeroes what the longer unit left behind the shorter one's
/// end, since padding is summed, too.
void ReduceSchedule::clear_padding(Slot& slot, size_t unit) {
  const size_t count = (*units_)[unit].count;
  const size_t padded = layout_->count[unit] * layout_->shards;
  const size_t end = std::min(padded, slot.written);
  if (end > count)
    backend_->zero(static_cast<char*>(slot.data) + count * bytes_of(precision_),
                   (end - count) * bytes_of(precision_));
  slot.written = std::max(slot.written, count);
}

void ReduceSchedule::check_finite(const void* gradient, size_t count) {
  if (!backend_->host_memory() || !finite_) return;
  const size_t size = bytes_of(precision_);
  std::atomic<bool> finite = true;
  for_pieces(backend_->host_threads(), count, kFinitePiece, [&](size_t first, size_t here) {
    const char* values = static_cast<const char*>(gradient) + first * size;
    const bool good = precision_ == DType::f32 ? all_finite<uint32_t>(values, here, 0x7f80'0000)
                                               : all_finite<uint16_t>(values, here, 0x7f80);
    if (!good) finite = false;
  });
  finite_ = finite;
}

Status ReduceSchedule::reduce(size_t unit, int k, WaitClock& wait) {
  const auto group = static_cast<uint64_t>(replicate_->rank());
  const std::vector<TreeNode> leaves = shares_->turn(group, static_cast<uint64_t>(k));
  const bool has_leaf = static_cast<size_t>(shard_->rank()) < leaves.size();
  const bool last = static_cast<uint64_t>(k) + 1 == shares_->turns(group);
  PartialSum& slice = slices_[unit];
  if (!backend_->stream()) backend_->synchronize();
  if (slots_.empty()) {
    if (has_leaf) {
      check_finite(slice.data(0), (*units_)[unit].count);
      const TreeSource leaf{leaves[0], slice.data(0), DType::f32};
      slice.add({&leaf, 1});
    }
    sum_across_groups(unit);
    return {};
  }
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [&](const Slot& slot) { return slot.unit == unit; });
  SS_ASSERT(found != slots_.end() && !found->work);
  if (has_leaf) check_finite(found->data, (*units_)[unit].count);
  if (leaves.empty() || (layout_->shards == 1 && backend_->host_memory())) {
    if (has_leaf) {
      const TreeSource leaf{leaves[0], found->data, precision_};
      slice.add({&leaf, 1});
    }
    found->unit = kNone;
    if (last) sum_across_groups(unit);
    return {};
  }
  if (!has_leaf)
    backend_->zero(found->data, layout_->count[unit] * layout_->shards * bytes_of(precision_));
  found->last = last;
  found->work =
      shard_->reduce_scatter_leaves(found->data, layout_->count[unit], precision_, leaves, slice);
  const size_t previous = pending_;
  pending_ = static_cast<size_t>(found - slots_.begin());
  return previous == kNone ? Status() : finish(previous, wait);
}

Status ReduceSchedule::finish(size_t index, WaitClock& wait) {
  Slot& slot = slots_[index];
  SS_ASSERT(slot.work);
  {
    const Waiting waiting(wait);
    const Status status = slot.work->wait();
    slot.work.reset();
    SS_RETURN_IF_ERROR(status);
  }
  if (pending_ == index) pending_ = kNone;
  const size_t unit = slot.unit;
  slot.unit = kNone;
  if (slot.last) sum_across_groups(unit);
  return {};
}

/// The slice of `unit` holds all leaves of this group: starts the sum over all groups. With one
/// group the slice's nodes are added in place; a single node is the total already.
void ReduceSchedule::sum_across_groups(size_t unit) {
  PartialSum& slice = slices_[unit];
  if (replicate_->size() == 1 && slice.nodes().size() == 1) return;
  if (replicate_->size() > 1 || !backend_->host_memory()) {
    across_.push_back(
        replicate_->all_reduce_partials(slice, shares_->blocks(), total_ + layout_->offset[unit]));
  } else {
    std::vector<TreeSource> sources;
    for (size_t i = 0; i < slice.nodes().size(); ++i)
      sources.push_back({slice.nodes()[i], slice.data(i), DType::f32});
    tree_total(sources, slice.buffer(0), DType::f32, slice.count());
  }
}

Status ReduceSchedule::finish(WaitClock& wait) {
  if (pending_ != kNone) SS_RETURN_IF_ERROR(finish(pending_, wait));
  const Waiting waiting(wait);
  Status status;
  for (WorkPtr& work : across_)
    if (Status ended = work->wait(); status.ok()) status = ended;
  across_.clear();
  return status;
}

}  // namespace simplescale
