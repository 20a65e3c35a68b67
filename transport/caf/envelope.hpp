// Building and opening envelopes. Pure functions, any thread.
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

/// Builds into the memory that is sent: the segment table and, if the size was guessed well, the
/// one segment.
class EnvelopeBuilder : public capnp::MessageBuilder {
 public:
  explicit EnvelopeBuilder(size_t body_bytes);
  kj::ArrayPtr<capnp::word> allocateSegment(unsigned minimum_words) override;
  /// The envelope, ready to send. Ends the builder.
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

/// `fill(wire::Envelope::Builder)`; `body_bytes` is a guess of what it needs beyond the envelope
/// itself, best not below. May throw kj::Exception if it does not fit Cap'n Proto's limits.
template <class F>
Words make_envelope(F&& fill, size_t body_bytes = 0) {
  EnvelopeBuilder builder(body_bytes);
  fill(builder.initRoot<wire::Envelope>());
  return builder.finish();
}

/// The same message to another receiver: a copy. `words`: an envelope with a Message, made here.
Words readdressed(const Words& words, uint64_t receiver);

/// Reads each word about once, so that a small message cannot pose as a large one.
inline capnp::ReaderOptions reader_options(size_t words) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 2 * words + 64;
  options.nestingLimit = 16;
  return options;
}

}  // namespace simplescale::remote
