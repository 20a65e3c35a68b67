#include "actors/peer/peer_store.hpp"

#include <algorithm>

#include "actors/checkpoint/state_store.hpp"
#include "runtime/training/state_hash.hpp"

namespace simplescale {

PeerStore::PeerStore(std::string prefix, const ModelShape& shape, size_t shards,
                     const StateFormat& format)
    : prefix_(std::move(prefix)),
      total_(shard_layout(units_of(shape), shards).total),
      format_(format) {
  for (size_t shard = 0; shard < shards; ++shard)
    layout_.push_back(layout_hash(shape, shards, shard));
}

Result<TrainState*> PeerStore::prepare(uint32_t shard, uint64_t keep) {
  if (shard >= layout_.size())
    return Status(Code::bad_data, "there is no shard " + std::to_string(shard));
  std::lock_guard lock(mutex_);
  auto found = states_.find(shard);
  if (found == states_.end()) {
    SS_ASSIGN(TrainState state,
              TrainState::create(prefix_ + std::to_string(shard), layout_[shard], total_, format_));
    found = states_.emplace(shard, std::move(state)).first;
  }
  TrainState& state = found->second;
  state.clear_pins();  // left by trainers that died in a restore
  if (state.holds(keep)) SS_RETURN_IF_ERROR(state.rewind(keep));
  return &state;
}

bool PeerStore::drop_unassigned(const std::set<uint32_t>& assigned, uint64_t keep) {
  std::lock_guard lock(mutex_);
  return std::erase_if(states_, [&](const auto& entry) {
           return !assigned.contains(entry.first) && !entry.second.holds(keep);
         }) > 0;
}

std::vector<PeerCopy> PeerStore::held() const {
  std::lock_guard lock(mutex_);
  std::vector<PeerCopy> copies;
  for (const auto& [shard, state] : states_)
    for (const int side : {0, 1})
      if (const auto copy = state.held(side))
        copies.push_back({shard, copy->step, copy->generation});
  return copies;
}

Status PeerStore::flip_bits() {
  std::lock_guard lock(mutex_);
  bool any = false;
  for (auto& [shard, state] : states_) {
    if (!state.has_step()) continue;
    any = true;
    auto* bytes = reinterpret_cast<unsigned char*>(state.committed().params.data());
    bytes[2] ^= 0x40;  // the highest bit of the mantissa
  }
  return any ? Status() : Status(Code::not_found, "this node keeps no peer copies");
}

std::string PeerStore::segment(uint32_t shard, uint64_t step) const {
  std::lock_guard lock(mutex_);
  const auto found = states_.find(shard);
  return found == states_.end() || !found->second.holds(step) ? "" : found->second.name();
}

bool verify_or_forget(TrainState& state, const StateVersion& copy) {
  const Result<int> side = state.pin(copy.step);
  if (!side.ok()) return false;
  const bool good = state.held(*side) == copy && check_side(state, *side).ok();
  state.unpin(*side);
  if (!good) state.forget(copy.step);
  return good;
}

}  // namespace simplescale
