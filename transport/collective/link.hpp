// A link carries byte streams between two ranks of one communicator. A stream is named by a key
// (operation number and phase). Pieces sent under one key arrive in order; streams are independent
// of each other. Three implementations: shm_link (the receiver reads the sender's memory),
// stream_link (encrypted TCP) and ucx_link.
//
// Call it while holding the plane's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/base/status.hpp"

namespace simplescale::collective {

using Bytes = std::span<const std::byte>;

/// A piece that has been sent; see Link::is_released.
struct Ticket {
  uint64_t id = 0;
  uint64_t use = 0;
};

class Link {
 public:
  virtual ~Link() = default;

  /// True: the peer reads the data in this rank's arena, so a source must lie there until
  /// is_released().
  virtual bool reads_arena() const = 0;

  /// Sends `data` as the next piece of stream `key`; the piece begins at byte `offset` of the
  /// stream. copy: the link copies the data before it returns (only if it does not read the arena).
  /// first_in_line: this is the oldest unfinished operation; other operations leave room for it.
  /// nullopt: no room now, try again later.
  virtual std::optional<Ticket> send(uint64_t key, uint64_t offset, Bytes data, bool copy,
                                     bool first_in_line) = 0;

  /// True once neither the link nor the peer reads the piece's memory any more.
  virtual bool is_released(const Ticket& ticket) = 0;

  /// Announces that this rank will read stream `key`, so that the link may fetch data ahead.
  virtual void expect(uint64_t key) = 0;

  /// The next unread bytes of the stream that are here and contiguous. Valid until pop().
  virtual Bytes front(uint64_t key) = 0;

  /// Marks the first `bytes` of front() as read. On an error, discard the bytes: the peer has left
  /// and may have overwritten them.
  virtual Status pop(uint64_t key, size_t bytes) = 0;

  /// Frees the stream's state. Call it once per stream, also if it was not read to its end.
  virtual void forget(uint64_t key) = 0;

  /// True once the peer has received everything sent so far.
  virtual bool drained() = 0;

  /// An error if the peer is lost. thorough: also asks the kernel (about a microsecond).
  virtual Status health(bool thorough) = 0;

  /// Wakes the peer up, after one or several sends and pops.
  virtual void notify() = 0;
};

}  // namespace simplescale::collective
