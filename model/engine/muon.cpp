#include "model/engine/muon.hpp"

#include <algorithm>

namespace simplescale {

Result<MuonSchedule> MuonSchedule::create(const BufferPlan& plan, const std::vector<Unit>& units,
                                          const ShardLayout& layout, std::vector<ParameterRun> runs,
                                          DType precision, Backend& backend, Collective& shard,
                                          Collective& replicate) {
  MuonSchedule schedule(layout, precision, backend, shard, replicate);
  schedule.of_unit_.resize(units.size());
  for (const ParameterRun& run : runs)
    for (size_t unit = 1; unit + 1 < units.size(); ++unit) {  // a run may cross units
      const size_t begin = layout.offset[unit], end = begin + layout.count[unit];
      const size_t from = std::max(begin, run.first), to = std::min(end, run.first + run.count);
      if (from >= to) continue;
      ParameterRun part = run;
      part.first = from - begin, part.count = to - from, part.element += from - run.first;
      schedule.of_unit_[unit].push_back(part);
    }
  schedule.runs_ = std::move(runs);

  const size_t bytes = bytes_of(precision);
  SS_ASSIGN(void* unit, shard.allocate(plan.muon_unit * bytes));
  schedule.unit_ = schedule.part_ = static_cast<char*>(unit);
  if (plan.muon_part > 0) {
    SS_ASSIGN(void* part, shard.allocate(plan.muon_part * bytes));
    schedule.part_ = static_cast<char*>(part);
  }
  SS_ASSIGN(void* own, shard.allocate(plan.muon_owned * bytes));
  const auto shards = static_cast<size_t>(shard.size());
  const std::vector<MuonMatrix> matrices = muon_matrices(units);
  const std::vector<size_t> owners =
      owners_of(matrices, shards * static_cast<size_t>(replicate.size()));
  const size_t rank =
      static_cast<size_t>(replicate.rank()) * shards + static_cast<size_t>(shard.rank());
  char* next = static_cast<char*>(own);
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (owners[i] != rank) continue;
    schedule.owned_.push_back({matrices[i], next});
    next += matrices[i].count() * bytes;
  }
  return schedule;
}

Status MuonSchedule::finish(WorkPtr work, WaitClock& wait) {
  const Waiting waiting(wait);
  return work->wait();
}

/// The group's update of `unit` in unit_; this rank's own matrices of it in their own memory.
Status MuonSchedule::gather(size_t unit, const float* update, WaitClock& wait) {
  const size_t count = layout_->count[unit], bytes = bytes_of(precision_);
  char* mine = unit_ + static_cast<size_t>(shard_->rank()) * count * bytes;
  backend_->cast(update + layout_->offset[unit], mine, count);
  if (shard_->size() > 1) {
    if (!backend_->stream()) backend_->synchronize();
    SS_RETURN_IF_ERROR(finish(shard_->all_gather(mine, unit_, count, precision_), wait));
  }
  for (const Owned& owned : owned_)
    if (owned.matrix.unit == unit)
      backend_->copy(owned.data, unit_ + owned.matrix.offset * bytes, owned.matrix.count() * bytes);
  return {};
}

/// This rank's shard of the orthogonalized matrices of `unit` in part_.
Status MuonSchedule::scatter(size_t unit, WaitClock& wait) {
  const size_t count = layout_->count[unit], bytes = bytes_of(precision_);
  backend_->zero(unit_, count * layout_->shards * bytes);
  for (const Owned& owned : owned_)
    if (owned.matrix.unit == unit)
      backend_->copy(unit_ + owned.matrix.offset * bytes, owned.data, owned.matrix.count() * bytes);
  if (!backend_->stream()) backend_->synchronize();
  if (shard_->size() > 1)
    SS_RETURN_IF_ERROR(finish(shard_->reduce_scatter(unit_, part_, count, precision_), wait));
  if (replicate_->size() > 1)
    SS_RETURN_IF_ERROR(finish(replicate_->all_reduce(part_, count, precision_), wait));
  return {};
}

Status MuonSchedule::apply(const Muon& options, float* gradient, const StateUpdate& state,
                           const std::function<Status()>& computed, WaitClock& wait) {
  backend_->muon_momentum(options, runs_, gradient, state.from_avg, state.to_avg);
  const size_t head = of_unit_.size() - 1;
  for (size_t unit = 1; unit < head; ++unit) SS_RETURN_IF_ERROR(gather(unit, gradient, wait));
  for (const Owned& owned : owned_) {
    backend_->orthogonalize(owned.matrix.rows, owned.matrix.columns, owned.data);
    SS_RETURN_IF_ERROR(computed());
  }
  for (size_t unit = 1; unit < head; ++unit) {
    SS_RETURN_IF_ERROR(scatter(unit, wait));
    const size_t at = layout_->offset[unit], moment = at * bytes_of(state.moments);
    backend_->muon_update(options, of_unit_[unit], part_, state.from_params + at,
                          static_cast<const char*>(state.from_avg_sq) + moment,
                          state.to_params + at, static_cast<char*>(state.to_avg_sq) + moment);
  }
  // No vote follows, so these tell whether a peer has aborted (Work::wait()). First in the group: its
  // numbers have reached all groups.
  SS_RETURN_IF_ERROR(finish(shard_->barrier(), wait));
  return finish(replicate_->barrier(), wait);
}

}  // namespace simplescale
