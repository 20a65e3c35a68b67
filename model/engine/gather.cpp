#include "model/engine/gather.hpp"

namespace simplescale {

Result<GatherSchedule> GatherSchedule::create(const BufferPlan& plan, const ShardLayout& layout,
                                              DType precision, Backend& backend,
                                              Collective& shard) {
  GatherSchedule schedule(layout, precision, backend, shard);
  schedule.pool_of_unit_ = plan.pool_of_unit_gather;
  if (shard.size() == 1 && !plan.gather.empty()) {
    SS_ASSERT(plan.gather.size() == layout.offset.size());  // a buffer for each unit
    SS_ASSIGN(schedule.whole_, shard.allocate(layout.total * bytes_of(precision)));
    for (size_t unit = 0; unit < plan.gather.size(); ++unit)
      schedule.slots_.push_back({.pool = unit,
                                 .data = static_cast<char*>(schedule.whole_) +
                                         layout.offset[unit] * bytes_of(precision)});
    return schedule;
  }
  for (size_t pool = 0; pool < plan.gather.size(); ++pool) {
    for (size_t i = 0; i < plan.gather[pool].slots; ++i) {
      SS_ASSIGN(void* data, shard.allocate(plan.gather[pool].elements * bytes_of(precision)));
      schedule.slots_.push_back({.pool = pool, .data = data});
    }
  }
  return schedule;
}

void GatherSchedule::reset(const float* master, bool written) {
  SS_ASSERT(!written || whole_);
  master_ = master;
  for (Slot& slot : slots_) {
    slot.work.reset();
    slot.unit = written ? slot.pool : kNone;
  }
}

GatherSchedule::Slot* GatherSchedule::find(size_t unit) {
  for (Slot& slot : slots_)
    if (slot.unit == unit) return &slot;
  return nullptr;
}

void GatherSchedule::start(Slot& slot, size_t unit) {
  const size_t count = layout_->count[unit];
  slot.work.reset();  // waits for a prefetch that was not used
  slot.unit = unit;
  char* own = static_cast<char*>(slot.data) +
              static_cast<size_t>(shard_->rank()) * count * bytes_of(precision_);
  backend_->cast(master_ + layout_->offset[unit], own, count);
  if (shard_->size() == 1) return;
  if (!backend_->stream()) backend_->synchronize();
  slot.work = shard_->all_gather(own, slot.data, count, precision_);
}

void GatherSchedule::prefetch(size_t unit, size_t current) {
  if (slots_.empty() || unit == kNone || find(unit)) return;
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.pool != pool_of_unit_[unit] || (current != kNone && slot.unit == current)) continue;
    if (!oldest || slot.last_use < oldest->last_use) oldest = &slot;
  }
  SS_ASSERT(oldest);  // no two successive units share a pool of one slot
  start(*oldest, unit);
}

Result<const void*> GatherSchedule::use(size_t unit, size_t next, WaitClock& wait) {
  if (slots_.empty()) return static_cast<const void*>(master_ + layout_->offset[unit]);
  prefetch(unit);
  Slot* slot = find(unit);
  slot->last_use = ++uses_;
  if (slot->work) {
    const Waiting waiting(wait);
    const Status status = slot->work->wait();
    slot->work.reset();
    if (!status.ok()) return status;
  }
  prefetch(next, unit);
  return static_cast<const void*>(slot->data);
}

}  // namespace simplescale
