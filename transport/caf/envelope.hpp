// Builds and opens envelopes. Pure functions, any thread.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "transport/caf/peer.hpp"
#include "transport/protocol/protocol.capnp.h"

namespace simplescale::remote {

/// Builds the message in the memory that is sent: the segment table, then one segment if
/// `body_bytes` was large enough. Otherwise finish() copies several segments into one array.
class EnvelopeBuilder : public capnp::MessageBuilder {
 public:
  explicit EnvelopeBuilder(size_t body_bytes);
  kj::ArrayPtr<capnp::word> allocateSegment(unsigned minimum_words) override;
  /// The envelope, ready to send. Call it once; the builder cannot be used afterwards.
  Words finish();

 private:
  struct Free {
    void operator()(capnp::word* words) const { std::free(words); }
  };
  using Memory = std::unique_ptr<capnp::word, Free>;
  static Memory zeroed(size_t words);
  Memory first_;
  size_t first_words_;
  bool first_used_ = false;
  std::vector<Memory> more_;
};

/// Calls `fill(wire::Envelope::Builder)`. body_bytes: estimated size of the body; too small costs a
/// copy. Throws kj::Exception if the message exceeds Cap'n Proto's limits.
template <class F>
Words make_envelope(F&& fill, size_t body_bytes = 0) {
  EnvelopeBuilder builder(body_bytes);
  fill(builder.initRoot<wire::Envelope>());
  return builder.finish();
}

/// Copies the message for another receiver. `words`: an envelope with a Message, made by
/// make_envelope().
Words readdressed(const Words& words, uint64_t receiver);

/// Limits a reader to about two visits of each word, so that a small message cannot expand into a
/// large one.
inline capnp::ReaderOptions reader_options(size_t words) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 2 * words + 64;
  options.nestingLimit = 16;
  return options;
}

}  // namespace simplescale::remote
