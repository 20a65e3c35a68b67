#include "actors/peer/peer_store.hpp"

#include <algorithm>

#include "actors/checkpoint/state_store.hpp"
#include "runtime/training/state_hash.hpp"

namespace simplescale {

PeerStore::PeerStore(std::string prefix, const ModelShape& shape, const StateFormat& format)
    : prefix_(std::move(prefix)), units_(units_of(shape)), format_(format) {}

Result<TrainState*> PeerStore::prepare(uint32_t layout, uint64_t keep) {
  const uint32_t shard = shard_of(layout), shards = shards_of(layout);
  if (shard >= shards)
    return Status(Code::bad_data,
                  "there is no shard " + std::to_string(shard) + " of " + std::to_string(shards));
  std::lock_guard lock(mutex_);
  auto found = states_.find(layout);
  if (found == states_.end()) {
    SS_ASSIGN(TrainState state,
              TrainState::create(prefix_ + std::to_string(shard) + "of" + std::to_string(shards),
                                 layout, shard_layout(units_, shards).total, format_));
    found = states_.emplace(layout, std::move(state)).first;
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

std::vector<StateCopy> PeerStore::held() const {
  std::lock_guard lock(mutex_);
  std::vector<StateCopy> copies;
  for (const auto& [layout, state] : states_)
    for (const int side : {0, 1})
      if (const auto copy = state.held(side)) copies.push_back(*copy);
  return copies;
}

Status PeerStore::flip_bits() {
  std::lock_guard lock(mutex_);
  bool any = false;
  for (auto& [layout, state] : states_) {
    if (!state.has_step()) continue;
    any = true;
    auto* bytes = reinterpret_cast<unsigned char*>(state.committed().params.data());
    bytes[2] ^= 0x40;  // the highest bit of the mantissa
  }
  return any ? Status() : Status(Code::not_found, "this node keeps no peer copies");
}

std::string PeerStore::segment(uint32_t layout, uint64_t step) const {
  std::lock_guard lock(mutex_);
  const auto found = states_.find(layout);
  return found == states_.end() || !found->second.holds(step) ? "" : found->second.name();
}

bool verify_or_forget(TrainState& state, const StateVersion& copy) {
  const Result<int> side = state.pin(copy.step);
  if (!side.ok()) return false;
  const auto held = state.held(*side);
  const bool good = held && held->version() == copy && check_side(state, *side).ok();
  state.unpin(*side);
  if (!good) state.forget(*side);
  return good;
}

}  // namespace simplescale
