#include "transport/collective/segment.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <random>
#include <utility>

namespace simplescale::collective {

namespace {
constexpr uint64_t kSegmentMagic = 0x31656e616c507353;  // "SsPlane1"
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t value, size_t step) {
  return (value + step - 1) / step * step;
}

// Allocates all pages, because page faults inside a collective would cost more than the copy. Peers
// do not do this for a mapped segment: it cost 3 to 12 ms per peer in every recovery, while faults
// during reads map sixteen pages each.
void prepare_pages(void* data, size_t bytes) {
  madvise(data, bytes, MADV_HUGEPAGE);
#ifdef MADV_COLLAPSE
  madvise(data, bytes, MADV_COLLAPSE);
#endif
#ifdef MADV_POPULATE_WRITE
  madvise(data, bytes, MADV_POPULATE_WRITE);
#endif
}
}  // namespace

void ring(SegmentHeader& header) {
  header.doorbell.fetch_add(1);
  if (header.sleepers.load() > 0)
    syscall(SYS_futex, &header.doorbell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void sleep_on(SegmentHeader& header, uint32_t seen, int timeout_ms) {
  timespec limit{timeout_ms / 1000, (timeout_ms % 1000) * 1'000'000L};
  header.sleepers.fetch_add(1);
  syscall(SYS_futex, &header.doorbell, FUTEX_WAIT, seen, &limit, nullptr, 0);
  header.sleepers.fetch_sub(1);
}

size_t OffsetAllocator::allocate(size_t bytes, size_t alignment) {
  bytes = round_up(bytes ? bytes : 1, kCacheLine);
  for (const auto& [begin, room] : free_) {
    const size_t offset = begin, size = room;
    const size_t start = round_up(offset, alignment);
    if (start + bytes > offset + size) continue;
    free_.erase(offset);
    if (start > offset) free_[offset] = start - offset;
    if (offset + size > start + bytes) free_[start + bytes] = offset + size - start - bytes;
    used_[start] = bytes;
    return start;
  }
  return 0;
}

void OffsetAllocator::release(size_t offset) {
  const auto used = used_.find(offset);
  SS_ASSERT(used != used_.end());
  auto here = free_.emplace(used->first, used->second).first;
  used_.erase(used);
  if (auto next = std::next(here);
      next != free_.end() && here->first + here->second == next->first) {
    here->second += next->second;
    free_.erase(next);
  }
  if (here == free_.begin()) return;
  if (auto before = std::prev(here); before->first + before->second == here->first) {
    before->second += here->second;
    free_.erase(here);
  }
}

Result<std::unique_ptr<Segment>> Segment::create(const std::string& name, size_t arena_bytes,
                                                 size_t pages_bytes) {
  const size_t begin = round_up(sizeof(SegmentHeader), 4096);
  const size_t end = round_up(begin + arena_bytes, kHugePage);
  const size_t pages =
      pages_bytes == 0 ? end : std::min(end, round_up(begin + pages_bytes, kHugePage));
  SS_ASSIGN(auto memory, SharedMemory::create(name, end, true));
  SS_RETURN_IF_ERROR(memory.reserve(0, pages));
  prepare_pages(memory.data(), pages);
  auto& header = *static_cast<SegmentHeader*>(memory.data());  // zeroed: atomics are zero
  std::random_device random;
  header.incarnation = (uint64_t{random()} << 32) | random();
  header.bytes = end;
  header.pid = getpid();
  header.magic = kSegmentMagic;
  return std::unique_ptr<Segment>(new Segment(std::move(memory), begin, pages));
}

bool Segment::contains(const void* data, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(memory_.data());
  const auto address = reinterpret_cast<uintptr_t>(data);
  return address >= begin && bytes <= memory_.bytes() && address - begin <= memory_.bytes() - bytes;
}

Result<std::byte*> Segment::allocate(size_t bytes) {
  const size_t offset = allocator_.allocate(bytes, bytes >= 4096 ? 4096 : kCacheLine);
  if (offset == 0)
    return Status(Code::io, "the arena " + name() + " of " + std::to_string(memory_.bytes() >> 20) +
                                " MiB has no room for " + std::to_string(bytes) + " more bytes");
  if (const size_t end = round_up(offset + bytes, kHugePage); end > pages_) {
    if (Status room = memory_.reserve(pages_, end - pages_); !room.ok()) {
      allocator_.release(offset);
      return room;
    }
    prepare_pages(at(pages_), end - pages_);
    pages_ = end;
  }
  std::memset(at(offset), 0, bytes);
  return at(offset);
}

Result<size_t> Segment::open_slot(uint64_t generation, uint64_t name_hash, uint32_t rank,
                                  uint32_t size, const void* board) {
  for (size_t i = 0; i < kSlots; ++i) {
    if (taken_[i]) continue;
    taken_[i] = true;
    auto& slot = header().slots[i];
    slot.generation = generation;
    slot.name_hash = name_hash;
    slot.rank = rank;
    slot.size = size;
    slot.board_offset = offset_of(board);
    slot.serial.store(++serials_);
    return i;
  }
  return Status(Code::io, "more than " + std::to_string(kSlots) + " communicators at once");
}

Result<std::shared_ptr<PeerSegment>> PeerSegment::open(const std::string& name,
                                                       uint64_t incarnation) {
  // Short, since join() asks again, and looks at fences in between.
  auto memory = SharedMemory::open(name, std::chrono::milliseconds(500));
  if (!memory.ok()) return Status(Code::not_found, memory.status().message());
  std::shared_ptr<PeerSegment> peer(new PeerSegment(memory.take()));
  const auto& header = peer->header();
  if (peer->bytes() < sizeof(SegmentHeader) || header.magic != kSegmentMagic ||
      header.incarnation != incarnation)
    return Status(Code::not_found,
                  "shared memory " + name + " has another incarnation or is no segment");
  peer->pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(header.pid), 0));
  if (peer->pidfd_ < 0)
    return Status(Code::not_found, "process " + std::to_string(header.pid) + " of shared memory " +
                                       name + " is gone");
  return peer;
}

PeerSegment::~PeerSegment() {
  if (pidfd_ >= 0) ::close(pidfd_);
}

const std::byte* PeerSegment::at(uint64_t offset, uint64_t length) const {
  if (length > bytes() || offset > bytes() - length) return nullptr;
  return static_cast<const std::byte*>(memory_.data()) + offset;
}

bool PeerSegment::alive() const {
  pollfd events{pidfd_, POLLIN, 0};
  return ::poll(&events, 1, 0) == 0;
}

}  // namespace simplescale::collective
