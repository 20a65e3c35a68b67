#include "transport/collective/shm_link.hpp"

#include <utility>

namespace simplescale::collective {

Result<PeerBoard> find_board(const std::shared_ptr<PeerSegment>& segment, uint64_t generation,
                             uint64_t name_hash, int rank, int size, int our_rank) {
  for (const auto& slot : segment->header().slots) {
    const uint64_t serial = slot.serial.load(std::memory_order_acquire);
    if (serial == 0 || slot.generation != generation || slot.name_hash != name_hash) continue;
    const auto theirs = std::pair(slot.rank, slot.size);
    const uint64_t offset = slot.board_offset + static_cast<uint64_t>(our_rank) * sizeof(Lane);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.serial.load(std::memory_order_relaxed) != serial) continue;  // SHM-2
    const std::byte* lane = segment->at(offset, sizeof(Lane));
    if (theirs != std::pair(static_cast<uint32_t>(rank), static_cast<uint32_t>(size)) || !lane ||
        offset % alignof(Lane) != 0)
      return Status(Code::bad_data, "rank " + std::to_string(rank) +
                                        " joined as another rank or with another number of ranks");
    return PeerBoard{segment, &slot, serial, reinterpret_cast<const Lane*>(lane)};
  }
  return Status(Code::not_found, "rank " + std::to_string(rank) + " has not joined");
}

ShmLink::ShmLink(Segment& segment, Lane* lane, PeerBoard peer, std::string peer_name)
    : segment_(segment), lane_(lane), peer_(std::move(peer)), peer_name_(std::move(peer_name)) {
  for (uint32_t i = kDescriptors; i-- > 0;) free_.push_back(i);
}

bool ShmLink::is_released(const Ticket& ticket) {
  const uint32_t consumed = peer_.lane->consumed[ticket.id].load(std::memory_order_acquire);
  return static_cast<int32_t>(consumed - static_cast<uint32_t>(ticket.use)) >= 0;
}

std::optional<Ticket> ShmLink::send(uint64_t key, uint64_t, Bytes data, bool, bool first_in_line) {
  const size_t reserve = first_in_line ? 1 : kDescriptors / 2;
  if (free_.size() < reserve) reclaim_slots();
  if (free_.size() < reserve) return std::nullopt;
  const uint32_t slot = free_.back();
  free_.pop_back();
  in_use_.push_back(slot);
  lane_->descriptors[slot] = {key, segment_.offset_of(data.data()), data.size()};
  const uint64_t number = lane_->published.load(std::memory_order_relaxed);
  lane_->order[number % kDescriptors].store(slot, std::memory_order_relaxed);
  lane_->published.store(number + 1, std::memory_order_release);
  changed_ = true;
  return Ticket{slot, ++uses_[slot]};
}

void ShmLink::collect() {
  const uint64_t published = peer_.lane->published.load(std::memory_order_acquire);
  if (published == collected_ || !broken_.ok()) return;
  while (collected_ != published && broken_.ok()) {
    const uint32_t slot =
        peer_.lane->order[collected_ % kDescriptors].load(std::memory_order_relaxed);
    Descriptor piece{};
    const std::byte* data = nullptr;
    if (slot < kDescriptors) {
      piece = peer_.lane->descriptors[slot];
      data = peer_.segment->at(piece.offset, piece.bytes);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!open())
      broken_ = left_error();  // SHM-2
    else if (!data)
      broken_ = Status(Code::unavailable, peer_name_ + " published an invalid descriptor");
    else
      streams_[piece.key].pieces.push_back({Bytes(data, piece.bytes), slot});
    ++collected_;
  }
}

Bytes ShmLink::front(uint64_t key) {
  collect();
  const auto found = streams_.find(key);
  if (found == streams_.end()) return {};
  const Stream& stream = found->second;
  if (stream.next == stream.pieces.size()) return {};
  return stream.pieces[stream.next].data.subspan(stream.read);
}

Status ShmLink::pop(uint64_t key, size_t bytes) {
  Stream& stream = streams_[key];
  SS_ASSERT(stream.next < stream.pieces.size());
  const Piece& piece = stream.pieces[stream.next];
  stream.read += bytes;
  SS_ASSERT(stream.read <= piece.data.size());
  std::atomic_thread_fence(std::memory_order_acquire);
  if (!open()) return broken_ = left_error();  // SHM-2
  if (stream.read < piece.data.size()) return {};
  lane_->consumed[piece.slot].fetch_add(1, std::memory_order_release);
  changed_ = true;
  stream.read = 0;
  if (++stream.next == stream.pieces.size()) stream.pieces.clear(), stream.next = 0;
  return {};
}

Status ShmLink::left_error() const {
  return Status(Code::unavailable, peer_name_ + " has left the communicator");
}

Status ShmLink::health(bool thorough) {
  if (!broken_.ok()) return broken_;
  if (!open()) return left_error();
  if (thorough && !dead_) dead_ = !peer_.segment->alive();
  if (dead_) return Status(Code::unavailable, peer_name_ + " has died");
  return {};
}

void ShmLink::notify() {
  if (std::exchange(changed_, false)) ring(peer_.segment->header());
}

void ShmLink::reclaim_slots() {
  std::erase_if(in_use_, [&](uint32_t slot) {
    const bool done = is_released({slot, uses_[slot]});
    if (done) free_.push_back(slot);
    return done;
  });
}

bool ShmLink::drained() {
  reclaim_slots();
  return in_use_.empty();
}

}  // namespace simplescale::collective
