// The shared-memory segment of one process: a header with its doorbell, a table of its
// communicators, and the arena.
//
// SHM-1: a process writes only its own segment; of a peer's segment only the doorbell, so a stale peer
// can corrupt nothing. SHM-2: a communicator's slot is closed (serial = 0) before any memory that its
// descriptors name is used for anything else.
//     Who reads a peer's memory checks the serial after the read and before it believes what it
//     read.
// SHM-3: what stands in a peer's segment is validated before use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "runtime/base/shared_memory.hpp"
#include "runtime/base/status.hpp"

namespace simplescale::collective {

constexpr size_t kCacheLine = 64;

/// One communicator of the segment's owner, for peers to find. Written by the owner; serial last
/// (release).
struct alignas(kCacheLine) CommunicatorSlot {
  std::atomic<uint64_t> serial;  ///< 0: closed; else never the same twice in this segment
  uint64_t generation;
  uint64_t name_hash;
  uint64_t board_offset;
  uint32_t rank;
  uint32_t size;
};

constexpr size_t kSlots = 32;

struct SegmentHeader {
  uint64_t magic;
  uint64_t incarnation;  ///< random; address() carries it, so a segment of the same name but
                         ///< another life is refused
  uint64_t bytes;
  int64_t pid;
  alignas(kCacheLine)
      std::atomic<uint32_t> doorbell;  ///< bumped by whoever made progress possible for the owner
  std::atomic<uint32_t> sleepers;
  alignas(kCacheLine) CommunicatorSlot slots[kSlots];
};

/// Bumps a doorbell and wakes who sleeps on it. Any process, any thread.
void ring(SegmentHeader& header);
/// Sleeps until the doorbell differs from `seen`, at most timeout_ms.
void sleep_on(SegmentHeader& header, uint32_t seen, int timeout_ms);

/// First-fit allocator of offsets in [begin, end); the bookkeeping is private to the process.
class OffsetAllocator {
 public:
  OffsetAllocator(size_t begin, size_t end) { free_[begin] = end - begin; }
  /// 0: no room.
  size_t allocate(size_t bytes, size_t alignment);
  void release(size_t offset);

 private:
  std::map<size_t, size_t> free_, used_;  // offset -> bytes
};

/// Our own segment. Allocations are for the holder of the plane's lock.
class Segment {
 public:
  /// arena_bytes are reserved and faulted in at once, on huge pages where the kernel gives them.
  static Result<std::unique_ptr<Segment>> create(const std::string& name, size_t arena_bytes);

  SegmentHeader& header() const { return *static_cast<SegmentHeader*>(memory_.data()); }
  const std::string& name() const { return memory_.name(); }
  std::byte* at(size_t offset) const { return static_cast<std::byte*>(memory_.data()) + offset; }
  bool contains(const void* data, size_t bytes) const;
  size_t offset_of(const void* data) const {
    return static_cast<size_t>(static_cast<const std::byte*>(data) - at(0));
  }
  /// Zeroed; Code::io when the arena is full.
  Result<std::byte*> allocate(size_t bytes);
  void release(const void* data) { allocator_.release(offset_of(data)); }

  /// A slot visible to peers; its index. Code::io when all are taken.
  Result<size_t> open_slot(uint64_t generation, uint64_t name_hash, uint32_t rank, uint32_t size,
                           const void* board);
  /// Any thread; may be repeated.
  void close_slot(size_t slot) { header().slots[slot].serial.store(0); }
  /// The closed slot may be used again.
  void free_slot(size_t slot) { taken_[slot] = false; }

 private:
  Segment(SharedMemory memory, size_t begin, size_t end)
      : memory_(std::move(memory)), allocator_(begin, end) {}
  SharedMemory memory_;
  OffsetAllocator allocator_;
  bool taken_[kSlots] = {};
  uint64_t serials_ = 0;
};

/// A peer's segment, mapped; with a pidfd to notice its death.
class PeerSegment {
 public:
  /// Code::not_found: it is not (or no longer) there, or another life.
  static Result<std::shared_ptr<PeerSegment>> open(const std::string& name, uint64_t incarnation);
  ~PeerSegment();

  SegmentHeader& header() const { return *static_cast<SegmentHeader*>(memory_.data()); }
  size_t bytes() const { return memory_.bytes(); }
  /// nullptr if [offset, offset + bytes) is not wholly inside.
  const std::byte* at(uint64_t offset, uint64_t bytes) const;
  /// One system call: does the process still live (a zombie does not)?
  bool alive() const;

 private:
  explicit PeerSegment(SharedMemory memory) : memory_(std::move(memory)) {}
  SharedMemory memory_;
  int pidfd_ = -1;
};

}  // namespace simplescale::collective
