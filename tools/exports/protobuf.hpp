// Writes the part of the Protocol Buffers wire format that the exported files need: a sequence of
// fields, each a tag and a value. A nested message is a field of bytes. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace simplescale {

class ProtobufWriter {
 public:
  /// int32, int64, uint64, bool, enum.
  ProtobufWriter& number(int field, uint64_t value) {
    tag(field, 0);
    varint(value);
    return *this;
  }
  ProtobufWriter& real64(int field, double value) { return fixed(field, 1, value); }
  ProtobufWriter& real32(int field, float value) { return fixed(field, 5, value); }
  /// string, bytes, or a nested message.
  ProtobufWriter& bytes(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    text_ += value;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  void tag(int field, unsigned wire) { varint(static_cast<uint64_t>(field) << 3 | wire); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  template <class T>
  ProtobufWriter& fixed(int field, unsigned wire, T value) {
    tag(field, wire);
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  std::string text_;
};

}  // namespace simplescale
