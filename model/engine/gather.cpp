#include "model/engine/gather.hpp"

#include <algorithm>
#include <utility>

#include "model/cpu/shard.hpp"

namespace simplescale {

Result<GatheredUnits> GatheredUnits::create(const BufferPlan& plan, const ShardLayout& layout,
                                            DType precision, Backend& backend, Collective& shard) {
  GatheredUnits gathered(layout, precision, backend, shard);
  const size_t all = gathered.bytes(layout.total);
  if (plan.through_host) {
    SS_ASSIGN(gathered.host_, backend.host_buffer(Backend::HostUse::parameters, all));
    gathered.uploads_.resize(layout.offset.size());
  }
  if (shard.size() == 1 && !plan.gather.empty()) {
    SS_ASSERT(plan.gather.size() == layout.offset.size());  // a buffer for each unit
    SS_ASSIGN(gathered.whole_, shard.allocate(all));
    gathered.own_ = gathered.whole_;
    for (size_t unit = 0; unit < plan.gather.size(); ++unit)
      gathered.slots_.push_back(
          {.data = static_cast<char*>(gathered.whole_) + gathered.bytes(layout.offset[unit])});
    return gathered;
  }
  if (plan.own_parameters) {
    SS_ASSIGN(gathered.own_, shard.allocate(all));
  }
  for (size_t pool = 0; pool < plan.gather.size(); ++pool) {
    for (size_t i = 0; i < plan.gather[pool].slots; ++i) {
      SS_ASSIGN(void* data, shard.allocate(gathered.bytes(plan.gather[pool].elements)));
      gathered.slots_.push_back({.data = data});
    }
  }
  return gathered;
}

void GatheredUnits::reset(const float* master, bool written) {
  SS_ASSERT(!written || whole_ || host_);
  master_ = master;
  if (host_) {
    if (!written) {
      cpu::cast(backend_->host_threads(), precision_, master, host_, layout_->total);
      upload(layout_->total);
    }
    uploaded_ = 0;
  }
  const bool whole = whole_ && (written || host_);
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].work.reset();
    slots_[i].unit = whole ? i : kNone;
  }
}

void GatheredUnits::upload(size_t elements) {
  const auto end = [this](size_t unit) { return layout_->offset[unit] + layout_->count[unit]; };
  for (; uploaded_ < uploads_.size() && end(uploaded_) <= elements; ++uploaded_) {
    const size_t at = bytes(layout_->offset[uploaded_]);
    uploads_[uploaded_] =
        backend_->start_upload(static_cast<char*>(own_) + at, static_cast<const char*>(host_) + at,
                               bytes(layout_->count[uploaded_]));
  }
}

void GatheredUnits::await_upload(size_t unit) {
  if (host_ && uploads_[unit]) std::exchange(uploads_[unit], nullptr)();
}

void GatheredUnits::start(size_t index, size_t unit) {
  Slot& slot = slots_[index];
  if (slot.unit == unit) return;
  const size_t count = layout_->count[unit];
  slot.work.reset();  // waits for a gather that was not used
  slot.unit = unit;
  char* own = static_cast<char*>(slot.data) + static_cast<size_t>(shard_->rank()) * bytes(count);
  if (host_) {
    await_upload(unit);
    backend_->copy(own, static_cast<const char*>(own_) + bytes(layout_->offset[unit]),
                   bytes(count));
  } else {
    backend_->cast(master_ + layout_->offset[unit], own, count);
  }
  if (shard_->size() == 1) return;
  if (!backend_->stream()) backend_->synchronize();
  slot.work = shard_->all_gather(own, slot.data, count, precision_);
}

Result<const void*> GatheredUnits::use(size_t unit, WaitClock& wait) {
  if (slots_.empty()) return static_cast<const void*>(master_ + layout_->offset[unit]);
  const auto slot = std::ranges::find(slots_, unit, &Slot::unit);
  SS_ASSERT(slot != slots_.end());
  await_upload(unit);
  if (slot->work) {
    const Waiting waiting(wait);
    const Status status = slot->work->wait();
    slot->work.reset();
    if (!status.ok()) return status;
  }
  return static_cast<const void*>(slot->data);
}

}  // namespace simplescale
