#include "model/engine/gather.hpp"

#include <algorithm>

namespace simplescale {

Result<GatheredUnits> GatheredUnits::create(const BufferPlan& plan, const ShardLayout& layout,
                                            DType precision, Backend& backend, Collective& shard) {
  GatheredUnits gathered(layout, precision, backend, shard);
  if (shard.size() == 1 && !plan.gather.empty()) {
    SS_ASSERT(plan.gather.size() == layout.offset.size());  // a buffer for each unit
    SS_ASSIGN(gathered.whole_, shard.allocate(layout.total * bytes_of(precision)));
    for (size_t unit = 0; unit < plan.gather.size(); ++unit)
      gathered.slots_.push_back({.data = static_cast<char*>(gathered.whole_) +
                                         layout.offset[unit] * bytes_of(precision)});
    return gathered;
  }
  for (size_t pool = 0; pool < plan.gather.size(); ++pool) {
    for (size_t i = 0; i < plan.gather[pool].slots; ++i) {
      SS_ASSIGN(void* data, shard.allocate(plan.gather[pool].elements * bytes_of(precision)));
      gathered.slots_.push_back({.data = data});
    }
  }
  return gathered;
}

void GatheredUnits::reset(const float* master, bool written) {
  SS_ASSERT(!written || whole_);
  master_ = master;
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].work.reset();
    slots_[i].unit = written ? i : kNone;
  }
}

void GatheredUnits::start(size_t index, size_t unit) {
  Slot& slot = slots_[index];
  if (slot.unit == unit) return;
  const size_t count = layout_->count[unit];
  slot.work.reset();  // waits for a gather that was not used
  slot.unit = unit;
  char* own = static_cast<char*>(slot.data) +
              static_cast<size_t>(shard_->rank()) * count * bytes_of(precision_);
  backend_->cast(master_ + layout_->offset[unit], own, count);
  if (shard_->size() == 1) return;
  if (!backend_->stream()) backend_->synchronize();
  slot.work = shard_->all_gather(own, slot.data, count, precision_);
}

Result<const void*> GatheredUnits::use(size_t unit, WaitClock& wait) {
  if (slots_.empty()) return static_cast<const void*>(master_ + layout_->offset[unit]);
  const auto slot = std::ranges::find(slots_, unit, &Slot::unit);
  SS_ASSERT(slot != slots_.end());
  if (slot->work) {
    const Waiting waiting(wait);
    const Status status = slot->work->wait();
    slot->work.reset();
    if (!status.ok()) return status;
  }
  return static_cast<const void*>(slot->data);
}

}  // namespace simplescale
