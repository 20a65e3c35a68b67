// Building and opening envelopes. Pure functions, any thread.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>

#include "transport/caf/peer.hpp"
#include "transport/protocol/protocol.capnp.h"

namespace simplescale::remote {

/// `fill(wire::Envelope::Builder)` must not build another envelope meanwhile. May throw
/// kj::Exception if it does not fit Cap'n Proto's limits.
template <class F>
Words make_envelope(F&& fill) {
  // Small messages are built in this scratch, which the builder wants, and leaves, filled with
  // zeros.
  thread_local capnp::word scratch[512] = {};
  capnp::MallocMessageBuilder builder(kj::arrayPtr(scratch, 512));
  fill(builder.initRoot<wire::Envelope>());
  return capnp::messageToFlatArray(builder);
}

/// Reads each word about once, so that a small message cannot pose as a large one.
inline capnp::ReaderOptions reader_options(size_t words) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 2 * words + 64;
  options.nestingLimit = 16;
  return options;
}

}  // namespace simplescale::remote
