// The link between two processes of one host: the sender publishes where in its arena a piece lies;
// the receiver reads the piece there and acknowledges it. Each process writes only to its own
// segment (SHM-1 in segment.hpp).
//
// A board is the memory that one rank writes for one communicator: a lane for every peer. A lane
// holds
//   descriptors  a pool of slots for the pieces that the owner publishes for that peer
//   order        a ring of slot indices: the order in which the owner published them
//   consumed     the owner's acknowledgements: how many uses of the peer's slot it has consumed
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/collective/link.hpp"
#include "transport/collective/segment.hpp"

namespace simplescale::collective {

constexpr uint32_t kDescriptors = 256;

struct Descriptor {
  uint64_t key;     ///< of the stream
  uint64_t offset;  ///< in the owner's segment
  uint64_t bytes;
};

struct alignas(kCacheLine) Lane {
  std::atomic<uint64_t> published;  ///< descriptors so far; written after `order` (release)
  alignas(kCacheLine) std::atomic<uint32_t> order[kDescriptors];
  Descriptor descriptors[kDescriptors];
  alignas(kCacheLine) std::atomic<uint32_t> consumed[kDescriptors];
};

/// A peer's communicator, as found in its segment.
struct PeerBoard {
  std::shared_ptr<PeerSegment> segment;
  const CommunicatorSlot* slot = nullptr;
  uint64_t serial = 0;
  const Lane* lane = nullptr;  ///< the peer's lane for this rank
};

/// Searches the peer's segment for its communicator. Code::not_found: the peer has not joined yet;
/// Code::bad_data: the slot contradicts `rank` and `size` or names memory outside the segment.
Result<PeerBoard> find_board(const std::shared_ptr<PeerSegment>& segment, uint64_t generation,
                             uint64_t name_hash, int rank, int size, int our_rank);

class ShmLink final : public Link {
 public:
  /// lane: this rank's lane for that peer, in this process's segment, zeroed.
  ShmLink(Segment& segment, Lane* lane, PeerBoard peer, std::string peer_name);

  bool reads_arena() const override { return true; }
  std::optional<Ticket> send(uint64_t key, uint64_t offset, Bytes data, bool copy,
                             bool first_in_line) override;
  bool is_released(const Ticket& ticket) override;
  void expect(uint64_t) override {}
  Bytes front(uint64_t key) override;
  Status pop(uint64_t key, size_t bytes) override;
  void forget(uint64_t key) override { streams_.erase(key); }
  Status health(bool thorough) override;
  void notify() override;
  bool drained() override;

 private:
  struct Piece {
    Bytes data;
    uint32_t slot;
  };
  struct Stream {
    std::vector<Piece> pieces;
    size_t next = 0;
    size_t read = 0;  // of pieces[next]
  };
  bool open() const { return peer_.slot->serial.load(std::memory_order_acquire) == peer_.serial; }
  Status left_error() const;
  void collect();  // takes over the descriptors that the peer has published since the last call
  void reclaim_slots();  // frees the slots whose pieces the peer has consumed

  Segment& segment_;
  Lane* lane_;
  PeerBoard peer_;
  std::string peer_name_;
  bool changed_ = false;
  bool dead_ = false;
  Status broken_;
  std::vector<uint32_t> free_;  // descriptor slots
  std::vector<uint32_t> in_use_;
  uint32_t uses_[kDescriptors] = {};  // how often each slot has been published
  uint64_t collected_ = 0;            // descriptors of the peer taken over so far
  std::unordered_map<uint64_t, Stream> streams_;
};

}  // namespace simplescale::collective
