// A link carries byte streams between two ranks of one communicator. A stream is named by a key
// (operation number and phase); what is sent under one key arrives in order, streams are
// independent of each other. Two implementations: shm_link (the receiver reads the sender's memory)
// and ucx_link.
//
// Thread: the holder of the plane's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/base/status.hpp"

namespace simplescale::collective {

using Bytes = std::span<const std::byte>;

/// A piece under way; see Link::settled.
struct Ticket {
  uint64_t id = 0;
  uint64_t use = 0;
};

class Link {
 public:
  virtual ~Link() = default;

  /// True: a source must lie in the arena, at most so long as settled() is false.
  virtual bool reads_arena() const = 0;

  /// Sends `data` as the next piece of stream `key`, which begins at its byte `offset`. `copy`: the
  /// bytes may change as soon as this returns (only for links that do not read the arena).
  /// `first_in_line`: no older operation of ours is unfinished; others leave room for it. nullopt:
  /// no room now, try again.
  virtual std::optional<Ticket> send(uint64_t key, uint64_t offset, Bytes data, bool copy,
                                     bool first_in_line) = 0;

  /// The piece's memory is not needed any more.
  virtual bool is_released(const Ticket& ticket) = 0;

  /// This side is going to read stream `key`: data may be fetched ahead.
  virtual void expect(uint64_t key) = 0;

  /// The peer's unread bytes of the stream that are here and contiguous; valid until pop.
  virtual Bytes front(uint64_t key) = 0;

  /// The first `bytes` of front() have been read. An error: what was read may be no data (the peer
  /// has left).
  virtual Status pop(uint64_t key, size_t bytes) = 0;

  /// The stream has been read to its end.
  virtual void forget(uint64_t key) = 0;

  /// Everything sent so far has been taken by the peer.
  virtual bool drained() = 0;

  /// An error if nothing more will come from the peer. `thorough` asks the system too (a
  /// microsecond).
  virtual Status health(bool thorough) = 0;

  /// Tells the peer that something has changed for it (after one or several sends and pops).
  virtual void notify() = 0;
};

}  // namespace simplescale::collective
