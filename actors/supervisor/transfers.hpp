// The transfers with which a generation begins. Pure functions of plain data, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/supervisor/decision/layout.hpp"
#include "runtime/training/model_shape.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale::supervisor {

/// The transfers of these moves to places of a generation with so many shards. RESHAPE-1: what an old
/// shard has of a new one goes to all places of the new one in one transfer; nothing else is sent.
/// Trainers carry out their transfers by id, one after the other; those that have no trainer in common
/// need not wait for each other.
std::vector<Transfer> transfers_of(const std::vector<Unit>& units,
                                   const std::vector<job::Move>& moves,
                                   const std::vector<job::Place>& places, uint32_t shards);

}  // namespace simplescale::supervisor
