#include "transport/caf/codec.hpp"

#include <capnp/dynamic.h>

#include <caf/make_message.hpp>
#include <caf/unit.hpp>
#include <typeindex>
#include <unordered_map>

#include "transport/caf/message_types.hpp"
#include "transport/protocol/convert.hpp"

namespace simplescale::remote {
namespace {

/// The conversions of a message whose type only `content` knows.
struct MessageType {
  void (*write)(const void* message, wire::Body::Builder out);
  size_t (*bytes)(const void* message);
};

template <class T>
constexpr MessageType type_of{
    [](const void* message, wire::Body::Builder out) {
      wire::write(*static_cast<const T*>(message), out);
    },
    [](const void* message) { return wire::bytes_of(*static_cast<const T*>(message)); }};

/// nullptr if it is no message.
const MessageType* find(const caf::type_erased_tuple& content) {
#define SS_TYPE(T, MEMBER) {typeid(T), type_of<T>},
  static const std::unordered_map<std::type_index, MessageType> all = {SS_MESSAGES(SS_TYPE)};
#undef SS_TYPE
  const auto rtti = content.type(0);
  if (!rtti.second) return nullptr;
  const auto found = all.find(*rtti.second);
  return found == all.end() ? nullptr : &found->second;
}

template <class T>
caf::message message_of(wire::Body::Reader in) {
  T x;
  wire::read(x, in);
  return caf::make_message(std::move(x));
}

}  // namespace

bool write_body(const caf::type_erased_tuple& content, wire::Body::Builder out) {
  if (content.empty()) {
    out.setNothing();
    return true;
  }
  if (content.size() != 1) return false;
  if (content.matches(0, caf::type_nr<caf::error>::value, nullptr)) {
    write_error(content.get_as<caf::error>(0), out.initError());
    return true;
  }
  if (content.matches(0, caf::type_nr<caf::unit_t>::value, nullptr)) {
    out.setNothing();
    return true;
  }
  const MessageType* type = find(content);
  if (!type) return false;
  type->write(content.get(0), out);
  return true;
}

size_t body_bytes(const caf::type_erased_tuple& content) {
  if (content.size() != 1) return 0;
  const MessageType* type = find(content);
  return type ? type->bytes(content.get(0)) : 0;
}

std::string name_of(wire::Envelope::Reader envelope) {
  if (!envelope.isMessage()) {
    const capnp::DynamicStruct::Reader any(envelope);
    KJ_IF_MAYBE (member, any.which()) return member->getProto().getName().cStr();
    return "unknown";
  }
  switch (envelope.getMessage().getBody().which()) {
    case wire::Body::NOTHING:
      return "answer";
    case wire::Body::ERROR:
      return "error";
#define SS_NAME(T, MEMBER) \
  case wire::Body::MEMBER: \
    return #T;
      SS_MESSAGES(SS_NAME)
#undef SS_NAME
  }
  return "unknown";
}

BodyKind read_body(wire::Body::Reader in, caf::message& content) {
  switch (in.which()) {
    case wire::Body::NOTHING:
      content = caf::message();
      return BodyKind::message;
    case wire::Body::ERROR:
      content = caf::make_message(read_error(in.getError()));
      return BodyKind::message;
#define SS_READ(T, MEMBER)       \
  case wire::Body::MEMBER:       \
    content = message_of<T>(in); \
    return BodyKind::message;
      SS_MESSAGES(SS_READ)
#undef SS_READ
  }
  return BodyKind::unknown;
}

void write_error(const caf::error& error, wire::Error::Builder out) {
  if (!error) return;
  out.setCode(error.code());
  out.setCategory(static_cast<uint64_t>(error.category()));
  const caf::message& context = error.context();
  if (context.empty()) return;
  out.setText(context.match_element<std::string>(0) ? context.get_as<std::string>(0)
                                                    : caf::to_string(context));
}

caf::error read_error(wire::Error::Reader in) {
  if (in.getCode() == 0) return {};
  auto category = static_cast<caf::atom_value>(in.getCategory());
  if (!in.hasText() || in.getText().size() == 0) return {in.getCode(), category};
  return {in.getCode(), category, caf::make_message(std::string(in.getText()))};
}

}  // namespace simplescale::remote
