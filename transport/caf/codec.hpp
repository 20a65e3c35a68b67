// Converts CAF messages to wire::Body and back. Pure functions, any thread.
//
// Wire rule: a message holds exactly one registered struct, or nothing (the response of a void
// handler), or a caf::error.
#pragma once

#include <capnp/message.h>

#include <caf/error.hpp>
#include <caf/message.hpp>

#include "transport/protocol/protocol.capnp.h"

namespace simplescale::remote {

/// Encodes `content` into `out`. False, and `out` is unchanged, if the wire rule does not allow
/// `content`.
bool write_body(const caf::type_erased_tuple& content, wire::Body::Builder out);

/// Estimated size on the wire, for make_envelope(). 0 for a type that is not in the table.
size_t body_bytes(const caf::type_erased_tuple& content);

/// The message's type ("StepDone") or the envelope's kind ("heartbeat"), for traces.
std::string name_of(wire::Envelope::Reader envelope);

enum class BodyKind { message, unknown };
/// Decodes `in` into `content`. unknown: the peer is newer and sent a type that this program lacks.
/// Throws kj::Exception if `in` is malformed.
BodyKind read_body(wire::Body::Reader in, caf::message& content);

/// Encodes an error; its context is sent as text.
void write_error(const caf::error& error, wire::Error::Builder out);
caf::error read_error(wire::Error::Reader in);

}  // namespace simplescale::remote
