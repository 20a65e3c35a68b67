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

/// A part of a broadcast: floats of one part of a state.
struct Chunk {
  size_t part = 0, first = 0, count = 0;
};

/// sizes: floats of each part.
std::vector<Chunk> chunks_of(const std::array<size_t, std::size(kStateKinds)>& sizes) {
  std::vector<Chunk> chunks;
  for (size_t part = 0; part < sizes.size(); ++part)
    for (size_t first = 0; first < sizes[part]; first += kChunk)
      chunks.push_back({part, first, std::min(kChunk, sizes[part] - first)});
  return chunks;
}

std::array<size_t, std::size(kStateKinds)> sizes_of(const TrainState::Side& side) {
  std::array<size_t, std::size(kStateKinds)> sizes{};
  const auto parts = side.parts();
  for (size_t part = 0; part < parts.size(); ++part) sizes[part] = parts[part].size();
  return sizes;
}

/// Broadcasts chunks from rank 0. The broadcast is one chunk ahead of the hashing. Every rank makes
/// the same calls. at(i): the memory of chunk i; that of chunk i - 2 is free by then. done(i): called
/// once it is hashed. Returns the state_hash() of what this rank has sent or received.
template <class At, class Done>
Result<Hash128> broadcast_chunks(Collective& c, const std::vector<Chunk>& chunks, At&& at,
                                 Done&& done) {
  auto start = [&](size_t i) {
    return i < chunks.size() ? c.broadcast(at(i).data(), chunks[i].count, DType::f32, 0) : nullptr;
  };
  std::vector<Hash128> blocks;
  WorkPtr next = start(0);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const WorkPtr work = std::move(next);
    next = start(i + 1);
    SS_RETURN_IF_ERROR(work->wait());
    hash_blocks(at(i), blocks);
    done(i);
  }
  return hash128(blocks.data(), blocks.size() * sizeof(Hash128));
}

/// Broadcasts a side from rank 0.
Result<Hash128> broadcast_side(Collective& c, const TrainState::Side& side) {
  const std::vector<Chunk> chunks = chunks_of(sizes_of(side));
  const auto parts = side.parts();
  return broadcast_chunks(
      c, chunks,
      [&](size_t i) { return parts[chunks[i].part].subspan(chunks[i].first, chunks[i].count); },
      [](size_t) {});
}

/// Copies what pieces have of the floats [first, first + values.size()) of a part. per_float: elements
/// of the part in one float.
void take(std::span<const float> values, size_t first, size_t per_float,
          std::span<const Piece> pieces, std::span<float> to) {
  for (const Piece& piece : pieces) {
    const size_t begin = std::max(first, piece.from / per_float),
                 end = std::min(first + values.size(), (piece.from + piece.count) / per_float);
    if (begin < end)
      std::ranges::copy(values.subspan(begin - first, end - begin),
                        to.subspan(piece.to / per_float + begin - piece.from / per_float).begin());
  }
}

size_t elements_per_float(const TrainState::Side& side, size_t part) {
  const auto kind = static_cast<StateKind>(part);
  return sizeof(float) / bytes_of(side.format().dtype(kind));
}

/// Receives a shard of so many floats, chunk by chunk, and takes pieces out of it.
Result<Hash128> broadcast_pieces(Collective& c, size_t values, const TrainState::Side& to,
                                 std::span<const Piece> pieces) {
  const size_t total = values * sizeof(float) / to.format().bytes();
  std::array<size_t, std::size(kStateKinds)> sizes{};
  const auto parts = to.parts();
  for (size_t part = 0; part < parts.size(); ++part)
    if (!parts[part].empty()) sizes[part] = total / elements_per_float(to, part);
  const std::vector<Chunk> chunks = chunks_of(sizes);
  std::array<std::vector<float>, 2> buffers;
  for (auto& buffer : buffers) buffer.resize(std::min(kChunk, values));
  const auto at = [&](size_t i) { return std::span(buffers[i % 2]).first(chunks[i].count); };
  return broadcast_chunks(c, chunks, at, [&](size_t i) {
    const Chunk& chunk = chunks[i];
    take(at(i), chunk.first, elements_per_float(to, chunk.part), pieces, parts[chunk.part]);
  });
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

}  // namespace

Status send_state(Collective& c, const TrainState::Side& copy, uint64_t step, const Hash128& hash) {
  SS_ASSERT(c.rank() == 0 && !copy.params.empty());
  Opening opening{step, copy.values()};
  SS_RETURN_IF_ERROR(broadcast_record(c, opening));
  SS_ASSIGN(int failed, first_failed(c, false));
  if (failed) return not_received(step, failed, Code::aborted);
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
  return failed ? not_received(step, failed, Code::bad_data) : Status();
}

Status send_nothing(Collective& c, uint64_t step) {
  Opening nothing{step, 0};
  SS_RETURN_IF_ERROR(broadcast_record(c, nothing));
  return first_failed(c, true).status();
}

Status send_state(Collective& c, TrainState& mine, uint64_t step, std::optional<uint32_t> layout) {
  const Result<int> side = mine.pin(step, layout);
  if (!side.ok()) {
    SS_RETURN_IF_ERROR(send_nothing(c, step));
    return side.status();
  }
  const Status status = send_state(c, mine.side(*side), step, mine.hash(*side));
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

  SS_ASSIGN(const Hash128 here, receipt.pieces.empty()
                                    ? broadcast_side(c, side)
                                    : broadcast_pieces(c, receipt.values, side, receipt.pieces));
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

void take_pieces(const TrainState::Side& from, const TrainState::Side& to,
                 std::span<const Piece> pieces, const Parallel& parallel) {
  const auto of = from.parts(), parts = to.parts();
  for (size_t part = 0; part < parts.size(); ++part)
    if (!parts[part].empty())
      for_pieces(parallel, of[part].size(), kChunk, [&](size_t first, size_t count) {
        take(of[part].subspan(first, count), first, elements_per_float(to, part), pieces,
             parts[part]);
      });
}

}  // namespace simplescale
