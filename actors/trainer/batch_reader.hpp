// Reads one generation's micro-batches from the trainer's token ring. The compute thread makes all
// calls. A read waits in short intervals, so that a fence ends it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "runtime/base/status.hpp"
#include "runtime/feed/token_ring.hpp"

namespace simplescale {

class BatchReader {
 public:
  /// ring: index in the node's segment of rings. timeout: of each read. fenced: polled while a read
  /// waits; true ends the read.
  static Result<BatchReader> open(const std::string& segment, uint64_t ring, uint64_t generation,
                                  std::chrono::milliseconds timeout, std::function<bool()> fenced);

  /// Tokens of accumulation k of `step` (1-based): (B, T + 1) int32 in shared memory, valid until
  /// the next read() or release(). aborted: the generation was fenced or the ring belongs to a
  /// later one. deadline: no tokens came in time. io: the token file is bad.
  Result<const int32_t*> read(uint64_t step, int k);
  /// Gives the ring's slot of the last read() back, if there is one. aborted: the ring was reset
  /// meanwhile, so the tokens may have been torn.
  Status release();
  /// True if a read() ended because the token file has a token that the model does not know.
  bool bad_tokens() const { return bad_tokens_; }

 private:
  BatchReader(TokenRings rings, uint64_t ring, uint64_t generation,
              std::chrono::milliseconds timeout, std::function<bool()> fenced)
      : rings_(std::move(rings)),
        ring_(ring),
        generation_(generation),
        timeout_(timeout),
        fenced_(std::move(fenced)) {}
  Result<MicroBatch> acquire(const BatchKey& key);

  TokenRings rings_;
  uint64_t ring_, generation_;
  std::chrono::milliseconds timeout_;
  std::function<bool()> fenced_;
  bool holds_slot_ = false;
  bool bad_tokens_ = false;
};

}  // namespace simplescale
