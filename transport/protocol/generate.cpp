// A plug-in of `capnp compile`, which the build runs: makes the C++ code of the messages from
// protocol.capnp. A message is a struct that is a member of Body; the types of its fields are made,
// too.
//
//   messages.hpp  enums and structs as plain C++, with the comments and defaults of the schema
//   messages.cpp  the texts of the enums' values
//   convert.hpp   writes a struct to Cap'n Proto, reads it back, and tells its size there
//   convert.cpp
#include <capnp/dynamic.h>
#include <capnp/schema.capnp.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cctype>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using capnp::schema::Field;
using capnp::schema::Node;
using capnp::schema::Type;
using capnp::schema::Value;
using fmt::format;

constexpr const char* kFoundation = R"(
using Bytes = std::vector<uint8_t>;

capnp::Text::Reader written(const std::string& x) {
  return {x.data(), x.size()};
}
capnp::Data::Reader written(const Bytes& x) {
  return {x.data(), x.size()};
}
void read(std::string& x, capnp::Text::Reader in) {
  x.assign(in.begin(), in.size());
}
void read(Bytes& x, capnp::Data::Reader in) {
  x.assign(in.begin(), in.end());
}
size_t words(size_t bytes) {
  return (bytes + 7) / 8 * 8;
}
size_t bytes_of(const std::string& x) {
  return words(x.size() + 1);
}
size_t bytes_of(const Bytes& x) {
  return words(x.size());
}
/// A value of an enum of which this program knows `count`.
template <class Enum, class Wire>
Enum known(Wire value, uint16_t count) {
  KJ_REQUIRE(static_cast<uint16_t>(value) < count, "unknown value of an enum", value);
  return static_cast<Enum>(value);
}
)";

/// "stepMs" -> "step_ms"; change: of each letter.
std::string snake(const std::string& camel, int (*change)(int) = std::tolower) {
  std::string out;
  for (const unsigned char c : camel)
    out += (std::isupper(c) ? "_" : "") + std::string(1, static_cast<char>(change(c)));
  return out;
}

std::string capital(std::string name) {
  name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return name;
}

/// A comment of the schema as `///` lines.
std::string commented(const std::string& text, const char* indent = "") {
  std::string out;
  for (size_t at = 0; at < text.size(); at = std::min(text.find('\n', at), text.size()) + 1)
    out += format("{}/// {}\n", indent, text.substr(at, text.find('\n', at) - at));
  return out;
}

class Generator {
 public:
  explicit Generator(capnp::schema::CodeGeneratorRequest::Reader request) {
    for (const auto node : request.getNodes()) nodes_.emplace(node.getId(), node);
    for (const auto info : request.getSourceInfo()) info_.emplace(info.getId(), info);
    const Node::Reader file = nodes_.at(request.getRequestedFiles()[0].getId());
    path_ = file.getDisplayName();
    for (const auto nested : file.getNestedNodes()) {
      const Node::Reader node = nodes_.at(nested.getId());
      if (node.isConst()) add_const(node);
      if (name_of(node) == "Body") add_messages(node);
    }
  }

  /// Writes the files below the current folder.
  void write() const {
    std::string includes = "#include <cstdint>\n#include <string>\n#include <vector>\n\n";
    for (const std::string& name : headers_) includes += format("#include \"{}\"\n", name);
    const std::string folder = path_.substr(0, path_.rfind('/') + 1);
    const auto save = [&](const std::string& name, const std::string& text) {
      std::ofstream out(folder + name);
      if (!(out << format("// Made from {}.\n{}", path_, text)).flush())
        throw std::runtime_error(folder + name + " cannot be written");
    };
    save("messages.hpp",
         format("#pragma once\n\n{}\nnamespace simplescale {{\n\n{}/// X(NAME, MEMBER) for each "
                "message; MEMBER: of wire::Body::Which.\n#define SS_MESSAGES(X){}\n}}\n",
                includes, types_, list_));
    save("messages.cpp",
         format("#include \"{}messages.hpp\"\n\nnamespace simplescale {{\n{}}}\n", folder, texts_));
    save("convert.hpp",
         format("// Pure functions, any thread. read() throws kj::Exception if the data is "
                "malformed or an enum\n// has a value that this program does not know.\n#pragma "
                "once\n\n#include \"{}messages.hpp\"\n#include \"{}.h\"\n\nnamespace "
                "simplescale::wire {{\n{}}}\n",
                folder, path_, declarations_));
    save("convert.cpp", format("#include \"{}convert.hpp\"\n\n#include <kj/debug.h>\n\nnamespace "
                               "simplescale::wire {{\nnamespace {{\n{}}}\n{}}}\n",
                               folder, kFoundation, definitions_));
  }

 private:
  /// The text of one of the annotations that protocol.capnp declares; "" if there is none.
  std::string annotation(capnp::List<capnp::schema::Annotation>::Reader all,
                         const std::string& name) const {
    for (const auto one : all)
      if (wire_name(nodes_.at(one.getId())) == name) return one.getValue().getText().cStr();
    return "";
  }
  static std::string wire_name(Node::Reader node) {
    return std::string(node.getDisplayName()).substr(node.getDisplayNamePrefixLength());
  }
  std::string name_of(Node::Reader node) const {
    const std::string given = annotation(node.getAnnotations(), "cxxName");
    return given.empty() ? wire_name(node) : given;
  }
  std::string comment_of(Node::Reader node) const {
    return commented(info_.at(node.getId()).getDocComment());
  }
  std::string comment_of(Node::Reader node, uint32_t member) const {
    return commented(info_.at(node.getId()).getMembers()[member].getDocComment(), "  ");
  }
  Node::Reader node_of(Type::Reader type) const {
    return nodes_.at(type.isEnum() ? type.getEnum().getTypeId() : type.getStruct().getTypeId());
  }

  std::string cxx_type(Type::Reader type) const {
    static const char* const simple[] = {
        "",         "bool",     "int8_t",   "int16_t", "int32_t", "int64_t",     "uint8_t",
        "uint16_t", "uint32_t", "uint64_t", "float",   "double",  "std::string", "Bytes"};
    if (type.isList()) return format("std::vector<{}>", cxx_type(type.getList().getElementType()));
    if (type.isEnum() || type.isStruct()) return name_of(node_of(type));
    if (type.isData()) return "std::vector<uint8_t>";
    if (type.isVoid() || type.which() > Type::DATA)
      throw std::runtime_error("a message cannot have a field of this type");
    return simple[type.which()];
  }

  /// The default of a field or the value of a constant, after " = "; "" where C++ needs none.
  std::string default_of(Type::Reader type, Value::Reader value) const {
    if (type.isText() || type.isData() || type.isList() || type.isStruct()) return "";
    if (type.isEnum()) {
      const Node::Reader node = node_of(type);
      const auto one = node.getEnum().getEnumerants()[value.getEnum()];
      return format(" = {}::{}", name_of(node), snake(one.getName()));
    }
    const capnp::DynamicStruct::Reader any(value);
    return std::string(" = ") + kj::str(any.get(KJ_ASSERT_NONNULL(any.which()))).cStr();
  }

  void add_const(Node::Reader node) {
    const auto value = node.getConst();
    types_ += format("{}inline constexpr {} {}{};\n\n", comment_of(node), cxx_type(value.getType()),
                     snake(wire_name(node)), default_of(value.getType(), value.getValue()));
  }

  void add_messages(Node::Reader body) {
    for (const auto field : body.getStruct().getFields()) {
      const auto type = field.getSlot().getType();
      const std::string member = field.getName();
      if (!type.isStruct() || member == "error") continue;
      add_type(type);
      const std::string name = name_of(node_of(type));
      list_ += format(" \\\n  X({}, {})", name, snake(member, std::toupper));
      declarations_ += format(
          "inline void write(const simplescale::{0}& x, Body::Builder out) {{\n  write(x, "
          "out.init{1}());\n}}\ninline void read(simplescale::{0}& x, Body::Reader in) {{\n  "
          "read(x, in.get{1}());\n}}\n",
          name, capital(member));
    }
  }

  /// Adds a struct or an enum, once, after the types of its fields.
  void add_type(Type::Reader type) {
    if (type.isList()) return add_type(type.getList().getElementType());
    if (!type.isStruct() && !type.isEnum()) return;
    const Node::Reader node = node_of(type);
    if (!added_.insert(node.getId()).second) return;
    const std::string header = annotation(node.getAnnotations(), "header");
    if (!header.empty()) headers_.insert(header);
    if (type.isEnum()) return add_enum(node, !header.empty());
    for (const auto field : node.getStruct().getFields()) add_type(field.getSlot().getType());
    add_struct(node, !header.empty());
  }

  /// known: the type is in a header already.
  void add_enum(Node::Reader node, bool known) {
    const std::string name = name_of(node);
    std::string values, texts;
    for (uint32_t i = 0; const auto one : node.getEnum().getEnumerants()) {
      const std::string value = snake(one.getName()),
                        text = annotation(one.getAnnotations(), "text");
      values += format("{}  {},\n", comment_of(node, i), value);
      texts += format("    case {}::{}:\n      return \"{}\";\n", name, value,
                      text.empty() ? value : text);
      if (known)
        definitions_ +=
            format("static_assert(static_cast<int>(simplescale::{}::{}) == {});\n", name, value, i);
      ++i;
    }
    if (known) return;
    types_ += format("{}enum class {} : unsigned char {{\n{}}};\nconst char* to_string({} x);\n\n",
                     comment_of(node), name, values, name);
    texts_ +=
        format("\nconst char* to_string({} x) {{\n  switch (x) {{\n{}  }}\n  return \"?\";\n}}\n",
               name, texts);
  }

  /// The members are in the order of the schema's text.
  void add_struct(Node::Reader node, bool known) {
    const std::string name = name_of(node), wire = wire_name(node);
    const auto fields = node.getStruct().getFields();
    std::map<uint16_t, uint32_t> in_order;
    for (uint32_t i = 0; i < fields.size(); ++i) in_order[fields[i].getCodeOrder()] = i;
    std::string members, count;
    write_ = read_ = size_ = "";
    for (const auto& [order, i] : in_order) {
      const auto slot = fields[i].getSlot();
      const std::string member = snake(fields[i].getName());
      members += format("{}  {} {}{};\n", comment_of(node, i), cxx_type(slot.getType()), member,
                        default_of(slot.getType(), slot.getDefaultValue()));
      count += format("{}_{}", order ? ", " : "", i);
      add_field(slot.getType(), "x." + member, capital(fields[i].getName()));
    }
    if (known)  // does not compile if the struct has another number of members
      write_ = format("  [[maybe_unused]] const auto& [{}] = x;\n", count) + write_;
    else
      types_ += format("{}struct {} {{\n{}  bool operator==(const {}&) const = default;\n}};\n\n",
                       comment_of(node), name, members, name);
    declarations_ += format(
        "void write(const simplescale::{0}& x, {1}::Builder out);\nvoid read(simplescale::{0}& x, "
        "{1}::Reader in);\nsize_t bytes_of(const simplescale::{0}& x);\n",
        name, wire);
    const auto shape = node.getStruct();
    definitions_ += format(
        "\nvoid write(const simplescale::{0}& x, {1}::Builder out) {{\n{2}}}\nvoid "
        "read(simplescale::{0}& x, {1}::Reader in) {{\n{3}}}\nsize_t bytes_of([[maybe_unused]] "
        "const simplescale::{0}& x) {{\n  size_t bytes = {4};\n{5}  return bytes;\n}}\n",
        name, wire, write_, read_, 8 * (shape.getDataWordCount() + shape.getPointerCount()), size_);
  }

  /// Adds the statements that write, read and measure one field.
  void add_field(Type::Reader type, const std::string& x, const std::string& member) {
    if (type.isText() || type.isData()) {
      write_ += format("  out.set{}(written({}));\n", member, x);
      read_ += format("  read({}, in.get{}());\n", x, member);
      size_ += format("  bytes += bytes_of({});\n", x);
    } else if (type.isStruct()) {
      write_ += format("  write({}, out.init{}());\n", x, member);
      read_ += format("  read({}, in.get{}());\n", x, member);
      size_ += format("  bytes += bytes_of({});\n", x);
    } else if (type.isEnum()) {
      const Node::Reader node = node_of(type);
      write_ += format("  out.set{}(static_cast<wire::{}>({}));\n", member, wire_name(node), x);
      read_ += format("  {} = known<simplescale::{}>(in.get{}(), {});\n", x, name_of(node), member,
                      node.getEnum().getEnumerants().size());
    } else if (type.isList()) {
      add_list(type.getList().getElementType(), x, member);
    } else {
      write_ += format("  out.set{}({});\n", member, x);
      read_ += format("  {} = in.get{}();\n", x, member);
    }
  }

  void add_list(Type::Reader element, const std::string& x, const std::string& member) {
    if (element.isList() || element.isEnum())
      throw std::runtime_error("a message has no list of lists or of enums");
    const bool bytes = element.isText() || element.isData(), object = bytes || element.isStruct();
    const char* each = "    for (uint32_t i = 0; i < list.size(); ++i)";
    const std::string one = x + "[i]";
    write_ += format(
        "  {{\n    auto list = out.init{}(static_cast<uint32_t>({}.size()));\n{} {};\n  }}\n",
        member, x, each,
        bytes    ? format("list.set(i, written({}))", one)
        : object ? format("write({}, list[i])", one)
                 : format("list.set(i, {})", one));
    read_ += format(
        "  {{\n    const auto list = in.get{}();\n    {}.resize(list.size());\n{} {};\n  }}\n",
        member, x, each, object ? format("read({}, list[i])", one) : one + " = list[i]");
    size_ += object
                 ? format("  for (const auto& one : {}) bytes += bytes_of(one);\n  bytes += {};\n",
                          x, bytes ? format("8 * {}.size()", x) : "8")
                 : format("  bytes += words({}.size() * sizeof({}));\n", x, cxx_type(element));
  }

  std::map<uint64_t, Node::Reader> nodes_;
  std::map<uint64_t, Node::SourceInfo::Reader> info_;
  std::string path_;  // of the schema
  std::set<uint64_t> added_;
  std::set<std::string> headers_;
  std::string types_, list_, texts_, declarations_, definitions_;
  std::string write_, read_, size_;  // of the struct that is being made
};

}  // namespace

int main() {
  try {
    capnp::ReaderOptions options;
    options.traversalLimitInWords = uint64_t{1} << 26;
    capnp::StreamFdMessageReader request(STDIN_FILENO, options);
    Generator(request.getRoot<capnp::schema::CodeGeneratorRequest>()).write();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "generate_messages: %s\n", error.what());
    return 1;
  }
}
