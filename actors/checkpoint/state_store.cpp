#include "actors/checkpoint/state_store.hpp"

#include <algorithm>

#include "runtime/base/cpu_affinity.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/training/names.hpp"
#include "runtime/training/state_hash.hpp"

namespace simplescale {

Status StateStore::create(const std::string& instance, const Plan& plan, int node,
                          const std::vector<CpuList>& places) {
  std::lock_guard lock(mutex_);
  const auto shards = static_cast<size_t>(plan.topology.shards);
  const std::vector<Unit> units = units_of(plan.shape);
  const size_t total = shard_layout(units, shards).total;
  const auto fewest =
      static_cast<size_t>(plan.topology.shards_of(plan.topology.group_sizes.front()));
  const size_t most = shard_layout(units, fewest).total;
  for (int slot = 0; slot < plan.topology.trainers_per_node; ++slot) {
    const std::string name = trainer_name(node_name(node), slot);
    const auto index = static_cast<size_t>(slot);
    const ScopedAffinity there(index < places.size() ? places[index] : CpuList());
    SS_ASSIGN(TrainState state, TrainState::create("ss-" + instance + "-" + name + "-state",
                                                   layout_of(shards, 0), total, plan.state, most));
    entries_.emplace(name, Entry{std::move(state), 0});
  }
  return {};
}

std::string StateStore::segment(const std::string& trainer) const {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(trainer);
  return found == entries_.end() ? "" : found->second.state.name();
}

std::vector<StateCopy> StateStore::held(const std::string& trainer) const {
  std::lock_guard lock(mutex_);
  std::vector<StateCopy> held;
  auto found = entries_.find(trainer);
  if (found == entries_.end()) return held;
  const TrainState& state = found->second.state;
  const std::optional<uint64_t> step = state.step_if_any();
  if (!step) return held;
  for (const uint64_t wanted : {*step - 1, *step})
    for (const int side : {0, 1})
      if (const auto copy = state.held(side); copy && copy->step == wanted) held.push_back(*copy);
  return held;
}

std::optional<StateCopy> StateStore::held(const std::string& trainer,
                                          const StateVersion& version) const {
  for (const StateCopy& copy : held(trainer))
    if (copy.version() == version) return copy;
  return std::nullopt;
}

namespace {
/// Allocates memory for a copy. The threads that copy touch it first, because most of a copy's time
/// is page faults.
StateStore::Copy memory_for(TrainState& state, int of_side) {
  const TrainState::Side side = state.side(of_side);
  const size_t values = side.values();
  StateStore::Copy copy{.values = std::make_shared_for_overwrite<float[]>(values)};
  copy.side = TrainState::Side::over({copy.values.get(), values}, side.params.size(),
                                     state.format().moments);
  return copy;
}

void copy_side(TrainState& state, int side, StateStore::Copy& copy, const Parallel& parallel) {
  copy.hash = state.hash(side);
  copy.side.copy_from(state.side(side), parallel);
}
}  // namespace

Result<StateStore::Copy> StateStore::copy_and_unpin(const std::string& trainer, int32_t pid,
                                                    const StateVersion& wanted,
                                                    const Parallel& parallel) {
  std::unique_lock lock(mutex_);
  auto found = entries_.find(trainer);
  if (found == entries_.end())
    return Status(Code::not_found, "no trainer " + trainer + " on this node");
  TrainState& state = found->second.state;
  // Take a second pin for this call: trainer_restarted() may have released the process's pin.
  SS_ASSIGN(const int side, state.pin(wanted.step));
  auto release_pins = [&] {
    state.unpin(side);
    if (found->second.pid == pid) state.unpin(side);
  };
  Copy copy;
  try {
    copy = memory_for(state, side);
  } catch (...) {
    release_pins();
    throw;
  }
  if (const auto held = state.held(side); !held || held->version() != wanted) {
    release_pins();
    return Status(Code::not_found, trainer + " does not hold step " + std::to_string(wanted.step) +
                                       " of generation " + std::to_string(wanted.generation));
  }
  const uint64_t restarts = found->second.restarts;
  lock.unlock();  // entries_ is stable, and the copy takes long
  copy_side(state, side, copy, parallel);
  lock.lock();
  if (found->second.restarts != restarts)  // trainer_restarted() released both pins
    return Status(Code::aborted, trainer + " has been replaced while its state was copied");
  release_pins();
  lock.unlock();
  SS_RETURN_IF_ERROR(check_copy(copy.side, wanted.step, copy.hash, parallel).in(trainer));
  return copy;
}

void StateStore::trainer_restarted(const std::string& trainer, int32_t pid) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(trainer);
  if (found == entries_.end()) return;
  found->second.state.clear_pins();
  found->second.pid = pid;
  ++found->second.restarts;
}

void StateStore::release(const std::string& trainer, int32_t pid, uint64_t step) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(trainer);
  if (found == entries_.end() || found->second.pid != pid) return;
  const Result<int> side = found->second.state.pin(step);  // to find the side
  if (!side.ok()) return;
  found->second.state.unpin(*side);
  found->second.state.unpin(*side);
}

Result<StateStore::Copy> copy_of(const std::string& segment, uint32_t layout, uint64_t step,
                                 const Parallel& parallel) {
  SS_ASSIGN(TrainState state, TrainState::open(segment));
  SS_ASSIGN(const int side, state.pin(step, layout));
  StateStore::Copy copy = memory_for(state, side);
  copy_side(state, side, copy, parallel);
  state.unpin(side);
  Status status = check_copy(copy.side, step, copy.hash, parallel);
  if (!status.ok()) {
    state.forget(side);
    return status;
  }
  return copy;
}

StatePin::StatePin(std::shared_ptr<StateStore> states, std::string trainer, int32_t pid,
                   const StateVersion& step)
    : states_(std::move(states)), trainer_(std::move(trainer)), pid_(pid), step_(step) {}

StatePin::~StatePin() {
  if (held_) states_->release(trainer_, pid_, step_.step);
}

Result<StateStore::Copy> StatePin::copy(const Parallel& parallel) {
  SS_ASSERT(held_);
  auto copy = states_->copy_and_unpin(trainer_, pid_, step_, parallel);
  held_ = false;
  return copy;
}

Status StateStore::flip_bit(const std::string& trainer) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(trainer);
  constexpr int kTries = 100;
  for (int tries = 0; found != entries_.end() && tries < kTries; ++tries) {
    TrainState& state = found->second.state;
    const std::optional<uint64_t> step = state.step_if_any();
    if (!step) break;
    // The pin keeps the optimizer from writing this side, so its hash does not cover the flipped
    // bit.
    const Result<int> side = state.pin(*step);
    if (!side.ok()) continue;
    const auto params = state.side(*side).params;
    auto* bytes = reinterpret_cast<unsigned char*>(&params[params.size() / 3]);
    bytes[2] ^= 0x40;  // the highest bit of the mantissa
    const bool committed = state.step_if_any() == step;
    if (!committed) bytes[2] ^= 0x40;  // no rank reads it now: try the next step
    state.unpin(*side);
    if (committed) return {};
  }
  return Status(Code::not_found, trainer + " holds no state here");
}

}  // namespace simplescale
