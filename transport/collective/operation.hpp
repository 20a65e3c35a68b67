// One started collective: a plan and how far it has come. advance() does what can be done without
// waiting. Thread: the holder of the plane's lock.
//
// Where the bytes are sent from: a small operation (all it sends fits one block) copies them into a
// block of the outbox and is done when it has heard from the others; a large one is read by peers
// where it lies, if that is the arena, else through the staging buffer, and waits until they have
// read it.
//
// COLLECTIVE-2: only the oldest unfinished operation uses the staging buffer, and others leave half of a
// link's descriptors free.
//     Hence the oldest operation of all ranks can always go on, and with it, in turn, every other.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/observe/trace.hpp"
#include "transport/collective/link.hpp"
#include "transport/collective/plan.hpp"

namespace simplescale::collective {

constexpr size_t kBlockBytes = size_t{64} << 10;
constexpr size_t kBlocks = 32;

/// Memory of one communicator in the arena, to send from.
class Outbox {
 public:
  Outbox() = default;
  /// blocks: kBlocks * kBlockBytes.
  Outbox(std::byte* blocks, std::span<std::byte> staging);
  std::span<std::byte> staging() const { return staging_; }
  /// nullptr: all are still being read.
  std::byte* take_block();
  /// The block is free again when the pieces are settled.
  void give_block(std::byte* block, std::vector<std::pair<Link*, Ticket>> readers);

 private:
  struct Lent {
    std::byte* block;
    std::vector<std::pair<Link*, Ticket>> readers;
  };
  std::span<std::byte> staging_;
  std::vector<std::byte*> free_;
  std::vector<Lent> lent_;
};

class Operation {
 public:
  /// links: by rank, null at our own. in_arena: tells whether peers can read these bytes where they
  /// lie.
  using InArena = bool (*)(const void* context, const void* data, size_t bytes);
  Operation(uint64_t number, Plan plan, std::span<const std::unique_ptr<Link>> links,
            Outbox& outbox, InArena in_arena, const void* context);

  /// Goes on as far as it can. first: it is the oldest unfinished one. Returns whether anything
  /// moved; an error if a peer has left amid a read.
  Result<bool> advance(bool first, const std::atomic<bool>& stop);

  /// Ranks that we wait for, as a bit mask.
  uint64_t awaited_ranks();
  uint64_t number() const { return number_; }
  const char* name() const { return plan_.name; }

  /// Set once, status before it; the operation touches no memory of the caller afterwards. Readable
  /// without the lock.
  std::atomic<bool> finished{false};
  Status status;
  /// From its start until then.
  trace::Span span;
  /// What this rank sends to others and gets from them, all in all.
  uint64_t bytes_sent() const;
  uint64_t bytes_received() const;
  void finish(Status with);

 private:
  struct Sending {
    const std::byte* data = nullptr;  // where it is sent from, unless staged
    size_t sent = 0;                  // bytes of the stream handed over to everybody
    size_t pieces = 0;
    Bytes piece;                 // being handed over
    uint64_t piece_to = 0;       // ranks that have not got it yet
    std::span<std::byte> stage;  // two halves, used in turn
    std::vector<std::pair<int, Ticket>> tickets[2];
  };
  uint64_t key(uint16_t phase) const { return number_ << 16 | phase; }
  Link& link(int rank) const { return *links_[static_cast<size_t>(rank)]; }
  bool reads_arena(uint64_t ranks) const;
  bool begin(bool first);
  bool advance_sends(bool first);
  bool advance_send(const Outgoing& out, Sending& state, bool first);
  bool next_piece(const Outgoing& out, Sending& state);
  Result<bool> advance_sum(bool first, const std::atomic<bool>& stop);
  Result<bool> advance_copies(const std::atomic<bool>& stop);
  void sum_range(size_t count);
  bool all_sent(bool results_too) const;
  bool all_released();
  uint64_t unreleased_ranks(Sending& state, size_t half);

  uint64_t number_;
  Plan plan_;
  std::span<const std::unique_ptr<Link>> links_;
  Outbox& outbox_;
  InArena in_arena_;
  const void* context_;
  bool begun_ = false;
  bool past_cache_ = false;  // more is copied than the cache keeps
  bool small_ = false;       // copied into a block (or by UCX)
  bool staged_ = false;      // some sends go through the staging buffer
  std::byte* block_ = nullptr;
  std::vector<std::pair<Link*, Ticket>> block_readers_;
  std::vector<Sending> sending_;
  std::vector<size_t> copied_;  // bytes of every plan_.copies
  size_t summed_ = 0;           // elements
  bool sum_done_ = false;
};

}  // namespace simplescale::collective
