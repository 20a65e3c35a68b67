#include "runtime/training/state_transfer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "runtime/base/log.hpp"
#include "runtime/training/state_hash.hpp"

namespace simplescale {
namespace {

constexpr size_t kChunk = size_t{1} << 20;  // elements of one broadcast, 4 MiB
static_assert(kChunk % kStateHashBlock == 0);

/// First record of a transfer, broadcast as the bits of floats.
struct Opening {
  uint64_t step = 0, values = 0;  // values: of all parts; 0: the sender does not hold the state
};

template <class T>
Status broadcast_record(Collective& c, T& record) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(float) == 0);
  std::array<float, sizeof(T) / sizeof(float)> bits;
  std::memcpy(bits.data(), &record, sizeof(T));
  SS_RETURN_IF_ERROR(c.broadcast(bits.data(), bits.size(), DType::f32, 0)->wait());
  std::memcpy(static_cast<void*>(&record), bits.data(), sizeof(T));
  return {};
}

/// Broadcasts a side from rank 0. The broadcast is one chunk ahead of the hashing. Every rank makes
/// the same calls. Returns the state_hash() of what this rank has sent or received.
Result<Hash128> broadcast_side(Collective& c, const TrainState::Side& side) {
  std::vector<std::span<float>> chunks;
  for (const std::span<float> part : side.parts())
    for (size_t first = 0; first < part.size(); first += kChunk)
      chunks.push_back(part.subspan(first, std::min(kChunk, part.size() - first)));
  auto start = [&](size_t i) {
    return i < chunks.size() ? c.broadcast(chunks[i].data(), chunks[i].size(), DType::f32, 0)
                             : nullptr;
  };
  std::vector<Hash128> blocks;
  WorkPtr next = start(0);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const WorkPtr work = std::move(next);
    next = start(i + 1);
    SS_RETURN_IF_ERROR(work->wait());
    hash_blocks(chunks[i], blocks);
  }
  return hash128(blocks.data(), blocks.size() * sizeof(Hash128));
}

/// Tells all ranks which receivers have failed. Returns the first one, or 0. Ignores the sender's
/// own value.
Result<int> first_failed(Collective& c, bool failed) {
  const auto mine = static_cast<char>(failed);
  std::vector<char> all(static_cast<size_t>(c.size()));
  SS_RETURN_IF_ERROR(c.all_gather_bytes(&mine, all.data(), 1)->wait());
  return static_cast<int>(std::find(all.begin() + 1, all.end(), 1) - all.begin()) % c.size();
}

std::string state_of(uint64_t step) {
  return "state of step " + std::to_string(step);
}

Status damaged(uint64_t step, int rank) {
  return {Code::bad_data,
          state_of(step) + " was not received completely by rank " + std::to_string(rank)};
}

}  // namespace

Status send_state(Collective& c, const TrainState::Side& copy, uint64_t step, const Hash128& hash) {
  SS_ASSERT(c.rank() == 0 && !copy.params.empty());
  Opening opening{step, copy.values()};
  SS_RETURN_IF_ERROR(broadcast_record(c, opening));
  SS_ASSIGN(int failed, first_failed(c, false));
  if (failed) return damaged(step, failed);
  SS_ASSIGN(Hash128 sent, broadcast_side(c, copy));
  const bool good = hash == Hash128{} || hash == sent;
  Hash128 right = good ? sent : hash;
  SS_RETURN_IF_ERROR(broadcast_record(c, right));
  SS_ASSIGN(failed, first_failed(c, false));
  if (!good) {
    log::warn("{}: committed with the hash {}, sent {}", state_of(step), hash.hex(), sent.hex());
    return {Code::mismatch,
            "the " + state_of(step) + " has changed in memory since it was committed"};
  }
  return failed ? damaged(step, failed) : Status();
}

Status send_state(Collective& c, TrainState& mine, uint64_t step) {
  const Result<int> side = mine.pin(step);
  if (!side.ok()) {
    Opening nothing{step, 0};
    SS_RETURN_IF_ERROR(broadcast_record(c, nothing));
    SS_RETURN_IF_ERROR(first_failed(c, true).status());
    return side.status();
  }
  const Status status = send_state(c, mine.side(*side), step, mine.hash(*side));
  mine.unpin(*side);
  return status;
}

Result<Hash128> receive_state(Collective& c, TrainState& mine, uint64_t step,
                              const std::string& from, int timeout_ms) {
  SS_ASSERT(c.rank() > 0);
  Opening opening;
  SS_RETURN_IF_ERROR(broadcast_record(c, opening));
  // Get the side before the data arrives, so that the sender does not send to a rank without room.
  Status status;
  if (opening.values == 0)
    status = {Code::not_found, from + " does not hold the " + state_of(step)};
  else if (opening.step != step || opening.values != mine.side(0).values())
    status = {Code::bad_data, from + " sends the " + state_of(opening.step) + " with " +
                                  std::to_string(opening.values) + " values, not the " +
                                  state_of(step) + " with " +
                                  std::to_string(mine.side(0).values())};
  else if (mine.holds(step))
    status = mine.rewind(step);
  TrainState::Side side;
  if (status.ok()) {
    Result<TrainState::Side> free = mine.begin_write(timeout_ms);
    status = free.status();
    if (free.ok()) side = *free;
  }
  SS_ASSIGN(int failed, first_failed(c, !status.ok()));
  SS_RETURN_IF_ERROR(status);
  if (failed) return damaged(step, failed);

  SS_ASSIGN(const Hash128 here, broadcast_side(c, side));
  Hash128 there;
  SS_RETURN_IF_ERROR(broadcast_record(c, there));
  SS_ASSIGN(failed, first_failed(c, here != there));
  if (here != there) {
    log::warn("{} from {}: sent with the hash {}, received {}", state_of(step), from, there.hex(),
              here.hex());
    return Status(Code::bad_data, "the " + state_of(step) + " was damaged on the way from " + from);
  }
  if (failed) return damaged(step, failed);
  return here;
}

}  // namespace simplescale
