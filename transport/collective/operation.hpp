// One started collective: a plan and its progress. advance() does what can be done without waiting.
// Call it while holding the plane's lock.
//
// Where peers on this host read the data:
//   small operation  Everything that it sends fits one block: copied into a block of the outbox.
//                    The operation ends without waiting for readers.
//   large operation  In place if the source lies in the arena, else in the staging buffer, piece
//                    by piece. The operation ends once all peers have read everything.
// A sum for a rank of another host is computed piece by piece in memory of the operation.
//
//   COLLECTIVE-2  Only the oldest unfinished operation uses the staging buffer, and the others
//                 leave half of a link's descriptors free. So the oldest operation of all ranks can
//                 always make progress, and after it every other.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "runtime/observe/trace.hpp"
#include "transport/collective/link.hpp"
#include "transport/collective/plan.hpp"

namespace simplescale::collective {

constexpr size_t kBlockBytes = size_t{64} << 10;
constexpr size_t kBlocks = 32;

/// The arena memory from which one communicator sends.
class Outbox {
 public:
  Outbox() = default;
  /// blocks: kBlocks * kBlockBytes.
  Outbox(std::byte* blocks, std::span<std::byte> staging);
  std::span<std::byte> staging() const { return staging_; }
  /// nullptr: peers still read all blocks.
  std::byte* take_block();
  /// Returns the block. It becomes free once all pieces in `readers` are released.
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
  /// links: by rank, null at this rank. in_arena(context, data, bytes): true if the bytes lie in
  /// the arena.
  using InArena = bool (*)(const void* context, const void* data, size_t bytes);
  Operation(uint64_t number, Plan plan, std::span<const std::unique_ptr<Link>> links,
            Outbox& outbox, InArena in_arena, const void* context);

  /// Makes as much progress as possible; returns whether there was any. first: this is the oldest
  /// unfinished operation. stop: return soon. An error if a peer left during a read.
  Result<bool> advance(bool first, const std::atomic<bool>& stop);

  /// The ranks from which, or for which, this operation has streams that have not ended.
  std::set<int> awaited_ranks();
  /// Those of them from which nothing has come; if there are none, all of them.
  std::set<int> absent_ranks();
  uint64_t number() const { return number_; }
  const char* name() const { return plan_.name; }

  /// Set once, after `status`. Readable without the lock. Afterwards the operation does not use the
  /// caller's memory.
  std::atomic<bool> finished{false};
  Status status;
  /// Covers the time from the start until `finished`.
  trace::Span span;
  /// Totals over all other ranks.
  uint64_t bytes_sent() const;
  uint64_t bytes_received() const;
  void finish(Status with);

 private:
  struct Sending {
    const std::byte* data = nullptr;  // the source or the block, unless staged
    size_t sent = 0;                  // bytes given to the links of all receivers
    size_t pieces = 0;                // number of pieces sent
    Bytes piece;                      // being given to the links
    std::vector<int> piece_to;        // ranks whose link has not taken it yet
    std::span<std::byte> stage;       // two halves, used in turn: in the staging buffer, or for a
                                      // host's sum in host_sums_
    std::vector<std::pair<int, Ticket>> tickets[2];  // by half of the stage: rank and ticket
  };
  uint64_t key(uint32_t phase) const { return stream_key(number_, phase); }
  Link& link(int rank) const { return *links_[static_cast<size_t>(rank)]; }
  std::vector<int> receivers(const Outgoing& out) const;
  bool reads_arena(const Outgoing& out) const;
  bool begin(bool first);
  bool advance_sends(bool first);
  bool advance_send(const Outgoing& out, Sending& state, bool first);
  bool next_piece(const Outgoing& out, Sending& state);
  Result<bool> advance_sums(bool first, const std::atomic<bool>& stop);
  Result<bool> advance_sum(size_t number, bool first, const std::atomic<bool>& stop);
  Result<bool> advance_copies(bool first, const std::atomic<bool>& stop);
  void add_range(size_t number, size_t count);
  const Sum& sum(size_t number) const {
    return number < plan_.host_sums.size() ? plan_.host_sums[number] : plan_.sum;
  }
  size_t room_for(size_t number);
  size_t ready_bytes(const Outgoing& out) const;
  bool all_sent(bool results_too) const;
  bool all_released();
  bool is_released(Sending& state, size_t half);

  uint64_t number_;
  Plan plan_;
  std::span<const std::unique_ptr<Link>> links_;
  Outbox& outbox_;
  InArena in_arena_;
  const void* context_;
  bool begun_ = false;
  bool past_cache_ = false;  // copy around the cache
  bool small_ = false;       // sources are copied into a block, or by UCX
  bool staged_ = false;      // some sends go through the staging buffer
  std::byte* block_ = nullptr;
  std::vector<std::pair<Link*, Ticket>> block_readers_;
  std::vector<Sending> sending_;
  std::vector<size_t> copied_;  // bytes of every plan_.copies
  std::vector<size_t> summed_;  // elements of every sum()
  bool sum_done_ = false;       // plan_.sum
  std::unique_ptr<std::byte[]> host_sums_;
  std::vector<size_t> sending_of_;  // by host sum: its index in sending_
};

}  // namespace simplescale::collective
