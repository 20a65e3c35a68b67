#include "model/engine/gather.hpp"

#include <algorithm>
#include <utility>

#include "model/cpu/shard.hpp"

namespace simplescale {

Result<GatheredUnits> GatheredUnits::create(const BufferPlan& plan, const ShardLayout& layout,
                                            DType precision, Backend& backend, Collective& shard) {
  GatheredUnits gathered(plan, layout, precision, backend, shard);
  const size_t all = gathered.bytes(layout.total);
  if (plan.through_host) {
    SS_ASSIGN(gathered.host_, backend.host_buffer(Backend::HostUse::parameters, all));
  }
  if (shard.size() == 1 && !plan.gather.empty() && plan.windows.empty()) {
    SS_ASSERT(plan.gather.size() == layout.offset.size());  // a buffer for each unit
    SS_ASSIGN(gathered.whole_, shard.allocate(all));
    for (size_t unit = 0; unit < plan.gather.size(); ++unit)
      gathered.slots_.push_back(
          {.data = static_cast<char*>(gathered.whole_) + gathered.bytes(layout.offset[unit])});
    return gathered;
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
  for (Slot& slot : slots_) slot.work.reset();
  if (host_ && !written) {
    for (Slot& slot : slots_) await_upload(slot);
    backend_->synchronize();  // they read what is written here
    cpu::cast(backend_->host_threads(), precision_, master, host_, layout_->total);
    upload(layout_->total);
  }
  uploaded_ = 0;
  const bool whole = whole_ && (written || host_);
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].unit = whole ? i : kNone;
}

void GatheredUnits::upload(size_t elements) {
  const auto end = [this](size_t unit) { return layout_->offset[unit] + layout_->count[unit]; };
  for (; whole_ && uploaded_ < slots_.size() && end(uploaded_) <= elements; ++uploaded_) {
    Slot& slot = slots_[uploaded_];
    slot.upload =
        backend_->start_upload(slot.data, rounded(uploaded_), bytes(layout_->count[uploaded_]));
  }
}

void GatheredUnits::await_upload(Slot& slot) {
  if (slot.upload) std::exchange(slot.upload, nullptr)();
}

void GatheredUnits::start(size_t index, size_t unit) {
  Slot& slot = slots_[index];
  if (slot.unit == unit) return;
  const size_t count = layout_->count[unit];
  slot.work.reset();  // waits for a gather that was not used
  slot.unit = unit;
  const bool alone = shard_->size() == 1 || plan_->is_resident(unit);
  const auto place = alone ? 0 : static_cast<size_t>(shard_->rank());
  char* own = static_cast<char*>(slot.data) + place * bytes(count);
  if (host_)
    slot.upload = backend_->start_upload(own, rounded(unit), bytes(count));
  else
    backend_->cast(master_ + layout_->offset[unit], own, count);
  if (alone) return;
  void* const uploads = host_ ? backend_->upload_stream() : nullptr;
  if (uploads)  // only the gather waits for the upload, which follows all calls so far
    shard_->follow(uploads), slot.upload = nullptr;
  else
    await_upload(slot);
  if (!backend_->stream()) backend_->synchronize();
  slot.work = shard_->all_gather(own, slot.data, count, precision_);
  if (uploads) shard_->follow(backend_->stream());
}

Result<const void*> GatheredUnits::use(size_t unit, WaitClock& wait) {
  if (slots_.empty()) return static_cast<const void*>(master_ + layout_->offset[unit]);
  const auto slot = std::ranges::find(slots_, unit, &Slot::unit);
  SS_ASSERT(slot != slots_.end());
  await_upload(*slot);
  if (slot->work) {
    const Waiting waiting(wait);
    const Status status = slot->work->wait();
    slot->work.reset();
    if (!status.ok()) return status;
  }
  return static_cast<const void*>(slot->data);
}

}  // namespace simplescale
