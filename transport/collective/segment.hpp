// The shared-memory segment of one process: a header with its doorbell, a table of its
// communicators, and the arena. Peers on this host map it.
//
//   SHM-1  A process writes only to its own segment, and to the doorbell of a peer's segment. So a
//          stale process cannot corrupt a peer's data.
//   SHM-2  A communicator closes its slot (serial = 0) before it reuses any memory that its
//          descriptors name. A reader checks the serial after it has read a peer's memory, and
//          discards the data if the serial has changed.
//   SHM-3  A process validates everything that it reads from a peer's segment before use.
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

/// One communicator of the segment's owner, which peers search for. The owner writes `serial` last
/// (release).
struct alignas(kCacheLine) CommunicatorSlot {
  std::atomic<uint64_t> serial;  ///< 0: closed; else unique in this segment
  uint64_t generation;
  uint64_t name_hash;
  uint64_t board_offset;
  uint32_t rank;
  uint32_t size;
};

constexpr size_t kSlots = 32;

struct SegmentHeader {
  uint64_t magic;
  uint64_t incarnation;  ///< random, part of the address: tells apart segments of the same name
  uint64_t bytes;
  int64_t pid;
  /// Futex and counter: a peer increments it when the owner can make progress.
  alignas(kCacheLine) std::atomic<uint32_t> doorbell;
  std::atomic<uint32_t> sleepers;  ///< threads in sleep_on()
  alignas(kCacheLine) CommunicatorSlot slots[kSlots];
};

/// Increments the doorbell and wakes all threads that sleep on it. Any process, any thread.
void ring(SegmentHeader& header);
/// Sleeps until the doorbell differs from `seen`, at most timeout_ms. May return early.
void sleep_on(SegmentHeader& header, uint32_t seen, int timeout_ms);

/// First-fit allocator of offsets in [begin, end). Its tables are private to the process.
class OffsetAllocator {
 public:
  OffsetAllocator(size_t begin, size_t end) { free_[begin] = end - begin; }
  /// The offset, or 0 if there is no room.
  size_t allocate(size_t bytes, size_t alignment);
  void release(size_t offset);

 private:
  std::map<size_t, size_t> free_, used_;  // offset -> bytes
};

/// The segment of this process. Call allocate() and release() while holding the plane's lock.
class Segment {
 public:
  /// Allocates the first pages_bytes of the arena's pages at once, as huge pages if the kernel provides
  /// them; the others when they are first needed. 0: all.
  static Result<std::unique_ptr<Segment>> create(const std::string& name, size_t arena_bytes,
                                                 size_t pages_bytes = 0);

  SegmentHeader& header() const { return *static_cast<SegmentHeader*>(memory_.data()); }
  const std::string& name() const { return memory_.name(); }
  std::byte* at(size_t offset) const { return static_cast<std::byte*>(memory_.data()) + offset; }
  bool contains(const void* data, size_t bytes) const;
  size_t offset_of(const void* data) const {
    return static_cast<size_t>(static_cast<const std::byte*>(data) - at(0));
  }
  /// Zeroed memory. Code::io if the arena is full, or if the host has no room for its pages.
  Result<std::byte*> allocate(size_t bytes);
  void release(const void* data) { allocator_.release(offset_of(data)); }

  /// Makes a communicator visible to peers and returns its slot's index. Code::io if all slots are
  /// taken.
  Result<size_t> open_slot(uint64_t generation, uint64_t name_hash, uint32_t rank, uint32_t size,
                           const void* board);
  /// Any thread; idempotent.
  void close_slot(size_t slot) { header().slots[slot].serial.store(0); }
  /// Makes a closed slot available to open_slot().
  void free_slot(size_t slot) { taken_[slot] = false; }

 private:
  Segment(SharedMemory memory, size_t begin, size_t pages)
      : memory_(std::move(memory)), pages_(pages), allocator_(begin, memory_.bytes()) {}
  SharedMemory memory_;
  size_t pages_;  // bytes from the begin that have pages
  OffsetAllocator allocator_;
  bool taken_[kSlots] = {};
  uint64_t serials_ = 0;
};

/// A peer's mapped segment, with a pidfd to detect the peer's death.
class PeerSegment {
 public:
  /// Code::not_found: there is no such segment, it has another incarnation, or its process is gone.
  static Result<std::shared_ptr<PeerSegment>> open(const std::string& name, uint64_t incarnation);
  ~PeerSegment();

  SegmentHeader& header() const { return *static_cast<SegmentHeader*>(memory_.data()); }
  size_t bytes() const { return memory_.bytes(); }
  /// nullptr if [offset, offset + bytes) is not entirely inside the segment.
  const std::byte* at(uint64_t offset, uint64_t bytes) const;
  /// False once the process has ended, even as a zombie. One system call.
  bool alive() const;

 private:
  explicit PeerSegment(SharedMemory memory) : memory_(std::move(memory)) {}
  SharedMemory memory_;
  int pidfd_ = -1;
};

}  // namespace simplescale::collective
