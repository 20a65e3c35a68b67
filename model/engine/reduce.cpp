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

Result<GradientSums> GradientSums::create(const BufferPlan& plan, const std::vector<Unit>& units,
                                          const ShardLayout& layout, DType precision,
                                          Backend& backend, Collective& shard,
                                          Collective& replicate, const Shares& shares) {
  GradientSums made(plan, units.size(), layout, precision, backend, shard, replicate, shares);
  made.in_background_ = plan.sums_in_background;
  made.own_total_ = layout.total;
  for (const Unit& unit : units) made.elements_.push_back(unit.count);
  ShardLayout& sums = made.layout_;
  if (plan.tied_gradient > 0) {
    made.elements_.push_back(units[0].count);
    sums.offset.push_back(sums.total);
    sums.count.push_back(plan.tied_gradient);
    sums.total += plan.tied_gradient;
  }
  for (size_t pool = 0; pool < plan.gradient.size(); ++pool) {
    for (size_t i = 0; i < plan.gradient[pool].slots; ++i) {
      SS_ASSIGN(void* data, shard.allocate(plan.gradient[pool].elements * bytes_of(precision)));
      made.slots_.push_back({.data = data});
    }
  }
  for (const BufferPool& pool : plan.sums)
    for (size_t i = 0; i < pool.slots; ++i) {
      Sum& sum = made.sums_.emplace_back();
      for (size_t digit = 0; digit < plan.sum_digits; ++digit) {
        SS_ASSIGN(void* data, shard.allocate(pool.elements * sizeof(float)));
        sum.digits.push_back(static_cast<float*>(data));
      }
    }
  made.across_.resize(sums.count.size());
  made.totals_.resize(sums.count.size());
  if (plan.through_host) {
    SS_ASSIGN(void* host,
              backend.host_buffer(Backend::HostUse::gradient, layout.total * sizeof(float)));
    made.host_total_ = static_cast<float*>(host);
    made.downloads_.resize(units.size());
  }
  if (!plan.windows.empty()) {
    SS_RETURN_IF_ERROR(made.make_windows(plan));
    return made;
  }
  std::vector<float*> digits;
  for (size_t i = 0; i < plan.digits; ++i) {
    SS_ASSIGN(void* data, replicate.allocate(sums.total * sizeof(float)));
    digits.push_back(static_cast<float*>(data));
  }
  made.total_ = digits[0];
  if (plan.separate_total) {
    SS_ASSIGN(void* data, replicate.allocate(sums.total * sizeof(float)));
    made.total_ = static_cast<float*>(data);
  }
  for (size_t unit = 0; unit < sums.count.size(); ++unit) {
    std::vector<float*> buffers;
    for (float* digit : digits) buffers.push_back(digit + sums.offset[unit]);
    made.slices_.emplace_back(std::move(buffers), sums.count[unit]);
    made.totals_[unit] = made.total_ + sums.offset[unit];
  }
  return made;
}

Status GradientSums::make_windows(const BufferPlan& plan) {
  const auto allocate = [&](size_t elements) -> Result<float*> {
    SS_ASSIGN(void* data, replicate_->allocate(elements * sizeof(float)));
    return static_cast<float*>(data);
  };
  std::vector<std::vector<float*>> further(plan.further.size());
  for (size_t i = 0; i < further.size(); ++i)
    for (size_t digit = 0; digit < plan.further[i].slots; ++digit) {
      SS_ASSIGN(float* data, allocate(plan.further[i].elements));
      further[i].push_back(data);
    }
  for (size_t pool = 0; pool < plan.windows.size(); ++pool)
    for (size_t slot = 0; slot < plan.windows[pool].slots; ++slot) {
      Window& window = windows_.emplace_back();
      for (size_t digit = 0; digit < plan.window_digits; ++digit) {
        SS_ASSIGN(float* data, allocate(plan.windows[pool].elements));
        window.digits.push_back(data);
      }
      if (plan.separate_total) {
        SS_ASSIGN(window.total, allocate(plan.windows[pool].elements));
      }
      if (further.empty()) continue;
      const std::vector<float*>& more = further[plan.further_of(pool)];
      window.digits.insert(window.digits.end(), more.begin(), more.end());
    }
  for (const size_t count : layout_.count) slices_.emplace_back(std::vector<float*>(), count);
  return {};
}

void GradientSums::begin_step() {
  for (PartialSum& slice : slices_) slice.clear();
  finite_ = true;
}

void* GradientSums::gradient(size_t unit, size_t slot) {
  if (slots_.empty()) return slices_[unit].buffer(0);
  SS_ASSERT(!slots_[slot].work);
  return slots_[slot].data;
}

/// Embeddings and head may share a slot: zeroes what the longer unit left behind the shorter one's
/// end, since padding is summed, too.
void GradientSums::clear_padding(Slot& slot, size_t unit) {
  const size_t count = elements_[unit];
  const size_t padded = layout_.count[unit] * layout_.shards;
  const size_t end = std::min(padded, slot.written);
  if (end > count)
    backend_->zero(static_cast<char*>(slot.data) + count * bytes_of(precision_),
                   (end - count) * bytes_of(precision_));
  slot.written = std::max(slot.written, count);
}

void GradientSums::check_finite(const void* gradient, size_t count) {
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

void GradientSums::add(const Task& task) {
  Sum& sum = sums_[task.sum];
  Slot& slot = slots_[task.slot];
  const bool resident = plan_->is_resident(task.unit);
  const size_t part = this->part(task.unit);
  if (task.frame == 0) {
    sum.waves.clear();
    for (size_t shard = 0; shard < (resident ? layout_.shards : 1); ++shard) {
      std::vector<float*> digits;
      for (float* digit : sum.digits) digits.push_back(digit + shard * part);
      sum.waves.emplace_back(std::move(digits), part);
    }
  }
  if (!backend_->stream()) backend_->synchronize();
  clear_padding(slot, task.unit);
  check_finite(slot.data, elements_[task.unit]);
  for (size_t shard = 0; shard < sum.waves.size(); ++shard)  // every trainer has a leaf of a wave
    backend_->add_leaf(
        {resident ? leaf_of(task, shard) : leaf_of(task),
         static_cast<const char*>(slot.data) + shard * part * bytes_of(precision_), precision_},
        sum.waves[shard]);
}

TreeNode GradientSums::leaf_of(const Task& task, size_t shard) const {
  return {0, shares_->leaf(group(), shard, static_cast<uint64_t>(task.micro_batch))};
}

/// This trainer has all leaves of its experts.
void GradientSums::reduce_resident(const Task& task) {
  const std::vector<TreeNode> nodes = shares_->turn(group(), static_cast<uint64_t>(task.turn));
  const size_t part = this->part(task.unit);
  PartialSum& slice = slices_[task.unit];
  std::vector<TreeSource> sources;
  for (size_t shard = 0; shard < nodes.size(); ++shard)
    if (task.sum != Task::kNone)
      sources.push_back({nodes[shard], sums_[task.sum].waves[shard].data(0), DType::f32});
    else
      sources.push_back(
          {nodes[shard],
           static_cast<const char*>(slots_[task.slot].data) + shard * part * bytes_of(precision_),
           precision_});
  if (task.sum == Task::kNone) check_finite(slots_[task.slot].data, nodes.size() * part);
  constexpr size_t kPiece = size_t{1} << 16;
  for_pieces(backend_->host_threads(), part, kPiece, [&](size_t first, size_t count) {
    std::vector<TreeSource> pieces = sources;
    for (TreeSource& piece : pieces)
      piece.data = static_cast<const char*>(piece.data) + first * bytes_of(piece.dtype);
    slice.add_range(pieces, first, count);
  });
  slice.added(nodes);
}

void GradientSums::reduce(const Task& task) {
  const size_t unit = task.unit;
  std::vector<TreeNode> nodes = shares_->turn(group(), static_cast<uint64_t>(task.turn));
  if (task.window != Task::kNone && slices_[unit].nodes().empty()) {
    const Window& window = windows_[task.window];
    slices_[unit] = PartialSum(window.digits, layout_.count[unit]);
    totals_[unit] = window.total ? window.total : window.digits[0];
  }
  if (nodes.empty()) return;
  if (plan_->is_resident(unit)) return reduce_resident(task);
  const bool has_leaf = static_cast<size_t>(shard_->rank()) < nodes.size();
  PartialSum& slice = slices_[unit];
  if (!backend_->stream()) backend_->synchronize();
  if (task.sum != Task::kNone) {  // every trainer has a node of a wave
    Sum& sum = sums_[task.sum];
    sum.work = shard_->reduce_scatter_leaves(sum.waves[0].data(0), layout_.count[unit], DType::f32,
                                             nodes, slice);
    return;
  }
  void* const gradient = this->gradient(unit, task.slot);
  if (!slots_.empty()) clear_padding(slots_[task.slot], unit);
  if (has_leaf) check_finite(gradient, elements_[unit]);
  if (!in_background_) {
    backend_->add_leaf({leaf_of(task), gradient, slots_.empty() ? DType::f32 : precision_}, slice);
    return;
  }
  if (shard_->size() == 1) nodes = {leaf_of(task)};  // of a wave, one after the other
  if (!has_leaf) backend_->zero(gradient, elements_[unit] * bytes_of(precision_));
  slots_[task.slot].work =
      shard_->reduce_scatter_leaves(gradient, layout_.count[unit], precision_, nodes, slice);
}

Status GradientSums::reduced(const Task& task, WaitClock& wait) {
  WorkPtr& work = task.sum == Task::kNone ? slots_[task.slot].work : sums_[task.sum].work;
  if (!work) return {};  // no rank of the group has a leaf
  const Waiting waiting(wait);
  const Status status = work->wait();
  work.reset();
  return status;
}

void GradientSums::exchange(size_t unit) {
  PartialSum& slice = slices_[unit];
  if (replicate_->size() == 1 && slice.nodes().size() == 1) return;
  if (replicate_->size() > 1 || !backend_->host_memory()) {
    across_[unit] = replicate_->all_reduce_partials(slice, shares_->blocks(), totals_[unit]);
    return;
  }
  std::vector<TreeSource> sources;
  for (size_t i = 0; i < slice.nodes().size(); ++i)
    sources.push_back({slice.nodes()[i], slice.data(i), DType::f32});
  tree_total(sources, slice.buffer(0), DType::f32, slice.count());
}

Status GradientSums::wait_for_sum(size_t unit, WaitClock& wait) {
  const WorkPtr work = std::move(across_[unit]);
  if (!work) return {};
  const Waiting waiting(wait);
  return work->wait();
}

/// The total gradient of tied embeddings: both parts' sums are made.
void GradientSums::add_tied_head() {
  if (tied_head() < layout_.count.size())
    backend_->accumulate(totals_[tied_head()], totals_[0], layout_.count[0]);
}

Status GradientSums::download(size_t unit, WaitClock& wait) {
  SS_RETURN_IF_ERROR(wait_for_sum(unit, wait));
  if (unit == 0 && tied_head() < across_.size())
    SS_RETURN_IF_ERROR(wait_for_sum(tied_head(), wait));
  if (unit == 0) add_tied_head();
  const size_t at = layout_.offset[unit], count = layout_.count[unit];
  backend_->start_squares(totals_[unit], at, count, own_total_);
  downloads_[unit] =
      backend_->start_download(host_total_ + at, totals_[unit], count * sizeof(float));
  return {};
}

void GradientSums::downloaded(size_t unit) {
  if (unit < downloads_.size()) std::exchange(downloads_[unit], nullptr)();
}

Status GradientSums::finish(WaitClock& wait) {
  Status status;
  for (size_t unit = 0; unit < across_.size(); ++unit)
    if (Status ended = wait_for_sum(unit, wait); status.ok()) status = ended;
  if (!status.ok() || host_total_) return status;
  add_tied_head();
  backend_->start_squares(total_, 0, own_total_, own_total_);
  return {};
}

}  // namespace simplescale
