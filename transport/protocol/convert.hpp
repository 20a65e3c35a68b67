// Converts C++ message structs to Cap'n Proto and back, for any struct with SS_FIELDS: visits the
// fields with `inspect` and takes the schema's fields in the same order. Does not use CAF. Pure
// functions, any thread. Reading malformed data throws kj::Exception.
#pragma once

#include <capnp/dynamic.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/base/status.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale::wire {

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
using Bytes = std::vector<uint8_t>;

// ---- writing ----------------------------------------------------------------------------------

template <class T>
void write_struct(const T& x, capnp::DynamicStruct::Builder out);

template <class T>
capnp::DynamicValue::Reader scalar(const T& x) {
  if constexpr (std::is_same_v<T, std::string>) {
    return capnp::Text::Reader(x.data(), x.size());
  } else if constexpr (std::is_same_v<T, Bytes>) {
    return capnp::Data::Reader(x.data(), x.size());
  } else {
    return x;
  }
}

template <class T>
void write_field(const T& x, capnp::DynamicStruct::Builder out, capnp::StructSchema::Field field) {
  if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string> ||
                std::is_same_v<T, Bytes>) {
    out.set(field, scalar(x));
  } else if constexpr (IsVector<T>::value) {
    using Element = typename T::value_type;
    auto list = out.init(field, static_cast<uint32_t>(x.size())).template as<capnp::DynamicList>();
    uint32_t i = 0;
    for (const Element& element : x) {
      if constexpr (std::is_class_v<Element> && !std::is_same_v<Element, std::string> &&
                    !std::is_same_v<Element, Bytes>) {
        write_struct(element, list[i++].template as<capnp::DynamicStruct>());
      } else {
        list.set(i++, scalar(element));
      }
    }
  } else {
    write_struct(x, out.init(field).template as<capnp::DynamicStruct>());
  }
}

struct Writer {
  using result_type = void;
  capnp::DynamicStruct::Builder out;
  template <class... Ts>
  void operator()(const Ts&... xs) {
    [[maybe_unused]] auto fields = out.getSchema().getFields();
    [[maybe_unused]] uint32_t i = 0;
    (write_field(xs, out, fields[i++]), ...);
  }
};

/// `out` must have T's schema; check_struct() compares the two.
template <class T>
void write_struct(const T& x, capnp::DynamicStruct::Builder out) {
  Writer writer{out};
  inspect(writer, const_cast<T&>(x));  // inspect() takes T&, but Writer only reads it
}

/// Estimates a message's size on the wire in bytes; usually too large rather than too small.
struct SizeHint {
  using result_type = void;
  size_t bytes = 16;
  template <class... Ts>
  void operator()(const Ts&... xs) {
    (add(xs), ...);
  }
  template <class T>
  void add(const T& x) {
    if constexpr (std::is_arithmetic_v<T>) {
      bytes += 8;
    } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, Bytes>) {
      bytes += 24 + x.size();
    } else if constexpr (IsVector<T>::value) {
      bytes += 24;
      for (const typename T::value_type& y : x) add(y);
    } else {
      bytes += 16;
      inspect(*this, const_cast<T&>(x));
    }
  }
};

// ---- reading ----------------------------------------------------------------------------------

template <class T>
void read_struct(T& x, capnp::DynamicStruct::Reader in);

template <class T>
void read_value(T& x, const capnp::DynamicValue::Reader& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    x = value.as<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    auto text = value.as<capnp::Text>();
    x.assign(text.begin(), text.size());
  } else if constexpr (std::is_same_v<T, Bytes>) {
    auto data = value.as<capnp::Data>();
    x.assign(data.begin(), data.end());
  } else if constexpr (IsVector<T>::value) {
    auto list = value.as<capnp::DynamicList>();
    x.clear();
    x.reserve(list.size());
    for (auto element : list) {
      typename T::value_type y{};
      read_value(y, element);
      x.push_back(std::move(y));
    }
  } else {
    read_struct(x, value.as<capnp::DynamicStruct>());
  }
}

struct Reader {
  using result_type = void;
  capnp::DynamicStruct::Reader in;
  template <class... Ts>
  void operator()(Ts&... xs) {
    [[maybe_unused]] auto fields = in.getSchema().getFields();
    [[maybe_unused]] uint32_t i = 0;
    (read_value(xs, in.get(fields[i++])), ...);
  }
};

template <class T>
void read_struct(T& x, capnp::DynamicStruct::Reader in) {
  Reader reader{in};
  inspect(reader, x);
}

// ---- checking ---------------------------------------------------------------------------------

/// "x.step_ms, x.loss" -> {"stepMs", "loss"}
std::vector<std::string> schema_names(const std::string& fields);
/// StepDone -> stepDone
std::string member_name(const std::string& type);

template <class T>
Status check_struct(capnp::StructSchema schema);

template <class T>
Status check_type(capnp::Type type) {
  using Which = capnp::schema::Type;
  auto which = type.which();
  bool same;
  if constexpr (std::is_same_v<T, bool>) {
    same = which == Which::BOOL;
  } else if constexpr (std::is_floating_point_v<T>) {
    same = which == (sizeof(T) == 4 ? Which::FLOAT32 : Which::FLOAT64);
  } else if constexpr (std::is_integral_v<T>) {
    constexpr Which::Which kSigned[] = {Which::INT8, Which::INT16, Which::INT32, Which::INT64};
    constexpr Which::Which kUnsigned[] = {Which::UINT8, Which::UINT16, Which::UINT32,
                                          Which::UINT64};
    constexpr int kIndex = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    same = which == (std::is_signed_v<T> ? kSigned : kUnsigned)[kIndex];
  } else if constexpr (std::is_same_v<T, std::string>) {
    same = which == Which::TEXT;
  } else if constexpr (std::is_same_v<T, Bytes>) {
    same = which == Which::DATA;
  } else if constexpr (IsVector<T>::value) {
    if (which != Which::LIST) return {Code::internal, "is not a list in the schema"};
    return check_type<typename T::value_type>(type.asList().getElementType());
  } else {
    if (which != Which::STRUCT) return {Code::internal, "is not a struct in the schema"};
    return check_struct<T>(type.asStruct());
  }
  return same ? Status() : Status(Code::internal, "has another type in the schema");
}

template <class T>
struct Checker {
  using result_type = Status;
  capnp::StructSchema schema;
  template <class... Ts>
  Status operator()(const Ts&...) {
    const T* tag = nullptr;
    auto names = schema_names(message_fields(tag));
    auto fields = schema.getFields();
    if (fields.size() != sizeof...(Ts) || names.size() != sizeof...(Ts)) {
      return {Code::internal, std::string(message_name(tag)) + " has " +
                                  std::to_string(sizeof...(Ts)) + " fields, its schema " +
                                  std::to_string(fields.size())};
    }
    Status status;
    [[maybe_unused]] uint32_t i = 0;
    [[maybe_unused]] auto one = [&](Status same_type) {
      auto field = fields[i];
      std::string name = field.getProto().getName();
      if (status.ok() && !same_type.ok()) status = same_type.in(message_name(tag)).in(name);
      if (status.ok() && (name != names[i] || field.getProto().getCodeOrder() != i)) {
        status = Status(Code::internal, std::string(message_name(tag)) + ": field " + names[i] +
                                            " stands where the schema has " + name);
      }
      ++i;
    };
    (one(check_type<Ts>(fields[i].getType())), ...);
    return status;
  }
};

/// ok if T and the schema have the same fields: names, types and order, recursively. Else
/// Code::internal names the difference.
template <class T>
Status check_struct(capnp::StructSchema schema) {
  T x{};
  Checker<T> checker{schema};
  return inspect(checker, x);
}

}  // namespace simplescale::wire
