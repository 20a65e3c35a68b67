#include "transport/caf/codec.hpp"

#include <capnp/schema.h>

#include <caf/all.hpp>
#include <typeindex>
#include <unordered_map>

#include "transport/caf/message_types.hpp"
#include "transport/protocol/convert.hpp"

namespace simplescale::remote {
namespace {

/// How one type is encoded: its member of Body, and the conversions.
struct MessageType {
  std::string name;
  capnp::StructSchema::Field member;
  void (*write)(const void* message, capnp::DynamicStruct::Builder out);
  caf::message (*read)(capnp::DynamicStruct::Reader in);
  Status (*check)(capnp::StructSchema schema);
  size_t (*bytes)(const void* message);
};

struct Table {
  Status status;  // ok if Body has a member for every type
  std::unordered_map<std::type_index, MessageType> by_type;
  std::unordered_map<uint16_t, const MessageType*> by_discriminant;
};

template <class T>
void add(Table& table, capnp::StructSchema body) {
  const T* tag = nullptr;
  std::string name = wire::member_name(message_name(tag));
  KJ_IF_MAYBE (member, body.findFieldByName(name)) {
    auto write = [](const void* message, capnp::DynamicStruct::Builder out) {
      wire::write_struct(*static_cast<const T*>(message), out);
    };
    auto read = [](capnp::DynamicStruct::Reader in) {
      T x{};
      wire::read_struct(x, in);
      return caf::make_message(std::move(x));
    };
    auto bytes = [](const void* message) {
      wire::SizeHint hint;
      hint.add(*static_cast<const T*>(message));
      return hint.bytes;
    };
    MessageType made{message_name(tag), *member, write, read, &wire::check_struct<T>, bytes};
    auto& type = table.by_type.emplace(std::type_index(typeid(T)), std::move(made)).first->second;
    table.by_discriminant.emplace(member->getProto().getDiscriminantValue(), &type);
  } else {
    table.status =
        Status(Code::internal, std::string(message_name(tag)) + ": Body has no member " + name);
  }
}

template <class... Ts>
Table make_table(MessageList<Ts...>) {
  Table table;
  auto body = capnp::Schema::from<wire::Body>();
  (add<Ts>(table, body), ...);
  return table;
}

const Table& table() {
  static const Table instance = make_table(Messages{});
  return instance;
}

const MessageType* find(const caf::type_erased_tuple& content) {
  auto rtti = content.type(0);
  if (!rtti.second) return nullptr;
  auto found = table().by_type.find(std::type_index(*rtti.second));
  return found == table().by_type.end() ? nullptr : &found->second;
}

}  // namespace

Status check_messages() {
  const Table& all = table();
  SS_RETURN_IF_ERROR(all.status);
  for (auto& [key, type] : all.by_type) {
    if (!type.member.getType().isStruct()) {
      return {Code::internal, type.name + ": its member of Body is not a struct"};
    }
    SS_RETURN_IF_ERROR(type.check(type.member.getType().asStruct()));
  }
  for (auto member : capnp::Schema::from<wire::Body>().getUnionFields()) {
    uint16_t which = member.getProto().getDiscriminantValue();
    if (which == wire::Body::NOTHING || which == wire::Body::ERROR) continue;
    if (!all.by_discriminant.count(which)) {
      return {Code::internal, std::string("Body.") + member.getProto().getName().cStr() +
                                  " has no C++ message in SS_MESSAGES"};
    }
  }
  return {};
}

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
  capnp::DynamicStruct::Builder body(out);
  type->write(content.get(0), body.init(type->member).as<capnp::DynamicStruct>());
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
  const auto body = envelope.getMessage().getBody();
  if (body.isNothing()) return "answer";
  if (body.isError()) return "error";
  const auto found = table().by_discriminant.find(static_cast<uint16_t>(body.which()));
  return found == table().by_discriminant.end() ? "unknown" : found->second->name;
}

BodyKind read_body(wire::Body::Reader in, caf::message& content) {
  switch (in.which()) {
    case wire::Body::NOTHING:
      content = caf::message();
      return BodyKind::message;
    case wire::Body::ERROR:
      content = caf::make_message(read_error(in.getError()));
      return BodyKind::message;
    default:
      break;
  }
  auto found = table().by_discriminant.find(static_cast<uint16_t>(in.which()));
  if (found == table().by_discriminant.end()) return BodyKind::unknown;
  capnp::DynamicStruct::Reader body(in);
  content = found->second->read(body.get(found->second->member).as<capnp::DynamicStruct>());
  return BodyKind::message;
}

void write_error(const caf::error& error, wire::Error::Builder out) {
  if (!error) return;
  out.setCode(error.code());
  out.setCategory(static_cast<uint64_t>(error.category()));
  const caf::message& context = error.context();
  if (context.empty()) return;
  out.setText(context.match_elements<std::string>() ? context.get_as<std::string>(0)
                                                    : caf::to_string(context));
}

caf::error read_error(wire::Error::Reader in) {
  if (in.getCode() == 0) return {};
  auto category = static_cast<caf::atom_value>(in.getCategory());
  if (!in.hasText() || in.getText().size() == 0) return {in.getCode(), category};
  return {in.getCode(), category, caf::make_message(std::string(in.getText()))};
}

}  // namespace simplescale::remote
