// The part of the Protocol Buffers wire format that the exported files need: a sequence of fields,
// each a tag and a value. A nested message is a field of bytes. Pure.
#pragma once

#include <cstdint>
#include <cstring>
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

struct ProtobufField {
  int number = 0;
  uint64_t value = 0;      // of a number; of a real: its bits
  std::string_view bytes;  // of a string, bytes or message
  double real64() const { return as<double>(); }
  float real32() const { return as<float>(); }

 private:
  template <class T>
  T as() const {
    T result;
    std::memcpy(&result, &value, sizeof result);
    return result;
  }
};

/// Reads untrusted data: checks every length. The text must outlive the reader.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view text) : text_(text) {}
  /// Reads the next field. False at the end and at invalid data.
  bool next(ProtobufField& field) {
    uint64_t tag = 0;
    if (!varint(tag)) return false;
    field = {static_cast<int>(tag >> 3), 0, {}};
    switch (tag & 7) {
      case 0:
        return varint(field.value);
      case 1:
        return fixed(8, field.value);
      case 5:
        return fixed(4, field.value);
      case 2: {
        uint64_t size = 0;
        if (!varint(size) || size > text_.size()) return false;
        field.bytes = text_.substr(0, size);
        text_.remove_prefix(size);
        return true;
      }
      default:
        return false;
    }
  }

 private:
  bool varint(uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && !text_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(text_.front());
      text_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool fixed(size_t size, uint64_t& value) {
    if (text_.size() < size) return false;
    std::memcpy(&value, text_.data(), size);
    text_.remove_prefix(size);
    return true;
  }
  std::string_view text_;
};

}  // namespace simplescale
