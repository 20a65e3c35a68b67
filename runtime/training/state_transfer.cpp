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
  uint64_t step = 0, values = 0;  // values: that come; 0: the sender does not hold the state
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

size_t elements_per_float(const TrainState::Side& side, size_t part) {
  const auto kind = static_cast<StateKind>(part);
  return sizeof(float) / bytes_of(side.format().dtype(kind));
}

/// Floats of one part of a state that are sent at once.
struct Chunk {
  size_t part = 0, first = 0;
  std::span<float> values;
};

/// The chunks of pieces of a side, or of the whole side. Those of a sender's side (begin: Piece::from) and
/// of a receiver's (Piece::to) are equally many and long.
std::vector<Chunk> chunks_of(const TrainState::Side& side, std::span<const Piece> pieces,
                             size_t Piece::*begin) {
  const Piece whole{.count = side.params.size()};
  if (pieces.empty()) pieces = {&whole, 1};
  std::vector<Chunk> chunks;
  for (size_t part = 0; part < side.parts().size(); ++part) {
    const std::span<float> values = side.parts()[part];
    if (values.empty()) continue;
    const size_t per_float = elements_per_float(side, part);
    for (const Piece& piece : pieces)
      for (size_t first = piece.*begin / per_float, left = piece.count / per_float; left > 0;) {
        const size_t count = std::min(kChunk, left);
        chunks.push_back({part, first, values.subspan(first, count)});
        first += count, left -= count;
      }
  }
  return chunks;
}

/// True if the blocks of a side in which a chunk lies still have these hashes.
bool is_unchanged(const TrainState::Side& side, const Chunk& chunk,
                  std::span<const Hash128> hashes) {
  const auto parts = side.parts();
  size_t block = chunk.first / kStateHashBlock;  // of the part
  const size_t first = block * kStateHashBlock, end = chunk.first + chunk.values.size();
  for (size_t part = 0; part < chunk.part; ++part)
    block += (parts[part].size() + kStateHashBlock - 1) / kStateHashBlock;
  const size_t last = (end + kStateHashBlock - 1) / kStateHashBlock * kStateHashBlock;
  const std::span<float> values = parts[chunk.part];
  std::vector<Hash128> now;
  hash_blocks(values.subspan(first, std::min(last, values.size()) - first), now);
  return std::ranges::equal(now, hashes.subspan(block, now.size()));
}

/// Broadcasts chunks from rank 0. The broadcast is one chunk ahead of the hashing. Every rank makes
/// the same calls. Returns the state_hash() of what this rank has sent or received; of pieces also the
/// hash of where they lie.
Result<Hash128> broadcast_chunks(
    Collective& c, const std::vector<Chunk>& chunks, std::span<const Piece> pieces,
    const std::function<void(const Chunk&)>& sent = [](const Chunk&) {}) {
  auto start = [&](size_t i) {
    return i < chunks.size()
               ? c.broadcast(chunks[i].values.data(), chunks[i].values.size(), DType::f32, 0)
               : nullptr;
  };
  std::vector<Hash128> blocks;
  if (!pieces.empty()) blocks.push_back(hash128(pieces.data(), pieces.size_bytes()));
  WorkPtr next = start(0);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const WorkPtr work = std::move(next);
    next = start(i + 1);
    SS_RETURN_IF_ERROR(work->wait());
    hash_blocks(chunks[i].values, blocks);
    sent(chunks[i]);
  }
  return hash_of_blocks(blocks);
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

/// code: aborted if the rank could not take the state, which tells nothing about the copy.
Status not_received(uint64_t step, int rank, Code code) {
  return {code, state_of(step) + " was not received completely by rank " + std::to_string(rank)};
}

/// Sends pieces of a copy, whose blocks had these hashes when it was compared with its own, or the whole
/// copy.
Status send_chunks(Collective& c, const TrainState::Side& copy, uint64_t step, const Hash128& hash,
                   std::span<const Piece> pieces, std::span<const Hash128> blocks) {
  SS_ASSERT(c.rank() == 0 && !copy.params.empty());
  const std::vector<Chunk> chunks = chunks_of(copy, pieces, &Piece::from);
  Opening opening{step, floats_of(copy.format(), pieces, copy.params.size())};
  SS_RETURN_IF_ERROR(broadcast_record(c, opening));
  SS_ASSIGN(int failed, first_failed(c, false));
  if (failed) return not_received(step, failed, Code::aborted);
  bool good = true;
  SS_ASSIGN(const Hash128 sent, broadcast_chunks(c, chunks, pieces, [&](const Chunk& chunk) {
              if (!pieces.empty()) good = good && is_unchanged(copy, chunk, blocks);
            }));
  if (pieces.empty()) good = hash == Hash128{} || hash == sent;
  Hash128 right = good ? sent : Hash128{};  // that nothing has
  SS_RETURN_IF_ERROR(broadcast_record(c, right));
  SS_ASSIGN(failed, first_failed(c, false));
  if (!good) {
    log::warn("{}: committed with the hash {}, sent {}", state_of(step), hash.hex(), sent.hex());
    return {Code::mismatch,
            "the " + state_of(step) + " has changed in memory since it was committed"};
  }
  return failed ? not_received(step, failed, Code::bad_data) : Status();
}

}  // namespace

size_t floats_of(const StateFormat& format, std::span<const Piece> pieces, size_t whole) {
  size_t elements = pieces.empty() ? whole : 0;
  for (const Piece& piece : pieces) elements += piece.count;
  return elements * format.bytes() / sizeof(float);
}

Status send_state(Collective& c, const TrainState::Side& copy, uint64_t step, const Hash128& hash,
                  const Sending& of) {
  if (of.pieces.empty()) return send_chunks(c, copy, step, hash, {}, {});
  const Status good = check_copy(copy, step, hash, *of.blocks, of.parallel);
  if (good.ok()) return send_chunks(c, copy, step, hash, of.pieces, *of.blocks);
  SS_RETURN_IF_ERROR(send_nothing(c, step));
  return good;
}

Status send_nothing(Collective& c, uint64_t step) {
  Opening nothing{step, 0};
  SS_RETURN_IF_ERROR(broadcast_record(c, nothing));
  return first_failed(c, true).status();
}

Status send_state(Collective& c, TrainState& mine, uint64_t step, std::optional<uint32_t> layout,
                  const Sending& of) {
  const Result<int> side = mine.pin(step, layout);
  if (!side.ok()) {
    SS_RETURN_IF_ERROR(send_nothing(c, step));
    return side.status();
  }
  const Status status = send_state(c, mine.side(*side), step, mine.hash(*side), of);
  mine.unpin(*side);
  if (status.code() == Code::mismatch) mine.forget(*side);
  return status;
}

Result<Hash128> receive_state(Collective& c, const Receipt& receipt, uint64_t step,
                              const std::string& from) {
  SS_ASSERT(c.rank() > 0);
  Opening opening;
  SS_RETURN_IF_ERROR(broadcast_record(c, opening));
  // Get the side before the data arrives, so that the sender does not send to a rank without room.
  Status status;
  TrainState::Side side;
  if (opening.values == 0) {
    status = {Code::not_found, from + " does not hold the " + state_of(step)};
  } else if (opening.step != step || opening.values != receipt.values) {
    status = {Code::bad_data, from + " sends the " + state_of(opening.step) + " with " +
                                  std::to_string(opening.values) + " values, not the " +
                                  state_of(step) + " with " + std::to_string(receipt.values)};
  } else {
    Result<TrainState::Side> free = receipt.room();
    status = free.status();
    if (free.ok()) side = *free;
  }
  SS_ASSIGN(int failed, first_failed(c, !status.ok()));
  SS_RETURN_IF_ERROR(status);
  if (failed) return not_received(step, failed, Code::aborted);

  const std::vector<Chunk> chunks = chunks_of(side, receipt.pieces, &Piece::to);
  SS_ASSIGN(const Hash128 here, broadcast_chunks(c, chunks, receipt.pieces));
  Hash128 there;
  SS_RETURN_IF_ERROR(broadcast_record(c, there));
  SS_ASSIGN(failed, first_failed(c, here != there));
  if (here != there) {
    log::warn("{} from {}: sent with the hash {}, received {}", state_of(step), from, there.hex(),
              here.hex());
    return Status(Code::bad_data, "the " + state_of(step) + " was damaged on the way from " + from);
  }
  if (failed) return not_received(step, failed, Code::bad_data);
  return here;
}

Result<Hash128> receive_state(Collective& c, TrainState& mine, uint64_t step,
                              const std::string& from, int timeout_ms) {
  Receipt receipt;
  receipt.values = mine.side(mine.has_step() ? mine.committed_side() : 0).values();
  receipt.room = [&]() -> Result<TrainState::Side> {
    if (mine.holds(step)) SS_RETURN_IF_ERROR(mine.rewind(step));
    return mine.begin_write(timeout_ms);
  };
  return receive_state(c, receipt, step, from);
}

void clear_padding(const TrainState::Side& to, std::vector<Piece> pieces) {
  std::ranges::sort(pieces, {}, &Piece::to);
  pieces.push_back({.to = to.params.size()});
  for (size_t part = 0; part < to.parts().size(); ++part) {
    const std::span<float> values = to.parts()[part];
    size_t first = 0;  // float
    for (const Piece& piece : pieces) {
      if (values.empty()) break;
      const size_t per_float = elements_per_float(to, part), end = piece.to / per_float;
      std::ranges::fill(values.subspan(first, end - first), 0.0f);
      first = end + piece.count / per_float;
    }
  }
}

Status take_pieces(const TrainState::Side& from, const TrainState::Side& to,
                   std::span<const Piece> pieces, const Parallel& parallel,
                   std::span<const Hash128> blocks) {
  const std::vector<Chunk> source = chunks_of(from, pieces, &Piece::from),
                           target = chunks_of(to, pieces, &Piece::to);
  return try_tasks(parallel, source.size(), [&](size_t i) {
    std::ranges::copy(source[i].values, target[i].values.begin());
    return blocks.empty() || is_unchanged(from, source[i], blocks)
               ? Status()
               : Status(Code::mismatch, "the copy has changed in memory while it was taken");
  });
}

}  // namespace simplescale
