// CAF messages to wire::Body and back: the table of message types. Pure functions, any thread.
// Wire rule: a message holds exactly one registered struct, or nothing (the response of a void
// handler), or a caf::error.
#pragma once

#include <capnp/message.h>

#include <caf/actor_system_config.hpp>
#include <caf/error.hpp>
#include <caf/message.hpp>

#include "runtime/base/status.hpp"
#include "transport/protocol/protocol.capnp.h"

namespace simplescale::remote {

/// Does every C++ message have its twin in the schema, and the other way round, with equal fields?
Status check_messages();

/// Makes the messages known to CAF by name.
void add_message_types(caf::actor_system_config& config);

/// False if `content` is not allowed on the wire (then `out` is left as it was).
bool write_body(const caf::type_erased_tuple& content, wire::Body::Builder out);

/// A guess for make_envelope().
size_t body_bytes(const caf::type_erased_tuple& content);

/// For people: "StepDone", or what kind of envelope it is.
std::string name_of(wire::Envelope::Reader envelope);

enum class BodyKind { message, unknown };
/// Reads into `content`. Unknown: a type this program does not have (a newer peer). Throws
/// kj::Exception if malformed.
BodyKind read_body(wire::Body::Reader in, caf::message& content);

/// An error's context travels as text.
void write_error(const caf::error& error, wire::Error::Builder out);
caf::error read_error(wire::Error::Reader in);

}  // namespace simplescale::remote
