// The link between two processes of one host, with both of its segments in this process.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/must.hpp"
#include "transport/collective/shm_link.hpp"

namespace simplescale::collective {
namespace {

constexpr uint64_t kGeneration = 3, kName = 77;

/// Rank `rank` of two: its segment, its board, and a piece of memory to send from.
struct Side {
  Side(const std::string& label, uint32_t rank) {
    segment = must(Segment::create("ss-test-" + std::to_string(getpid()) + "-shm-" + label +
                                       std::to_string(rank),
                                   4 << 20))
                  .take();
    auto memory = must(segment->allocate(2 * sizeof(Lane)));
    lanes = reinterpret_cast<Lane*>(*memory);
    auto source = must(segment->allocate(kBytes));
    data = *source;
    std::memset(data, 7, kBytes);
    auto opened = must(segment->open_slot(kGeneration, kName, rank, 2, lanes));
    slot = *opened;
  }
  static constexpr size_t kBytes = 4096;
  /// All bytes of the segment, but for the doorbell.
  std::string bytes() const {
    std::string all(reinterpret_cast<const char*>(segment->at(0)), segment->header().bytes);
    const auto doorbell = reinterpret_cast<const std::byte*>(&segment->header().doorbell);
    std::memset(all.data() + (doorbell - segment->at(0)), 0, 2 * sizeof(uint32_t));
    return all;
  }
  std::unique_ptr<Segment> segment;
  Lane* lanes = nullptr;
  std::byte* data = nullptr;
  size_t slot = 0;
};

/// What `reader` (rank 0) sees of `sender` (rank 1).
std::unique_ptr<ShmLink> link_between(Side& reader, Side& sender) {
  auto peer = must(PeerSegment::open(sender.segment->name(), sender.segment->header().incarnation));
  auto board = must(find_board(*peer, kGeneration, kName, 1, 2, 0));
  return std::make_unique<ShmLink>(*reader.segment, &reader.lanes[1], *board, "rank 1");
}

/// Rank 1 publishes one piece for rank 0.
void publish(Side& sender, uint32_t index, uint64_t offset, uint64_t bytes) {
  Lane& lane = sender.lanes[0];
  if (index < kDescriptors) lane.descriptors[index] = {5, offset, bytes};
  lane.order[lane.published % kDescriptors] = index;
  lane.published.fetch_add(1);
}

}  // namespace

TEST_SUITE("collective link") {
  TEST_CASE("shm link: SHM-1, a reader writes nothing but the doorbell of its peer's segment") {
    Side reader("own", 0), sender("own", 1);
    auto link = link_between(reader, sender);
    publish(sender, 0, sender.segment->offset_of(sender.data), Side::kBytes);
    const std::string before = sender.bytes();
    const uint32_t doorbell = sender.segment->header().doorbell;
    const Bytes piece = link->front(5);
    REQUIRE(piece.size() == Side::kBytes);
    CHECK(piece[17] == std::byte{7});
    CHECK(link->pop(5, piece.size()).ok());
    link->notify();
    CHECK(sender.segment->header().doorbell != doorbell);
    CHECK(sender.bytes() == before);
    CHECK(reader.lanes[1].consumed[0] == 1);  // the acknowledgement lies in the reader's segment
  }

  TEST_CASE("shm link: what was sent is released once the peer has consumed it") {
    Side sender("sends", 0), reader("reads", 1);
    auto link = link_between(sender, reader);
    for (uint32_t use = 1; use <= 3; ++use) {
      const auto ticket = link->send(5, 0, Bytes(sender.data, 64), false, true);
      REQUIRE(ticket);
      CHECK_FALSE(link->is_released(*ticket));
      CHECK_FALSE(link->drained());
      reader.lanes[0].consumed[ticket->id].fetch_add(1);
      CHECK(link->is_released(*ticket));
      CHECK(link->drained());
    }
  }

  TEST_CASE("shm link: SHM-2, what is read from a closed communicator is not believed") {
    Side reader("closed", 0), sender("closed", 1);
    auto link = link_between(reader, sender), idle = link_between(reader, sender);
    publish(sender, 0, sender.segment->offset_of(sender.data), Side::kBytes);
    const Bytes piece = link->front(5);
    REQUIRE(piece.size() == Side::kBytes);
    CHECK(idle->health(false).ok());
    sender.segment->close_slot(sender.slot);  // from here on its memory may be used again
    CHECK(link->pop(5, piece.size()).code() == Code::unavailable);
    CHECK(!link->health(false).ok());
    CHECK(idle->health(false).code() == Code::unavailable);  // nobody has to read from it first
  }

  TEST_CASE("segment: an arena gets the pages that it has none of yet when they are needed") {
    constexpr size_t kMiB = size_t{1} << 20;
    const auto segment =
        must(Segment::create("ss-test-arena-" + std::to_string(getpid()), 64 * kMiB, 3 * kMiB));
    const auto pages = [&] {
      std::vector<unsigned char> in_core(68 * kMiB / 4096);
      REQUIRE(mincore((*segment)->at(0), 66 * kMiB, in_core.data()) == 0);
      return static_cast<size_t>(
                 std::ranges::count_if(in_core, [](unsigned char c) { return (c & 1) != 0; })) *
             4096 / kMiB;
    };
    CHECK(pages() == 4);  // whole huge pages
    const auto small = must((*segment)->allocate(2 * kMiB));
    CHECK(pages() == 4);
    const auto large = must((*segment)->allocate(40 * kMiB));
    CHECK(pages() == 44);
    (*segment)->release(*large);
    REQUIRE((*segment)->allocate(30 * kMiB).ok());
    CHECK(pages() == 44);
    (*segment)->release(*small);
    CHECK((*segment)->allocate(65 * kMiB).status().code() == Code::io);
  }

  TEST_CASE("shm link: SHM-3, memory that is too short for a segment is refused") {
    Side sender("short", 1);
    const SegmentHeader& header = sender.segment->header();
    // Before its first doorbell, so that the magic number and the incarnation are right.
    constexpr size_t kShort = offsetof(SegmentHeader, doorbell);
    auto cut = must(SharedMemory::create(sender.segment->name() + "-cut", kShort));
    std::memcpy(cut->data(), &header, kShort);
    const auto peer = PeerSegment::open(cut->name(), header.incarnation);
    CHECK(says(peer.status(), Code::not_found, "is no segment"));
  }

  TEST_CASE("shm link: SHM-3, an impossible descriptor or board of a peer is refused") {
    Side sender("bad", 1);
    const uint64_t end = sender.segment->header().bytes;
    struct Piece {
      uint32_t index;
      uint64_t offset, bytes;
    };
    for (const Piece& bad : {Piece{0, end, 1}, Piece{0, end - 8, 16}, Piece{0, UINT64_MAX - 7, 16},
                             Piece{0, 64, UINT64_MAX}, Piece{kDescriptors, 0, 0}}) {
      Side reader("bad", 0), writer("bad" + std::to_string(bad.offset % 1000), 1);
      auto link = link_between(reader, writer);
      publish(writer, bad.index, bad.offset, bad.bytes);
      CHECK(link->front(5).empty());
      CHECK(link->health(false).code() == Code::unavailable);
    }
    auto peer =
        must(PeerSegment::open(sender.segment->name(), sender.segment->header().incarnation));
    CHECK(find_board(*peer, kGeneration, kName, 0, 2, 0).status().code() == Code::bad_data);
    CHECK(find_board(*peer, kGeneration, kName, 1, 3, 0).status().code() == Code::bad_data);
    sender.segment->header().slots[sender.slot].board_offset = end;
    CHECK(find_board(*peer, kGeneration, kName, 1, 2, 0).status().code() == Code::bad_data);
  }
}

}  // namespace simplescale::collective
